"""The rows of a task as the plan of its lane wants them: unpacked, with keys and values, and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.serialisation.refusals import NotEncodableError
from spark_2pc_sink.sink.contract import record_columns
from spark_2pc_sink.sink.contract.record_json import json_values, nested_texts
from spark_2pc_sink.sink.contract.record_key import key_values
from spark_2pc_sink.sink.table.upsert_order import ORDER_COLUMN, order_keys
from spark_2pc_sink.sink.table.value_checks import ValidText
from spark_2pc_sink.sink.tasks.row_partitioner import describe_row, record_column

if TYPE_CHECKING:
    from spark_2pc_sink.serialisation.serialiser import Serialiser
    from spark_2pc_sink.sink.contract.task_plan import LanePlan
    from spark_2pc_sink.wire.arrow_layout import ArrowColumn

#: A row's key or value in an error text; longer ones are cut.
_VALUE_CHARACTERS_MAX: Final = 200


def unpacked(column: ArrowColumn) -> pa.RecordBatch:
    """The rows in a packed column, in their order, with a column for each field.

    With several lanes one pass over a batch makes the rows of all. Each row of the batch has in such a column its row
    for the lane, null where the lane does not get it; or an array of those that an array in it became.
    """
    if not pa.types.is_struct(column.type):
        # Without those of arrays that are null.
        column = column.flatten()
    if column.null_count:
        column = column.filter(column.is_valid())
    return pa.RecordBatch.from_struct_array(column)


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
        completed = completed.append_column(record_columns.KEY, key_values(batch.column(plan.key_column)))
    nested = {each.made: each for each in plan.json or ()}
    for name in plan.guarded:
        if name in nested:
            for text in nested_texts(batch, nested[name]):
                _check_text(completed, text, nested[name].column)
        else:
            _check_text(completed, batch.column(name), name.removeprefix("_2pc_"))
    if plan.json is not None:
        completed = completed.append_column(record_columns.VALUE, json_values(batch, plan.json))
    for name, serialiser in plan.serialisers.items():
        index = batch.schema.get_field_index(name)
        completed = completed.set_column(index, name, _serialised(serialiser, batch, name))
    return _without_tombstones(completed)


def _without_tombstones(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, and no value where the record is a tombstone."""
    tombstones = record_column(batch, record_columns.TOMBSTONE)
    if tombstones is None or not pc.any(tombstones).as_py():
        return batch
    place = batch.schema.get_field_index(record_columns.VALUE)
    values = batch.column(place)
    return batch.set_column(place, record_columns.VALUE, pc.if_else(tombstones, pa.scalar(None, values.type), values))


def _serialised(serialiser: Serialiser, batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    try:
        return serialiser.encode(column)
    except NotEncodableError as error:
        raise UnstorableValueError(
            column=".".join(part for part in (record_columns.PARTS[name], error.path) if part),
            row_key=describe_row(record_column(batch, record_columns.KEY), error.row),
            value=repr(column[error.row].as_py())[:_VALUE_CHARACTERS_MAX],
            rule=error.rule,
            remedy=error.remedy[:1].upper() + error.remedy[1:],
        ) from error


def _check_text(batch: pa.RecordBatch, text: pa.Array, column: str) -> None:
    offenders = ValidText().offenders(text)
    if offenders is not None:
        raise UnstorableValueError(
            column=column,
            row_key=describe_row(record_column(batch, record_columns.KEY), offenders.index(value=True).as_py()),
            value="a text that to_json would change",
            rule="a column of the batch has text that is not valid UTF-8",
        )
