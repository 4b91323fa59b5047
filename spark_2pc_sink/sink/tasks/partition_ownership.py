"""The ownership of Kafka partitions: which task writes which.

Each partition is written by exactly one task, because its records carry one run of sequence numbers. The owner of a
partition depends on its topic's name and its number alone: a driver and its tasks agree on it without talking to each
other.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
