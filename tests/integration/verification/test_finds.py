"""Differences that somebody made, each named by verify; its command, beside a job too, and its memory."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spark_2pc_sink import cli
from spark_2pc_sink.codes import Code
from spark_2pc_sink.testing import assert_same_on_both_sides, wait_until
from spark_2pc_sink.testing.kafka_broker import LocalBroker
from spark_2pc_sink.verification.report import Difference
from tests.conformance.raw_client import RawClient, code_of
from tests.conftest import StartKafka
from tests.harness.bombs import bomb
from tests.harness.damage import HISTORY, STATE, back_up, delete_records, lose_tail, restore
from tests.harness.json_contract import read_output
from tests.harness.sql import sessions, sql_session
from tests.harness.written_pair import TABLE, WrittenPair, rows_of
from tests.integration.verification.conftest import BATCHES, MakePair

#: Kind -> key, batch and side of each difference that test_one_row makes.
KINDS = {
    "missing_in_table": ("id=1003", 1, None),
    "differing": ("id=3007", 3, None),
    "twice": ("id=2009", None, "table"),
    "missing_in_kafka": ("id=77", None, None),
}


def found(pair: WrittenPair, **counts: int) -> list[Difference]:
    """The differences, which are these and no others."""
    report = pair.verify()
    assert (report.verdict, dict(report.counts)) == ("different", counts), str(report)
    return list(report.differences)


def place_of(difference: Difference) -> dict[str, object]:
    return {"topic": difference.topic, "partition": difference.partition, "offset": difference.offset}


@pytest.fixture(params=["append", "upsert"])
def pair(request: pytest.FixtureRequest, make_pair: MakePair) -> WrittenPair:
    """A pair with `BATCHES`, appended or upserted."""
    made = make_pair(upsert=request.param == "upsert")
    made.write(*BATCHES)
    return made


def test_one_row(pair: WrittenPair) -> None:
    report = assert_same_on_both_sides(**pair.sides())
    rows = len({row[0] for batch in BATCHES for row in batch}) if pair.upsert else sum(map(len, BATCHES))
    assert (report.records, report.rows) == (sum(map(len, BATCHES)), rows)
    assert [(batch.batch, batch.same, batch.digest_same) for batch in report.batches] == [
        (number, True, True) for number in range(len(BATCHES))
    ]
    assert (report.columns, report.up_to, report.not_checked) == (("id", "payload"), len(BATCHES) - 1, ())
    pair.sql(f"ALTER TABLE {TABLE} DROP CONSTRAINT IF EXISTS {TABLE}_pkey")
    pair.sql(f"DELETE FROM {TABLE} WHERE id = 1003")
    with pytest.raises(AssertionError, match="id=1003"):
        assert_same_on_both_sides(**pair.sides())
    pair.sql(f"UPDATE {TABLE} SET payload = payload || ' ' WHERE id = 3007")
    pair.sql(f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE id = 2009")
    pair.sql(f"INSERT INTO {TABLE} VALUES (77, 'by hand')")
    differences: dict[str, Difference] = {each.kind: each for each in found(pair, **dict.fromkeys(KINDS, 1))}
    assert {kind: (each.key, each.batch, each.side) for kind, each in differences.items()} == KINDS
    for kind, number in (("missing_in_table", 1003), ("differing", 3007)):
        assert place_of(differences[kind]) == pair.place(number)
    assert differences["differing"].text.startswith("payload is ")
    assert (differences["differing"].row or {})["id"] == 3007


@pytest.mark.parametrize(
    ("upsert", "counts"), [(False, {"missing_in_table": 45}), (True, {"missing_in_table": 40, "differing": 5})]
)
def test_a_table_that_was_restored_from_a_backup(make_pair: MakePair, upsert: bool, counts: dict[str, int]) -> None:
    """What came after the backup is missing, or is as it was before; everything else is there."""
    pair = make_pair(upsert=upsert)
    pair.write(*BATCHES[:2])
    back_up(pair)
    pair.write(*BATCHES[2:])
    restore(pair, TABLE)
    differences = found(pair, **counts)
    assert {difference.batch for difference in differences} <= {2, 3}
    changed = {(difference.key, difference.batch) for difference in differences if difference.kind == "differing"}
    assert changed == ({(f"id={number}", 2) for number in range(5)} if upsert else set())


def test_a_database_that_was_restored_from_a_backup(appended: WrittenPair) -> None:
    """State row, history and table: no batch claims what Kafka has beyond the backup."""
    pair = appended
    back_up(pair)
    pair.write([(4_000 + number, "after") for number in range(6)])
    restore(pair, TABLE, STATE, HISTORY)
    differences = found(pair, missing_in_table=6, gap=3)
    missing = [difference for difference in differences if difference.kind == "missing_in_table"]
    assert {difference.key for difference in missing} == {f"id={4_000 + number}" for number in range(6)}
    gaps = [difference for difference in differences if difference.kind == "gap"]
    ends = {partition: last for partition, (_, last) in pair.offsets(3).items()}
    assert {gap.partition for gap in gaps} == set(ends)
    assert all(gap.offset is not None and gap.offset > ends[gap.partition or 0] for gap in gaps)


# --- Kafka ---------------------------------------------------------------------------------------------------------


def test_a_log_that_lost_its_beginning(appended: WrittenPair) -> None:
    """As by retention: the first batch is gone, and of the second what one partition had."""
    pair = appended
    before = {partition: first for partition, (first, _) in pair.offsets(1).items()}
    delete_records(pair.broker, pair.topic, before | {1: pair.offsets(1)[1][1] + 1})
    report = pair.verify()
    assert set(report.counts) == {"truncated", "missing_in_kafka"}, str(report)
    lost = {(0, partition): at for partition, at in pair.offsets(0).items()} | {(1, 1): pair.offsets(1)[1]}
    found = {
        (difference.batch, difference.partition): (difference.offset, difference.last_offset)
        for difference in report.differences
        if difference.kind == "truncated"
    }
    assert found == lost, str(report)
    assert report.counts["missing_in_kafka"] == sum(last - first + 1 for first, last in lost.values())


def test_a_log_that_lost_its_end(start_kafka: StartKafka, make_pair: MakePair) -> None:
    """As where a leader fails that was ahead of its followers and its disk: two partitions lose the last batch."""
    broker = start_kafka()
    if not isinstance(broker, LocalBroker):
        pytest.skip("the files of a log can be cut where the broker is a local process")
    pair = make_pair(upsert=False, broker=broker)
    pair.write(*BATCHES)
    lost = {partition: first for partition, (first, _) in pair.offsets(3).items() if partition}
    rows = sum(last - first + 1 for partition, (first, last) in pair.offsets(3).items() if partition)
    lose_tail(broker, pair.topic, lost)
    report = pair.verify()
    assert report.verdict == "different"
    truncated = [each for each in report.differences if each.kind == "truncated"]
    assert {(each.batch, each.partition) for each in truncated} == {(3, 1), (3, 2)}, str(report)
    assert report.counts["missing_in_kafka"] == rows, str(report)
    assert {each.batch for each in report.differences if each.batch is not None} == {3}


DEADLINE_S = 60
BATCHES_BESIDE = 8
#: Beyond what the command takes for a pair in order.
GROWTH_MIB_MAX = 64
NOT_CHECKED = 5
#: A command of ``spark-2pc``, which says last on standard error what memory its process took.
_COMMAND = (
    "import sys; from spark_2pc_sink import cli; from tests.harness.bombs import peak_mib; "
    "code = cli.main(sys.argv[1:]); print(peak_mib(), file=sys.stderr); sys.exit(code)"
)


def words(pair: WrittenPair, *more: str) -> list[str]:
    sides = ["--bootstrap-server", pair.broker.bootstrap, "--database", pair.database]
    shape = ["--mode", "upsert" if pair.upsert else "append", "--keys", "id"]
    return ["verify", *sides, "--transactional-id", pair.transactional_id, *shape, *more]


def test_exit_codes_and_json(appended: WrittenPair, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*more: str) -> dict[str, Any]:
        code = cli.main([*words(appended, *more), "--json"])
        found = read_output(capsys.readouterr().out)
        assert (found["command"], found["exit_code"]) == ("verify", code)
        return found

    table = ("--table", TABLE)
    same = run(*table)
    assert (same["exit_code"], same["verdict"], same["records"], same["up_to"]) == (0, "same", 85, 3)
    assert run(*table, "--last", "1")["records"] == 20
    appended.sql(f"DELETE FROM {TABLE} WHERE id = 1003")
    assert cli.main(words(appended, *table)) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{appended.transactional_id}: both sides are DIFFERENT")
    assert lines[-1].startswith("  next: write files with what is missing")
    different = run(*table)
    assert (different["exit_code"], different["counts"]) == (3, {"missing_in_table": 1})
    assert different["differences"][0].items() >= {"key": "id=1003", "batch": 1, **appended.place(1003)}.items()
    assert run()["exit_code"] == 3  # the driver has noted table, mode and keys
    appended.sql("TRUNCATE kafka_transaction_state_actions")
    unsure = run()
    assert (unsure["exit_code"], unsure["not_checked"][0]["what"]) == (5, "the table")
    assert run("--table", "nowhere")["exit_code"] == 2
    assert run(*table, "--since", "99")["error"]["type"] == "ConfigurationError"
    unknown = run(*table, "--transactional-id", "nobody")
    assert (unknown["exit_code"], unknown["known"]) == (4, False)


def test_ctrl_c_ends_it_whatever_the_database_does(appended: WrittenPair) -> None:
    """As in the middle of a large table; here the table is locked."""
    waiting = "wait_event_type = 'Lock'"
    with sql_session(appended.database) as cursor:
        cursor.execute(f"BEGIN; LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
        command = [sys.executable, "-m", "spark_2pc_sink.cli", *words(appended, "--table", TABLE)]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: sessions(appended.database, waiting) != [], what="verify to wait")
            program.send_signal(signal.SIGINT)
            _, error = program.communicate(timeout=DEADLINE_S)
        finally:
            program.kill()
    assert program.returncode == 130, error
    assert error.endswith("spark-2pc: interrupted\n")


def test_beside_a_job_that_runs(make_pair: MakePair) -> None:
    """It compares up to a batch that is decided, and calls nothing a difference that is on its way."""
    pair = make_pair(upsert=True)
    batches = [[*rows_of(number, 50), *rows_of(0, 10, note=f"by {number}")] for number in range(BATCHES_BESIDE)]
    batches[0] = rows_of(0, 50)
    pair.write(batches[0])
    with ThreadPoolExecutor(1) as job:
        running = job.submit(pair.write, *batches[1:])
        reports = [pair.verify()]
        while not running.done():
            reports.append(pair.verify())
        running.result()
    reports.append(pair.verify())
    assert {report.verdict for report in reports} == {"same"}, "\n".join(map(str, reports))
    newest = [report.up_to for report in reports]
    assert newest == sorted(newest, key=lambda batch: batch or 0)
    assert newest[-1] == BATCHES_BESIDE - 1


def verify(pair: WrittenPair) -> tuple[int, str, int]:
    """``spark-2pc verify`` in a process of its own: exit code, why it has not checked, peak of memory in MiB."""
    command = [sys.executable, "-c", _COMMAND, *words(pair, "--table", TABLE, "--json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode >= 0, f"a signal ended it: {done.returncode}, {done.stderr}"
    parts = read_output(done.stdout)["not_checked"]
    why = next((part["why"] for part in parts if part["what"] == "the rest"), "")
    return done.returncode, why, int(done.stderr.split()[-1])


def test_a_batch_of_a_megabyte_that_becomes_one_gigabyte(make_pair: MakePair) -> None:
    """D13: Kafka takes it, as its one record is in order; librdkafka has no bound for gzip."""
    pair = make_pair(upsert=False)
    pair.write(rows_of(0))
    code, why, usual_mib = verify(pair)
    assert (code, why) == (0, "")
    batch = bomb("one value of 900 MB of gzip")
    offset = pair.offsets(0)[0][1] + 2
    with RawClient(pair.broker.bootstrap) as client:
        assert code_of(client, batch, pair.topic) == Code.NONE
    code, why, peak_mib = verify(pair)
    assert code == NOT_CHECKED
    assert (
        f"the batch at offset {offset} of {pair.topic}-0, {len(batch)} bytes: its GZIP data cannot be read: it "
        "decompresses to more than 100000000 bytes; kafka-dump-log.sh shows its producer"
    ) in why
    assert peak_mib - usual_mib < GROWTH_MIB_MAX
