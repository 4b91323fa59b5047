"""SIGKILL of the reference coordinator, again and again, under load: nothing acknowledged is lost or half there.

Writers go on over every crash, as producers do. What each of them was told (committed, aborted, or nothing certain) is
compared with what an independent reader finds when all is over. `SPARK_2PC_KILLS` says how many kills (default 8).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from spark_2pc_sink.errors import DualWriteError
from spark_2pc_sink.producer import TransactionalWriter
from spark_2pc_sink.testing import ReferenceCoordinator, read_topic, wait_until

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
    wait_until(lambda: begun(told) >= wanted, deadline_s=60, what="transactions after the last kill")


def begun(told: dict[str, Told]) -> int:
    return sum(len(each.rows) for each in told.values())


def ends(broker: ReferenceCoordinator, isolation: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "ends", "isolation.level": isolation})
    try:
        return [consumer.get_watermark_offsets(TopicPartition("load", number), 10)[1] for number in range(PARTITIONS)]
    finally:
        consumer.close()
