"""Which rows go to which partition: Java's default partitioner, for whole Arrow batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.cluster import Cluster, unknown_topic
from spark_2pc_sink.wire.arrow_layout import ArrowColumn, as_one_array
from spark_2pc_sink.wire.partitioner import NO_PARTITION, partition_for_keys
from spark_2pc_sink.wire.record_rows import Rows

#: A pyarrow.RecordBatch or pyarrow.Table.
ArrowRows: TypeAlias = Any

#: Up to here NumPy sorts by counting, in linear time.
_INT16_MAX: Final = 2**15 - 1
_COLUMNS: Final = ("topic", "partition", "key", "value", "headers")


@dataclass(frozen=True)
class Columns:
    """The columns of some rows, each of the same length; None where there is no such column."""

    topic: ArrowColumn | None
    partition: ArrowColumn | None
    key: ArrowColumn | None
    value: ArrowColumn
    headers: ArrowColumn | None

    def take(self, rows: npt.NDArray[np.int64]) -> Columns:
        """The given rows, in the given order, as a copy."""
        picked = pa.array(rows)
        return self._each(lambda column: column.take(picked))

    def slice(self, start: int, stop: int) -> Columns:
        """The rows from ``start`` up to ``stop``."""
        return self._each(lambda column: column.slice(start, stop - start))

    def _each(self, change: Callable[[ArrowColumn], ArrowColumn]) -> Columns:
        def changed(column: ArrowColumn | None) -> ArrowColumn | None:
            return None if column is None else change(column)

        return Columns(
            topic=changed(self.topic),
            partition=changed(self.partition),
            key=changed(self.key),
            value=change(self.value),
            headers=changed(self.headers),
        )


@dataclass(frozen=True)
class PartitionRows:
    """Rows of one partition, in the order in which they came."""

    partition: TopicPartition
    rows: Rows


class Router:
    """Chooses partitions.

    Args:
        cluster: knows how many partitions a topic has.
        topic: of rows that name none.
    """

    def __init__(self, cluster: Cluster, topic: str | None) -> None:
        self._cluster = cluster
        self._topic = topic
        self._counts: dict[str, int] = {}
        self._calls = 0

    def new_transaction(self) -> None:
        """Partitions may have been added to topics since the last transaction."""
        self._counts.clear()

    def columns(self, rows: ArrowRows) -> Columns:
        """Check that rows can be sent, and take their columns apart.

        Raises:
            LocalProtocolError: a column is missing or unknown, or a row has no topic.
        """
        names = set(rows.schema.names)
        columns = {name: as_one_array(rows.column(name)) for name in _COLUMNS if name in names}
        unknown = sorted(names - set(_COLUMNS))
        if unknown or "value" not in columns:
            wrong = f"unknown columns {unknown}" if unknown else "no column 'value'"
            raise _refused(wrong, f"the columns are some of {', '.join(_COLUMNS)}, at least value")
        topic, partition = columns.get("topic"), columns.get("partition")
        if self._topic is None and (topic is None or topic.null_count):
            raise _refused("a row without a topic", "name it in a column 'topic', or give topic= to the writer")
        if partition is not None and not pa.types.is_integer(partition.type):
            raise _refused(f"column 'partition' of type {partition.type}", "partitions are integers")
        return Columns(topic, partition, columns.get("key"), columns["value"], columns.get("headers"))

    def route(self, columns: Columns) -> list[PartitionRows]:
        """Split rows by partition; those of one partition keep their order.

        Raises:
            UnknownTopicError: a topic, or a partition that a row names, does not exist.
            LocalProtocolError: a column is not bytes.
            UnstorableValueError: a header without a key.
            KafkaTimeoutError: no broker answered.
        """
        self._calls += 1
        return [part for topic, rows in self._by_topic(columns) for part in self._by_partition(topic, rows)]

    def _by_topic(self, columns: Columns) -> list[tuple[str, Columns]]:
        if not len(columns.value):
            return []
        if columns.topic is None:
            return [(self._topic or "", columns)]
        named = columns.topic if self._topic is None else pc.fill_null(columns.topic, self._topic)
        encoded = named.dictionary_encode()
        order, runs = runs_of(np.asarray(encoded.indices))
        taken = columns if order is None else columns.take(order)
        return [(encoded.dictionary[code].as_py(), taken.slice(start, stop)) for code, start, stop in runs]

    def _by_partition(self, topic: str, columns: Columns) -> list[PartitionRows]:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._cluster.partition_counts([topic])[topic]
        order, runs = runs_of(self._partitions(topic, columns, count))
        taken = columns if order is None else columns.take(order)
        rows = Rows.of(taken.key, taken.value, taken.headers)
        return [PartitionRows(TopicPartition(topic, number), rows.slice(start, stop)) for number, start, stop in runs]

    def _partitions(self, topic: str, rows: Columns, count: int) -> npt.NDArray[np.int64]:
        """The partition of each row."""
        numbers = np.full(len(rows.value), NO_PARTITION, np.int64)
        if rows.key is not None:
            numbers = partition_for_keys(rows.key, count).astype(np.int64)
        if rows.partition is not None:
            given = np.asarray(pc.fill_null(rows.partition, NO_PARTITION)).astype(np.int64)
            outside = given[np.asarray(rows.partition.is_valid()) & ((given < 0) | (given >= count))]
            if len(outside):
                raise unknown_topic(topic, f"it has {count} partitions, and a row names {outside[0]}")
            numbers = np.where(np.asarray(rows.partition.is_valid()), given, numbers)
        # Java's producer sticks to one partition for a batch of keyless records, then takes another (KIP-480).
        return np.where(numbers == NO_PARTITION, self._calls % count, numbers)


def runs_of(numbers: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64] | None, list[tuple[int, int, int]]]:
    """How rows of the same number come together, smallest number first; those of one number keep their order.

    Returns:
        the order that rows are taken in (None: as they are), and each number with its first row in that order and one
        past its last.
    """
    if not len(numbers):
        return None, []
    order = None
    if (np.diff(numbers) < 0).any():
        narrow = numbers.astype(np.int16) if numbers.max() <= _INT16_MAX else numbers
        order = np.argsort(narrow, kind="stable")
        numbers = numbers[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    bounds = [*starts.tolist(), len(numbers)]
    return order, [(number, *bound) for number, bound in zip(numbers[starts].tolist(), pairwise(bounds), strict=True)]


def _refused(state: str, rule: str) -> LocalProtocolError:
    return LocalProtocolError(operation="append", state=state, rule=rule)
