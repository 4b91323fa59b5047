"""Which rows of an Arrow batch go to which partition, and what of them becomes a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_2pc_sink.errors import UnknownTopicError, UnstorableValueError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.arrow_partitioner import runs_of
from spark_2pc_sink.sink.contract import record_expressions as names
from spark_2pc_sink.sink.tasks.partition_ownership import check_partitions, spread
from spark_2pc_sink.sink.tasks.topic_metadata import name_fault
from spark_2pc_sink.wire.partitioner import NO_PARTITION, partition_for_keys
from spark_2pc_sink.wire.record_rows import Rows

#: One row's key in an error text; longer ones are cut.
_ROW_KEY_CHARACTERS_MAX = 100


@dataclass(frozen=True)
class RoutedRows:
    """Rows of one partition, in the order in which they came.

    Attributes:
        partition: where to.
        rows: what becomes records.
        taken: the numbers that rows of one topic have in the batch, partition by partition; None for all as they are.
        start: of these rows among ``taken``.
    """

    partition: TopicPartition
    rows: Rows
    taken: Any | None
    start: int


class RowRouter:
    """Splits batches by partition: the one that a row names, else the one of its key, else one of those offered.

    Args:
        topic: of rows that name none; None when every row names its own.
        partition_count: how many partitions a topic has.
        free_partitions: of a topic and its number of partitions, those that rows without a key may go to.
    """

    def __init__(
        self,
        topic: str | None,
        partition_count: Callable[[str], int],
        free_partitions: Callable[[str, int], tuple[int, ...]],
    ) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._free_partitions = free_partitions

    def split(self, batch: pa.RecordBatch) -> Iterator[RoutedRows]:
        """The rows of a batch by partition; those of one partition keep their order.

        Raises:
            UnstorableValueError: a row names no topic, one that does not exist or a partition that its topic does not
                have, or has a header without a key.
            UnknownTopicError: the sink's own topic does not exist.
        """
        for topic, numbers in self._by_topic(batch):
            chosen = None if numbers is None else pa.array(numbers)
            partitions = self._partitions(batch, topic, chosen)
            order, runs = runs_of(partitions)
            taken = chosen if order is None else pa.array(order) if chosen is None else chosen.take(pa.array(order))
            key = _take(_column(batch, names.KEY), taken)
            value = _take(batch.column(names.VALUE), taken)
            headers = _take(_column(batch, names.HEADERS), taken)
            rows = Rows.of(key, value, headers)
            for partition, start, stop in runs:
                yield RoutedRows(TopicPartition(topic, partition), rows.slice(start, stop), taken, start)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, np.ndarray | None]]:
        topics = _column(batch, names.TOPIC)
        if topics is None:
            yield str(self._topic), None
            return
        encoded = topics.dictionary_encode()
        if encoded.null_count:
            row = int(np.flatnonzero(encoded.is_null().to_numpy(zero_copy_only=False))[0])
            raise UnstorableValueError(
                column="topic",
                row_key=describe_row(batch, row),
                value="null",
                rule="every row needs a topic, and the sink has no topic of its own",
                remedy="Correct the expression that makes the column, or pass topic='…' for the rows without one",
            )
        codes = encoded.indices.to_numpy()
        for code, topic in enumerate(encoded.dictionary.cast(pa.binary()).to_pylist()):
            # What is not UTF-8 is no topic's name, and does not become one.
            yield topic.decode(errors="backslashreplace"), np.flatnonzero(codes == code)

    def _count_of_named(self, batch: pa.RecordBatch, topic: str, row: int) -> int:
        """How many partitions a topic has that rows name, of which ``row`` is the first.

        A topic that does not exist is the fault of that value: to run the batch again would not help.
        """
        fault, remedy = name_fault(topic), "Correct the expression that makes the column"
        if fault is None:
            try:
                return self._partition_count(topic)
            except UnknownTopicError:
                fault = "Kafka has no topic of this name, and the sink creates none"
                remedy = "Create the topic, or correct the expression that makes the column"
        raise UnstorableValueError(
            column="topic",
            row_key=describe_row(batch, row),
            value=repr(topic),
            rule=fault,
            remedy=remedy,
        )

    def _partitions(self, batch: pa.RecordBatch, topic: str, chosen: pa.Array | None) -> np.ndarray:
        """The partition of each row of one topic."""
        if chosen is None:
            count, row_count = self._partition_count(topic), batch.num_rows
        else:
            count, row_count = self._count_of_named(batch, topic, chosen[0].as_py()), len(chosen)
        partitions = np.full(row_count, NO_PARTITION, dtype=np.int32)
        key = _take(_column(batch, names.KEY), chosen)
        if key is not None:
            partitions = partition_for_keys(key, count)
        given = _take(_column(batch, names.PARTITION), chosen)
        if given is not None:
            present = given.is_valid().to_numpy(zero_copy_only=False)
            numbers = given.fill_null(0).to_numpy(zero_copy_only=False)
            rows = np.flatnonzero(present) if chosen is None else chosen.to_numpy()[np.flatnonzero(present)]
            check_partitions(numbers[present], topic, count, lambda row: describe_row(batch, int(rows[row])))
            # Only now: what has passed the check fits, what has not might wrap round to a number that would.
            partitions = np.where(present, numbers, partitions).astype(np.int32)
        free = np.flatnonzero(partitions == NO_PARTITION)
        if len(free):
            partitions = partitions.copy()
            partitions[free] = spread(len(free), self._free_partitions(topic, count))
        return partitions


def _column(batch: pa.RecordBatch, name: str) -> Any:
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)


def _take(column: Any, rows: Any) -> Any:
    return column if column is None or rows is None else column.take(rows)


def describe_row(batch: pa.RecordBatch, row: int) -> str:
    """A row in an error text: by its key, or where records have none, by its number."""
    key = _column(batch, names.KEY)
    return f"number {row} of its Arrow batch" if key is None else f"key={key[row].as_py()!r}"[:_ROW_KEY_CHARACTERS_MAX]
