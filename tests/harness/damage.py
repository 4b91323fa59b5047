"""Damage to the two sides of a job: topics and logs that are deleted, state rows that are lost or set back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from spark_2pc_sink.testing import wait_until
from tests.harness.driver_job import Job

STATE: Final = "kafka_transaction_state"
HISTORY: Final = f"{STATE}_history"
ACTIONS: Final = f"{STATE}_actions"
#: Keys of batch N begin at N times this (`driver_job.make_rows`).
_KEYS_OF_A_BATCH: Final = 100_000
_GONE_DEADLINE_S: Final = 60
_ANSWER_S: Final = 30


# --- Kafka --------------------------------------------------------------------------------------------------------


def delete_topic(job: Job) -> None:
    """Delete the job's topic, and wait until no broker knows it."""
    admin = AdminClient({"bootstrap.servers": job.broker.bootstrap})
    for future in admin.delete_topics([job.topic]).values():
        future.result(_ANSWER_S)
    wait_until(
        lambda: job.topic not in admin.list_topics(timeout=10).topics,
        deadline_s=_GONE_DEADLINE_S,
        what="the topic to be gone",
    )


def remake_topic(job: Job) -> None:
    """Delete the job's topic and make one of the same name."""
    delete_topic(job)
    job.broker.create_topic(job.topic, partitions=3)


def delete_log(job: Job, partitions: Sequence[int] = range(3)) -> None:
    """Delete every record that these partitions have, and with it every control marker."""
    admin = AdminClient({"bootstrap.servers": job.broker.bootstrap})
    deleted = admin.delete_records([TopicPartition(job.topic, partition, -1) for partition in partitions])
    for future in deleted.values():
        future.result(_ANSWER_S)


# --- the database -------------------------------------------------------------------------------------------------


def lose_row(job: Job, *, history: bool) -> None:
    """Delete the state row; with ``history`` its history too."""
    for table in (STATE, HISTORY) if history else (STATE,):
        job.sql(f"DELETE FROM {table}")


@dataclass(frozen=True)
class Backup:
    """A copy of the state row, and the batches that the table had when it was made.

    Args:
        job: whose state it is.
        batches: how many.
        actions: the number of the newest action.
    """

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
