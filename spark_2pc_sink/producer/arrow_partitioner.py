"""The partitioner of Arrow batches: Java's default partitioner for whole columns.

A row goes to the partition that it names, else to the one of its key, else to one that is free.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.wire.arrow_layout import ArrowColumn, Int64Array
from spark_2pc_sink.wire.partitioner import NO_PARTITION, partition_for_keys
from spark_2pc_sink.wire.record_rows import Rows

#: Up to here NumPy sorts by counting, in linear time.
_INT16_MAX: Final = 2**15 - 1


@dataclass(frozen=True)
class RecordColumns:
    """The columns of some rows, each of the same length; None where there is no such column.

    Attributes:
        topic: of each row, never null.
        partition: integers, null where the key decides.
        key: bytes or text.
        value: bytes or text.
        headers: see `Rows.of`.
    """

    topic: ArrowColumn | None
    partition: ArrowColumn | None
    key: ArrowColumn | None
    value: ArrowColumn
    headers: ArrowColumn | None


@dataclass(frozen=True)
class PartitionRows:
    """Rows of one partition, in the order in which they came.

    Attributes:
        partition: where to.
        rows: what becomes records.
        taken: the numbers that rows of one topic have in the batch, partition by partition; None for all as they are.
        start: of these rows among ``taken``.
    """

    partition: TopicPartition
    rows: Rows
    taken: ArrowColumn | None
    start: int


class ArrowPartitioner(ABC):
    """Splits rows by partition. A subclass knows topics, and which partitions rows without a key may go to.

    Args:
        topic: of all rows where there is no column of topics.
    """

    def __init__(self, topic: str | None) -> None:
        self._topic = topic

    def split(self, columns: RecordColumns) -> Iterator[PartitionRows]:
        """The rows by topic and partition; those of one partition keep their order.

        Raises:
            LocalProtocolError: a column is not bytes.
            UnstorableValueError: a header without a key.
            Exception: what the subclass raises for a topic or a partition that does not exist.
        """
        if not len(columns.value):
            return
        for topic, chosen in self._by_topic(columns):
            order, runs = runs_of(self._partitions(columns, topic, chosen))
            taken = chosen if order is None else pa.array(order) if chosen is None else chosen.take(pa.array(order))
            rows = Rows.of(_take(columns.key, taken), _take(columns.value, taken), _take(columns.headers, taken))
            for partition, start, stop in runs:
                yield PartitionRows(TopicPartition(topic, partition), rows.slice(start, stop), taken, start)

    @abstractmethod
    def _partition_count(self, topic: str, columns: RecordColumns, row: int) -> int:
        """How many partitions a topic has, to which ``row`` is the first to go."""

    @abstractmethod
    def _free_partitions(self, topic: str, count: int) -> Sequence[int]:
        """The partitions, of ``count``, that rows may go to which have neither a partition nor a key."""

    @abstractmethod
    def _no_partition(self, topic: str, count: int, columns: RecordColumns, row: int) -> Exception:
        """The error for a row that names a partition which its topic does not have."""

    def _by_topic(self, columns: RecordColumns) -> Iterator[tuple[str, ArrowColumn | None]]:
        """Each topic with the numbers of its rows; None for all rows."""
        if columns.topic is None:
            yield self._topic or "", None
            return
        encoded = columns.topic.dictionary_encode()
        topics = encoded.dictionary.cast(pa.binary()).to_pylist()
        order, runs = runs_of(np.asarray(encoded.indices))
        numbers = pa.array(np.arange(len(columns.topic)) if order is None else order)
        for code, start, stop in runs:
            # What is not UTF-8 is no topic's name, and does not become one.
            yield topics[code].decode(errors="backslashreplace"), numbers.slice(start, stop - start)

    def _partitions(self, columns: RecordColumns, topic: str, chosen: ArrowColumn | None) -> npt.NDArray[Any]:
        """The partition of each row of one topic."""
        first, row_count = (0, len(columns.value)) if chosen is None else (chosen[0].as_py(), len(chosen))
        count = self._partition_count(topic, columns, first)
        partitions = np.full(row_count, NO_PARTITION, np.int32)
        key = _take(columns.key, chosen)
        if key is not None:
            partitions = partition_for_keys(key, count)
        given = _take(columns.partition, chosen)
        if given is not None:
            present = np.asarray(given.is_valid())
            numbers = np.asarray(pc.fill_null(given, 0))
            wrong = np.flatnonzero(present & ((numbers < 0) | (numbers >= count)))
            if len(wrong):
                row = int(wrong[0])
                raise self._no_partition(topic, count, columns, row if chosen is None else chosen[row].as_py())
            # Only now: what has passed the check fits, what has not might wrap round to a number that would.
            partitions = np.where(present, numbers, partitions).astype(np.int32)
        free = np.flatnonzero(partitions == NO_PARTITION)
        if len(free):
            partitions = partitions.copy()
            partitions[free] = spread(len(free), self._free_partitions(topic, count))
        return partitions


def spread(row_count: int, partitions: Sequence[int]) -> npt.NDArray[np.int32]:
    """Share rows out over partitions in contiguous runs, as a sticky partitioner does for rows without a key."""
    chosen = np.arange(row_count, dtype=np.int64) * len(partitions) // max(row_count, 1)
    return np.asarray(partitions, dtype=np.int32)[chosen]


def _take(column: ArrowColumn | None, rows: ArrowColumn | None) -> Any:
    return column if column is None or rows is None else column.take(rows)


def runs_of(numbers: npt.NDArray[Any]) -> tuple[Int64Array | None, list[tuple[int, int, int]]]:
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
