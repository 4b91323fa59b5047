"""The partitioner of a batch's rows: a fault is reported with the row that has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.producer.arrow_partitioner import ArrowPartitioner, PartitionRows, RecordColumns
from spark_2pc_sink.sink.contract import record_columns
from spark_2pc_sink.sink.contract.topics import TopicRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from spark_2pc_sink.wire.arrow_layout import ArrowColumn

#: One row's key in an error text; longer ones are cut.
_ROW_KEY_CHARACTERS_MAX: Final = 100


class RowPartitioner(ArrowPartitioner):
    """Splits the batches of a task.

    Args:
        topic: of rows that name none; None when every row names its own.
        partition_count: how many partitions a topic has; see `Topics.partition_count`.
    """

    def __init__(self, topic: str | None, partition_count: Callable[[str], int]) -> None:
        super().__init__(topic)
        self._count = partition_count

    def split_batch(self, batch: pa.RecordBatch) -> Iterator[PartitionRows]:
        """The rows of a batch by partition; see `split`.

        Raises:
            UnstorableValueError: a row names no topic, one that does not exist or a partition that its topic does not
                have, or has a header without a key.
            BatchRetryError: the driver does not say whether a topic exists.
        """
        topics, key = record_column(batch, record_columns.TOPIC), record_column(batch, record_columns.KEY)
        if topics is not None and topics.null_count:
            raise UnstorableValueError(
                column="topic",
                row_key=describe_row(key, int(np.flatnonzero(np.asarray(topics.is_null()))[0])),
                value="null",
                rule="every row needs a topic, and the sink has no topic of its own",
                remedy="Correct the expression that makes the column, or pass topic='…' for the rows without one",
            )
        return self.split(
            RecordColumns(
                topic=topics,
                partition=record_column(batch, record_columns.PARTITION),
                key=key,
                value=batch.column(record_columns.VALUE),
                headers=record_column(batch, record_columns.HEADERS),
            )
        )

    def _partition_count(self, topic: str, columns: RecordColumns, row: int) -> int:
        """See `ArrowPartitioner`.

        A topic that rows name and that does not exist is the fault of that value: to run the batch again would not
        help.
        """
        try:
            return self._count(topic)
        except TopicRefusedError as error:
            raise UnstorableValueError(
                column="topic",
                row_key=describe_row(columns.key, row),
                value=repr(topic),
                rule=error.rule,
                remedy=error.remedy,
            ) from error

    def _free_partitions(self, topic: str, count: int) -> Sequence[int]:
        """See `ArrowPartitioner`: rows without a key may go anywhere."""
        del topic
        return range(count)

    def _no_partition(self, topic: str, count: int, columns: RecordColumns, row: int) -> UnstorableValueError:
        return UnstorableValueError(
            column="partition",
            row_key=describe_row(columns.key, row),
            value=str(None if columns.partition is None else columns.partition[row].as_py()),
            rule=f"topic {topic!r} has partitions 0 to {count - 1}",
        )


def describe_row(key: ArrowColumn | None, row: int) -> str:
    """A row in an error text: by its key, or where records have none, by its number."""
    return f"number {row} of its Arrow batch" if key is None else f"key={key[row].as_py()!r}"[:_ROW_KEY_CHARACTERS_MAX]


def record_column(batch: pa.RecordBatch, name: str) -> ArrowColumn | None:
    """A column of `record_columns`; None where the batch has none of that name."""
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)
