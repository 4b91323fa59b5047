"""Which Kafka partition a row goes to, and which task writes that partition.

Each partition is written by exactly one task, because its records carry one run of sequence numbers. The owner of a
partition depends on its topic's name and its number alone: a driver, the JVM that shuffles, and a task agree on it
without talking to each other.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.wire.partitioner import NO_PARTITION, partition_for_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, SparkSession

#: The seed of Spark's hash() and of its hash partitioning (HashPartitioning.partitionIdExpression).
_SPARK_HASH_SEED = 42
#: Numbers tried until every task has one; a hash that needed more for any real number of tasks would not be one.
_SALTS_MAX = 1 << 20
_salts: dict[int, tuple[int, ...]] = {}


def owner_sql(topic_sql: str, partition_sql: str, tasks: int) -> str:
    """The task that owns a partition, as SQL; the same as `owner_of`."""
    return f"CAST(pmod(crc32(CAST({topic_sql} AS BINARY)) + ({partition_sql}), {tasks}) AS INT)"


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


def partitions_of(
    keys: pa.Array, topics: Sequence[str] | str, partition_count: Callable[[str], int]
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The partition of each row by its key, as Java's default partitioner; `NO_PARTITION` where the key is null.

    Args:
        keys: string or binary.
        topics: one topic for all rows, or one per row.
        partition_count: how many partitions a topic has.
    """
    if isinstance(topics, str):
        return partition_for_keys(keys, partition_count(topics))
    partitions = np.full(len(keys), NO_PARTITION, dtype=np.int32)
    names = np.asarray(topics, dtype=object)
    for topic in set(topics):
        rows = np.flatnonzero(names == topic)
        partitions[rows] = partition_for_keys(keys.take(pa.array(rows)), partition_count(topic))
    return partitions


def spread(row_count: int, partitions: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Share rows out over partitions in contiguous runs, as a sticky partitioner does for rows without a key."""
    chosen = np.arange(row_count, dtype=np.int64) * len(partitions) // max(row_count, 1)
    return np.asarray(partitions, dtype=np.int32)[chosen]


def check_partitions(
    partitions: np.ndarray[Any, np.dtype[np.int32]],
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


def partition_column(partition_count: Callable[[str], int], topic: str | Column, key: Column) -> Column:
    """A column of partition numbers by key, evaluated over Arrow in a Python worker.

    Rows without a key get a number that only spreads them: the task that receives them chooses among its own.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415 - Spark's convention; only the driver needs it

    def for_rows(topics: Sequence[str] | str, keys: pa.Array) -> pa.Array:
        partitions = partitions_of(keys, topics, partition_count)
        without = np.flatnonzero(partitions == NO_PARTITION)
        partitions[without] = np.arange(len(without), dtype=np.int32)
        return pa.array(partitions)

    if isinstance(topic, str):

        def of_key(keys: pa.Array) -> pa.Array:
            return for_rows(topic, keys)

        return _vectorized(F, of_key, 1)(key)

    def of_topic_and_key(topics: pa.Array, keys: pa.Array) -> pa.Array:
        return for_rows(topics.to_pylist(), keys)

    return _vectorized(F, of_topic_and_key, 2)(topic, key)


def _vectorized(functions: Any, compute: Callable[..., pa.Array], arguments: int) -> Callable[..., Column]:
    """An arrow_udf, or a pandas_udf on Spark 4.0, which has none."""
    import pandas as pd  # noqa: PLC0415 - see above

    if hasattr(functions, "arrow_udf"):
        annotated = compute
        names = list(compute.__annotations__)
        annotated.__annotations__ = dict.fromkeys(names, pa.Array)
        made: Callable[..., Column] = functions.arrow_udf(annotated, "int")
        return made

    def on_series(*series: pd.Series) -> pd.Series:
        return pd.Series(compute(*(pa.Array.from_pandas(one) for one in series)).to_numpy(zero_copy_only=False))

    def one(keys: pd.Series) -> pd.Series:
        return on_series(keys)

    def two(topics: pd.Series, keys: pd.Series) -> pd.Series:
        return on_series(topics, keys)

    chosen = one if arguments == 1 else two
    chosen.__annotations__ = dict.fromkeys(chosen.__annotations__, pd.Series)
    fallback: Callable[..., Column] = functions.pandas_udf(chosen, "int")
    return fallback
