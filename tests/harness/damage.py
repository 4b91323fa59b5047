"""Damage to the two sides of a job: topics and logs that are deleted, state rows that are lost or set back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.testing.kafka_broker import LocalBroker
from tests.harness.driver_job import Job
from tests.harness.providers import Broker
from tests.harness.written_pair import TABLE, WrittenPair

STATE: Final = "kafka_transaction_state"
HISTORY: Final = f"{STATE}_history"
ACTIONS: Final = f"{STATE}_actions"
#: Keys of batch N begin at N times this (`driver_job.make_rows`).
_KEYS_OF_A_BATCH: Final = 100_000
DEADLINE_S: Final = 60
#: Of a record batch (Kafka's DefaultRecordBatch): base offset and length in bytes of all that follows them.
_BATCH_HEAD: Final = struct.Struct(">qi")


# --- Kafka --------------------------------------------------------------------------------------------------------


def delete_topic(job: Job) -> None:
    """Delete the job's topic, and wait until no broker knows it."""
    admin = AdminClient({"bootstrap.servers": job.broker.bootstrap})
    for future in admin.delete_topics([job.topic]).values():
        future.result(DEADLINE_S)
    wait_until(lambda: job.topic not in admin.list_topics(timeout=10).topics, what="the topic to be gone")


def remake_topic(job: Job) -> None:
    delete_topic(job)
    job.broker.create_topic(job.topic, partitions=3)


def delete_log(job: Job, partitions: Sequence[int] = range(3)) -> None:
    """Delete every record that these partitions have, and with it every control marker."""
    delete_records(job.broker, job.topic, dict.fromkeys(partitions, OFFSET_END))


def delete_records(broker: Broker, topic: str, before: dict[int, int]) -> None:
    """Delete from the start of each partition all records before an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    ends = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
    for future in admin.delete_records(ends).values():
        future.result(DEADLINE_S)


def lose_tail(broker: LocalBroker, topic: str, keep: dict[int, int]) -> None:
    """Let partitions lose all from an offset on, as where a leader fails that was ahead of its disk and its followers.

    The broker is killed and started again on what is left.
    """
    broker.kill()
    for partition, offset in keep.items():
        (folder,) = broker._directory.rglob(f"{topic}-{partition}")
        (segment,) = folder.glob("*.log")
        _cut(segment, offset)
        for derived in [*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.snapshot")]:
            derived.unlink()
    broker.start()


def _cut(segment: Path, offset: int) -> None:
    """Keep the record batches of a log file that begin before an offset."""
    content, place = segment.read_bytes(), 0
    while place < len(content):
        base, length = _BATCH_HEAD.unpack_from(content, place)
        if base >= offset:
            break
        place += _BATCH_HEAD.size + length
    assert place < len(content), f"{segment} has nothing from offset {offset} on"
    with segment.open("r+b") as file:
        file.truncate(place)


# --- the database -------------------------------------------------------------------------------------------------


def lose_row(job: Job, *, history: bool) -> None:
    """Delete the state row; with ``history`` its history too."""
    for table in (STATE, HISTORY) if history else (STATE,):
        job.sql(f"DELETE FROM {table}")


@dataclass(frozen=True)
class Backup:
    """A copy of the state row, and the batches that the table had when it was made."""

    job: Job
    batches: int
    actions: int

    @classmethod
    def make(cls, job: Job, *, batches: int) -> Backup:
        """Keep the state row as it is now."""
        job.sql(f"CREATE TABLE backup AS SELECT * FROM {STATE}")
        ((actions,),) = job.sql(f"SELECT max(number) FROM {ACTIONS}")
        return cls(job, batches, actions)

    def restore(self) -> None:
        """Set table, state row, history and actions back; the history of before it is lost as well."""
        self.job.sql(f"DELETE FROM {STATE}")
        self.job.sql(f"INSERT INTO {STATE} SELECT * FROM backup")
        self.job.sql(f"DELETE FROM {HISTORY}")
        self.job.sql(f"DELETE FROM {ACTIONS} WHERE number > {self.actions}")
        self.job.sql(f"DELETE FROM {self.job.table} WHERE id >= {self.batches * _KEYS_OF_A_BATCH}")


def back_up(pair: WrittenPair) -> None:
    """Keep the table, the state row and its history as they are now."""
    for table in (TABLE, STATE, HISTORY):
        pair.sql(f"CREATE TABLE backup_{table} AS SELECT * FROM {table}")


def restore(pair: WrittenPair, *tables: str) -> None:
    for table in tables:
        pair.sql(f"DELETE FROM {table}")
        pair.sql(f"INSERT INTO {table} SELECT * FROM backup_{table}")
