"""Which Kafka partition a row goes to, and which task writes that partition.

Each partition is written by exactly one task, because its records carry one run of sequence numbers. The owner of a
partition depends on its topic's name and its number alone: a driver and its tasks agree on it without talking to each
other.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_2pc_sink.errors import UnstorableValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

#: The seed of Spark's hash() and of its hash partitioning (HashPartitioning.partitionIdExpression).
_SPARK_HASH_SEED = 42
#: Numbers tried until every task has one; a hash that needed more for any real number of tasks would not be one.
_SALTS_MAX = 1 << 20
_salts: dict[int, tuple[int, ...]] = {}


def owner_of(topic: str, partition: int, tasks: int) -> int:
    """The task (0 to ``tasks`` - 1) that owns a partition."""
    return (zlib.crc32(topic.encode()) + partition) % tasks


def owned_partitions(topic: str, partition_count: int, *, task: int, tasks: int) -> tuple[int, ...]:
    """The partitions of a topic that one task owns; empty when there are more tasks than partitions."""
    return tuple(p for p in range(partition_count) if owner_of(topic, p, tasks) == task)


def balanced_salts(spark: SparkSession, tasks: int) -> tuple[int, ...]:
    """For each task a number that Spark's own hash partitioning sends to it.

    ``repartition(n, expression)`` takes pmod(hash(expression), n); hashing the task number itself would leave some
    tasks empty and give others two shares. The hash is asked of the JVM once per number of tasks.
    """
    known = _salts.get(tasks)
    if known is not None:
        return known
    jvm: Any = spark._jvm  # noqa: SLF001 - a job of Spark's for some thirty hashes would cost each query a second
    hasher = jvm.org.apache.spark.unsafe.hash.Murmur3_x86_32(_SPARK_HASH_SEED)
    salts: dict[int, int] = {}
    for salt in range(_SALTS_MAX):
        salts.setdefault(hasher.hashInt(salt) % tasks, salt)
        if len(salts) == tasks:
            break
    found = _salts[tasks] = tuple(salts[task] for task in range(tasks))
    return found


def spread(row_count: int, partitions: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Share rows out over partitions in contiguous runs, as a sticky partitioner does for rows without a key."""
    chosen = np.arange(row_count, dtype=np.int64) * len(partitions) // max(row_count, 1)
    return np.asarray(partitions, dtype=np.int32)[chosen]


def check_partitions(
    partitions: np.ndarray[Any, np.dtype[np.int32]] | np.ndarray[Any, np.dtype[np.int64]],
    topic: str,
    partition_count: int,
    describe_row: Callable[[int], str],
) -> None:
    """Refuse a partition number that the topic does not have.

    Raises:
        UnstorableValueError: names the row by ``describe_row`` of its index.
    """
    wrong = np.flatnonzero((partitions < 0) | (partitions >= partition_count))
    if len(wrong):
        raise UnstorableValueError(
            column="partition",
            row_key=describe_row(int(wrong[0])),
            value=str(int(partitions[wrong[0]])),
            rule=f"topic {topic!r} has partitions 0 to {partition_count - 1}",
        )
