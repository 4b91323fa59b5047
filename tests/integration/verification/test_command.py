"""``spark-2pc verify`` on real servers: its exit codes, JSON and words for people, beside a job, and its memory."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spark_2pc_sink import cli
from spark_2pc_sink.codes import Code
from spark_2pc_sink.testing import wait_until
from tests.conformance.raw_client import RawClient, code_of
from tests.harness.bombs import bomb
from tests.harness.json_contract import read_output
from tests.harness.sql import sessions, sql_session
from tests.harness.written_pair import TABLE, WrittenPair, rows_of
from tests.integration.verification.conftest import MakePair

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
    """The command's words for a pair."""
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
            wait_until(lambda: sessions(appended.database, waiting) != [], deadline_s=DEADLINE_S, what="verify to wait")
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
