"""The reference coordinator under SIGKILL, again and again, under load; and Kafka's own tools on it.

Writers go on over every crash, as producers do. What each of them was told (committed, aborted, or nothing certain) is
compared with what an independent reader finds when all is over. `SPARK_2PC_KILLS` says how many kills (default 8).
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from spark_2pc_sink.errors import DualWriteError
from spark_2pc_sink.producer import TransactionalWriter
from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.reference.log.partition_log import LogSettings, PartitionLog
from spark_2pc_sink.testing import CapabilityError, ReferenceCoordinator, read_topic, wait_until
from tests.harness.kafka_tools import features_tool, tool_command
from tests.unit.reference.batches import NOW_MS, append, append_in_transaction, client_batch

KILLS = int(os.environ.get("SPARK_2PC_KILLS", "8"))
WRITERS = 3
PARTITIONS = 4
ROWS_MAX = 200
#: About what a transaction takes.
TRANSACTION_S = 0.03


@dataclass
class Told:
    """What one writer knows of its transactions: the rows of each; those it was told the end of."""

    rows: dict[str, int] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    error: BaseException | None = None


@pytest.fixture
def broker() -> Iterator[ReferenceCoordinator]:
    with ReferenceCoordinator() as running:
        yield running


def write_transactions(bootstrap: str, name: str, stop: threading.Event, told: Told) -> None:
    """One transaction after the other, over every crash of the broker."""
    chance = random.Random(name)
    kafka = {"bootstrap.servers": bootstrap, "retry.backoff.ms": "10", "retry.backoff.max.ms": "50"}
    number = 0
    while not stop.is_set():
        with TransactionalWriter(transactional_id=name, kafka=kafka, topic="load", two_phase_commit=True) as writer:
            try:
                writer.init_transactions()
                while not stop.is_set():
                    number += 1
                    label = f"{name}-{number}"
                    rows = chance.randrange(1, ROWS_MAX)
                    told.rows[label] = rows
                    writer.begin_transaction()
                    writer.append(pa.table({"key": [f"{label}/{row}" for row in range(rows)], "value": [label] * rows}))
                    writer.prepare_transaction()
                    if chance.random() < 0.2:
                        writer.abort_transaction()
                        told.aborted.add(label)
                    else:
                        writer.commit_transaction()
                        told.committed.add(label)
            except DualWriteError:
                continue  # of its last transaction nothing is known; init_transactions of the next writer ends it


def run_load(name: str, bootstrap: str, stop: threading.Event, told: Told) -> None:
    try:
        write_transactions(bootstrap, name, stop, told)
    except BaseException as error:  # shown by the test, in the thread that can fail it
        told.error = error
        raise


@pytest.mark.slow
@pytest.mark.timeout(60 + 5 * KILLS)
def test_killed_under_load_nothing_acknowledged_is_lost_and_nothing_is_half_there(broker: ReferenceCoordinator) -> None:
    chance = random.Random(KILLS)
    broker.create_topic("load", partitions=PARTITIONS)
    stop, told = threading.Event(), {f"writer{number}": Told() for number in range(WRITERS)}
    threads = [
        threading.Thread(target=run_load, args=(name, broker.bootstrap, stop, each)) for name, each in told.items()
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            wait_for_load(told)
            time.sleep(chance.uniform(0, TRANSACTION_S))  # the kill may come at any instant of one
            broker.kill()
            broker.start()
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert [each.error for each in told.values()] == [None] * WRITERS
    kafka = {"bootstrap.servers": broker.bootstrap}
    for name in told:
        # Taking an id over answers when its last transaction has all its end markers.
        with TransactionalWriter(transactional_id=name, kafka=kafka, topic="load") as writer:
            writer.init_transactions()
    assert ends(broker, "read_committed") == ends(broker, "read_uncommitted")
    records = read_topic(broker.bootstrap, "load")
    found = Counter(record.value.decode() for record in records if record.value)
    rows = {label: count for each in told.values() for label, count in each.rows.items()}
    assert [key for key, count in Counter(record.key for record in records).items() if count > 1] == []
    assert {label: found[label] for label in rows if found[label] not in (0, rows[label])} == {}
    assert {label for each in told.values() for label in each.committed if not found[label]} == set()
    assert {label for each in told.values() for label in each.aborted if found[label]} == set()
    assert sum(len(each.committed) for each in told.values()) > KILLS


def wait_for_load(told: dict[str, Told]) -> None:
    """Until transactions are begun again after the last kill."""
    wanted = begun(told) + WRITERS
    wait_until(lambda: begun(told) >= wanted, what="transactions after the last kill")


def begun(told: dict[str, Told]) -> int:
    return sum(len(each.rows) for each in told.values())


def ends(broker: ReferenceCoordinator, isolation: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "ends", "isolation.level": isolation})
    try:
        return [consumer.get_watermark_offsets(TopicPartition("load", number), 10)[1] for number in range(PARTITIONS)]
    finally:
        consumer.close()


DEADLINE_S = 120


@pytest.fixture(scope="module")
def tool() -> list[str]:
    """The command; skips where there is no Java or no tool, which is a failure in CI."""
    try:
        return tool_command("kafka-dump-log.sh")
    except CapabilityError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def dump(tool: list[str], *arguments: str) -> str:
    done = subprocess.run([*tool, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def opened(directory: Path, topic: str, *, segment_bytes: int = 1 << 30, leader_epoch: int = 3) -> PartitionLog:
    settings = LogSettings(segment_bytes=segment_bytes)
    return PartitionLog.open(directory, topic=topic, partition=0, leader_epoch=leader_epoch, settings=settings)


def fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+): (\S+)", line))


def batches_in(text: str) -> list[dict[str, str]]:
    return [fields(line) for line in text.splitlines() if line.startswith("baseOffset:")]


@pytest.mark.java
async def test_data_a_transaction_and_control_batches(tmp_path: Path, tool: list[str]) -> None:
    log = opened(tmp_path, "orders")
    append(log, client_batch([b"plain", b"too"]))
    append_in_transaction(log, [b"aborted"], producer=(7, 0), sequence=0)
    log.append_marker(EndMarker(7, 1, commit=False, coordinator_epoch=4, transaction_version=2), now_ms=NOW_MS)
    append_in_transaction(log, [b"committed", b"c"], producer=(7, 1), sequence=0)
    log.append_marker(EndMarker(7, 2, commit=True, coordinator_epoch=4, transaction_version=2), now_ms=NOW_MS)
    await log.flush()
    log.close()
    text = dump(tool, "--files", str(tmp_path / "00000000000000000000.log"), "--deep-iteration", "--print-data-log")
    found = batches_in(text)
    assert [(each["baseOffset"], each["lastOffset"], each["isTransactional"], each["isControl"]) for each in found] == [
        ("0", "1", "false", "false"),
        ("2", "2", "true", "false"),
        ("3", "3", "true", "true"),
        ("4", "5", "true", "false"),
        ("6", "6", "true", "true"),
    ]
    assert {(each["isvalid"], each["magic"], each["partitionLeaderEpoch"]) for each in found} == {("true", "2", "3")}
    assert [(each["producerId"], each["producerEpoch"], each["baseSequence"]) for each in found] == [
        ("-1", "-1", "-1"),
        ("7", "0", "0"),
        ("7", "1", "-1"),
        ("7", "1", "0"),
        ("7", "2", "-1"),
    ]
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", text) == [("ABORT", "4"), ("COMMIT", "4")]
    assert re.findall(r"payload: (\w+)", text) == ["plain", "too", "aborted", "committed", "c"]


def shown(bootstrap: str) -> tuple[int, int]:
    """The finalized level, and the epoch of the features."""
    text = features_tool(bootstrap, "describe")
    found = re.search(r"transaction\.version\s.*FinalizedVersionLevel: (\d+)\s+Epoch: (\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2])


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.usefixtures("tool")
def test_a_level_that_was_answered_stays_over_a_kill() -> None:
    with ReferenceCoordinator(keep_prepared=False) as server:
        features_tool(server.bootstrap, "downgrade", "--feature", "transaction.version=0")
        server.kill()
        server.start()
        assert shown(server.bootstrap) == (0, 2)
