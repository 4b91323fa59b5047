"""The input of a task: its rows are read, counted, completed, and encoded for the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.sink.contract import record_expressions
from spark_2pc_sink.sink.contract.receipts import EncodeReceipt
from spark_2pc_sink.sink.contract.record_json import json_values
from spark_2pc_sink.sink.contract.record_key import key_values
from spark_2pc_sink.sink.table.upsert_order import ORDER_COLUMN, order_keys
from spark_2pc_sink.sink.table.value_checks import ValidText
from spark_2pc_sink.sink.tasks.row_partitioner import describe_row, record_column
from spark_2pc_sink.sink.transfer.row_encoder import RowEncoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    import pyarrow as pa

    from spark_2pc_sink.sink.contract.task_plan import TaskIdentity, TaskPlan


class TaskInput:
    """A context manager: leaving it by an exception drops the connections to the brokers, which may be in mid-answer.

    Args:
        plan: from the driver.
        identity: of the task.
    """

    def __init__(self, plan: TaskPlan, identity: TaskIdentity) -> None:
        self._plan = plan
        self._identity = identity
        self._encoder: RowEncoder | None = None
        if plan.row_encoder is not None:
            self._encoder = RowEncoder(plan.row_encoder, plan.ticket, identity.task, identity.task_attempt)
        self._rows = self._arrow_bytes = 0

    def __enter__(self) -> TaskInput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._plan.topics.connections.drop()
        if self._encoder is not None:
            self._encoder.close()

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches that have rows, with keys and values; each is encoded for the table when the next is asked for.

        Raises:
            UnstorableValueError, BatchRetryError, DatabaseUnreachableError: see `RowEncoder.write`.
        """
        for batch in batches:
            if batch.num_rows == 0:
                continue
            self._rows += batch.num_rows
            self._arrow_bytes += batch.nbytes
            completed = completed_rows(self._plan, batch)
            yield completed
            if self._encoder is not None:
                self._encoder.write(completed)

    def finish(self) -> None:
        """All rows are read; those for the driver are on their way after this."""
        if self._encoder is not None:
            self._encoder.finish()

    def receipt(self, digest: int) -> EncodeReceipt:
        """The receipt of the rows, after `finish`.

        Args:
            digest: of the records that were made of them.
        """
        return EncodeReceipt(
            encode_task=self._identity.task,
            task_attempt=self._identity.task_attempt,
            rows=self._rows,
            digest=digest,
            copy_rows=0 if self._encoder is None else self._encoder.rows,
            staged_parts=0 if self._encoder is None else self._encoder.staged_parts,
            arrow_bytes=self._arrow_bytes,
            topic_ids=dict(self._plan.topics.ids),
        )


def completed_rows(plan: TaskPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their keys and values, made here unless Spark has done it, and with order keys.

    Raises:
        UnstorableValueError: Spark has met a text that is none, and would have replaced it.
    """
    completed = batch
    for name in plan.guarded:
        _check_text(batch, name)
    order = batch.schema.get_field_index(ORDER_COLUMN)
    if order >= 0:
        completed = completed.set_column(order, ORDER_COLUMN, order_keys(batch.column(order)))
    if plan.key_column is not None:
        completed = completed.append_column(record_expressions.KEY, key_values(batch.column(plan.key_column)))
    if plan.json is not None:
        completed = completed.append_column(record_expressions.VALUE, json_values(batch, plan.json))
    return completed


def _check_text(batch: pa.RecordBatch, name: str) -> None:
    offenders = ValidText().offenders(batch.column(name))
    if offenders is not None:
        raise UnstorableValueError(
            column=name.removeprefix("_2pc_"),
            row_key=describe_row(record_column(batch, record_expressions.KEY), offenders.index(value=True).as_py()),
            value="a text that to_json would change",
            rule="a column of the batch has text that is not valid UTF-8",
        )
