"""The input of a task: its rows are read, counted, completed, and encoded for the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.serialisation.refusals import NotEncodableError
from spark_2pc_sink.sink.contract import record_expressions
from spark_2pc_sink.sink.contract.receipts import EncodeReceipt, LaneRows
from spark_2pc_sink.sink.contract.record_json import json_values, nested_texts
from spark_2pc_sink.sink.contract.record_key import key_values
from spark_2pc_sink.sink.table.upsert_order import ORDER_COLUMN, order_keys
from spark_2pc_sink.sink.table.value_checks import ValidText
from spark_2pc_sink.sink.tasks.packed_rows import unpacked
from spark_2pc_sink.sink.tasks.row_digest import row_digest
from spark_2pc_sink.sink.tasks.row_partitioner import describe_row, record_column
from spark_2pc_sink.sink.transfer.row_encoder import RowEncoder
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, combine_digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from spark_2pc_sink.serialisation.serialiser import Serialiser
    from spark_2pc_sink.sink.contract.task_plan import LanePlan, TaskIdentity, TaskPlan

#: A row's key or value in an error text; longer ones are cut.
_VALUE_CHARACTERS_MAX: Final = 200


class TaskInput:
    """A context manager: leaving it by an exception drops the connections to the brokers, which may be in mid-answer.

    Args:
        plan: from the driver.
        identity: of the task.
    """

    def __init__(self, plan: TaskPlan, identity: TaskIdentity) -> None:
        self._plan = plan
        self._identity = identity
        self._lanes = [_LaneInput(lane, plan, identity) for lane in plan.lanes]
        self._rows = self._arrow_bytes = 0

    def __enter__(self) -> TaskInput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._plan.topics.connections.drop()
        for lane in self._lanes:
            lane.close()

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[LanePlan, pa.RecordBatch]]:
        """The batches of lanes with records that have rows, with keys and values.

        All rows are encoded for their tables; those of a batch when the next is asked for.

        Raises:
            UnstorableValueError, BatchRetryError, DatabaseUnreachableError: see `RowEncoder.write`.
        """
        for batch in batches:
            if batch.num_rows == 0:
                continue
            self._rows += batch.num_rows
            self._arrow_bytes += batch.nbytes
            for lane in self._lanes:
                completed = lane.rows_of(batch)
                if completed is None:
                    continue
                if lane.plan.sends:
                    yield lane.plan, completed
                lane.write(completed)

    def finish(self) -> None:
        """All rows are read; those for the driver are on their way after this."""
        for lane in self._lanes:
            lane.finish()

    def receipt(self, digest: int) -> EncodeReceipt:
        """The receipt of the rows, after `finish`.

        Args:
            digest: of the records that were made of them.
        """
        return EncodeReceipt(
            encode_task=self._identity.task,
            task_attempt=self._identity.task_attempt,
            rows=self._rows,
            lanes={lane.plan.index: lane.receipt() for lane in self._lanes},
            digest=digest,
            row_digest=combine_digests(*(lane.digest for lane in self._lanes)),
            arrow_bytes=self._arrow_bytes,
            topic_ids=dict(self._plan.topics.ids),
        )


class _LaneInput:
    """The rows of one lane.

    Args:
        lane: of the plan.
        plan: of the task.
        identity: of the task.
    """

    def __init__(self, lane: LanePlan, plan: TaskPlan, identity: TaskIdentity) -> None:
        self.plan = lane
        self.digest = EMPTY_DIGEST
        self._rows = 0
        self._encoder: RowEncoder | None = None
        if lane.row_encoder is not None:
            self._encoder = RowEncoder(lane.row_encoder, plan.ticket, identity.task, identity.task_attempt)

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The rows of the lane, completed; None where there are none."""
        rows = batch if self.plan.packed is None else unpacked(batch.column(self.plan.packed))
        self._rows += rows.num_rows
        if not rows.num_rows:
            return None
        if self.plan.told_as is not None:
            self.digest = combine_digests(self.digest, row_digest(self.plan.told_as, rows))
        return completed_rows(self.plan, rows)

    def write(self, rows: pa.RecordBatch) -> None:
        """Encode rows for the table."""
        if self._encoder is not None:
            self._encoder.write(rows)

    def finish(self) -> None:
        """All rows are read."""
        if self._encoder is not None:
            self._encoder.finish()

    def close(self) -> None:
        """Give back what the encoder holds."""
        if self._encoder is not None:
            self._encoder.close()

    def receipt(self) -> LaneRows:
        """What became of the rows, after `finish`."""
        if self._encoder is None:
            return LaneRows(self._rows)
        return LaneRows(self._rows, self._encoder.rows, self._encoder.staged_parts)


def completed_rows(plan: LanePlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their keys and values, made here unless Spark has done it, and with order keys.

    Raises:
        UnstorableValueError: Spark has met a text that is none, and would have replaced it; or the schema of key or
            value has no place for one.
    """
    completed = batch
    order = batch.schema.get_field_index(ORDER_COLUMN)
    if order >= 0:
        completed = completed.set_column(order, ORDER_COLUMN, order_keys(batch.column(order)))
    if plan.key_column is not None:
        completed = completed.append_column(record_expressions.KEY, key_values(batch.column(plan.key_column)))
    nested = {each.made: each for each in plan.json or ()}
    for name in plan.guarded:
        if name in nested:
            for text in nested_texts(batch, nested[name]):
                _check_text(completed, text, nested[name].column)
        else:
            _check_text(completed, batch.column(name), name.removeprefix("_2pc_"))
    if plan.json is not None:
        completed = completed.append_column(record_expressions.VALUE, json_values(batch, plan.json))
    for name, serialiser in plan.serialisers.items():
        index = batch.schema.get_field_index(name)
        completed = completed.set_column(index, name, _serialised(serialiser, batch, name))
    return _without_tombstones(completed)


def _without_tombstones(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, and no value where the record is a tombstone."""
    tombstones = record_column(batch, record_expressions.TOMBSTONE)
    if tombstones is None or not pc.any(tombstones).as_py():
        return batch
    place = batch.schema.get_field_index(record_expressions.VALUE)
    values = batch.column(place)
    return batch.set_column(
        place, record_expressions.VALUE, pc.if_else(tombstones, pa.scalar(None, values.type), values)
    )


def _serialised(serialiser: Serialiser, batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    try:
        return serialiser.encode(column)
    except NotEncodableError as error:
        raise UnstorableValueError(
            column=".".join(part for part in (record_expressions.PARTS[name], error.path) if part),
            row_key=describe_row(record_column(batch, record_expressions.KEY), error.row),
            value=repr(column[error.row].as_py())[:_VALUE_CHARACTERS_MAX],
            rule=error.rule,
            remedy=error.remedy[:1].upper() + error.remedy[1:],
        ) from error


def _check_text(batch: pa.RecordBatch, text: pa.Array, column: str) -> None:
    offenders = ValidText().offenders(text)
    if offenders is not None:
        raise UnstorableValueError(
            column=column,
            row_key=describe_row(record_column(batch, record_expressions.KEY), offenders.index(value=True).as_py()),
            value="a text that to_json would change",
            rule="a column of the batch has text that is not valid UTF-8",
        )
