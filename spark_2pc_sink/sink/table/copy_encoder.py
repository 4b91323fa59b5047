"""The COPY encoder: Arrow rows of a task become PostgreSQL's COPY BINARY; every value is checked first.

The format itself is pgpq's work, except for what `payloads` explains. What is checked here would otherwise fail the
COPY of the whole batch on the driver, without saying which row it was, or pass and change the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pgpq import ArrowToPostgresBinaryEncoder
from pgpq.encoders import LargeStringEncoderBuilder, StringEncoderBuilder
from pgpq.schema import Jsonb

from spark_2pc_sink.errors import LocalProtocolError, UnstorableValueError
from spark_2pc_sink.sink.table.copy_payloads import PGPQ_ELEMENT_OIDS, array_payload, timestamp_payload, uuid_payload
from spark_2pc_sink.sink.table.value_checks import Check

#: What the names of columns begin with that are the sink's own and not the table's.
OWN_PREFIX = "_2pc_"
#: The end of a COPY BINARY stream: a row with -1 columns.
COPY_TRAILER = b"\xff\xff"

#: Of a value or key in an error message; messages travel to the driver and into logs.
SHOWN_CHARACTERS_MAX = 80


class Encoding(Enum):
    """Who turns a value into PostgreSQL's binary form, and which."""

    PLAIN = "pgpq, by the Arrow type"
    JSONB = "pgpq, text behind jsonb's version byte"
    UUID = "ours, from text"


@dataclass(frozen=True)
class Storage:
    """How the values of a scalar type are stored.

    Attributes:
        wire: the Arrow type to cast to before encoding; None to encode what arrives.
        checks: what each value must satisfy, in the order in which they are asked.
        encoding: of the value itself.
        cast: the database makes the value of its text, see `spark_2pc_sink.sink.table.table_writer`.
    """

    wire: Any | None = None
    checks: tuple[Check, ...] = ()
    encoding: Encoding = Encoding.PLAIN
    cast: bool = False


@dataclass(frozen=True)
class CopyColumn:
    """How one column of the batch is checked and encoded. Can be pickled.

    Attributes:
        name: in the batch and in the table.
        arrow_type: what the task sees; its large_ variants and other time zones will do.
        nullable: False where a null is refused.
        storage: of the value, or of each element of an array.
        element_oid: for an array, the type that its elements must name; 0 for a scalar.
        type_name: of the table's column, for errors.
    """

    name: str
    arrow_type: Any
    nullable: bool
    storage: Storage
    element_oid: int
    type_name: str


@dataclass(frozen=True)
class CopyPlan:
    """How a task encodes rows for the table: what it needs of a `ColumnPlan`. Can be pickled.

    Attributes:
        columns: all that are copied, in order.
        upsert_keys: empty for append.
        own: the columns that are copied and not stored.
        delete: the column that is true for rows that delete the one of their key; None without one.
    """

    columns: tuple[CopyColumn, ...]
    upsert_keys: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    delete: str | None = None


class CopyEncoder:
    """Encodes the batches of one task; what it returns, put together in order, are their rows without a frame.

    Call `encode` for each batch and then `finish` once: rows are held back until then. The state is the order of
    these calls; anything else is refused.

    Args:
        plan: from the driver.
        row_key: name of the Arrow column that tells rows apart in messages; default: the upsert keys, and where there
            are none, the row's number in its task.
    """

    def __init__(self, plan: CopyPlan, *, row_key: str | None = None) -> None:
        self._plan = plan
        self._row_keys = plan.upsert_keys if row_key is None else (row_key,)
        self._read_by_deletion = {*plan.upsert_keys, *plan.own}
        self._schema: Any = None
        self._encoder: ArrowToPostgresBinaryEncoder | None = None
        self._finished = False
        self._rows = 0

    @property
    def rows(self) -> int:
        """Rows taken so far."""
        return self._rows

    def encode(self, batch: Any) -> bytes:
        """Check and encode all rows of a ``pyarrow.RecordBatch``, which may have other columns too.

        Answers may be empty: pgpq hands out about a MiB at a time, always whole rows.

        Raises:
            UnstorableValueError: a value cannot be stored; nothing of this batch was encoded.
            LocalProtocolError: called after `finish`, or the batch is not of the plan.
        """
        if self._finished:
            raise LocalProtocolError(operation="encode", state="finished", rule="a finished stream takes no more rows")
        deleting = self._deleting(batch)
        arrays = [self._prepared(batch, column, deleting) for column in self._plan.columns]
        if self._encoder is None:
            self._schema, self._encoder = self._start(arrays)
            # Not sent: `CopyReader` writes one for all tasks. The encoder wants to be asked for it.
            self._encoder.write_header()
        encoded = bytes(self._encoder.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema)))
        self._rows += batch.num_rows
        return encoded

    def finish(self) -> bytes:
        """The rows held back; empty where there are none.

        Raises:
            LocalProtocolError: called twice.
        """
        if self._finished:
            raise LocalProtocolError(operation="finish", state="finished", rule="a stream ends once")
        self._finished = True
        return b"" if self._encoder is None else bytes(self._encoder.finish())[: -len(COPY_TRAILER)]

    def _start(self, arrays: list[Any]) -> tuple[Any, ArrowToPostgresBinaryEncoder]:
        schema = pa.schema(
            [pa.field(column.name, array.type) for column, array in zip(self._plan.columns, arrays, strict=True)]
        )
        encoders = {
            column.name: _builder(column, field) for column, field in zip(self._plan.columns, schema, strict=True)
        }
        return schema, ArrowToPostgresBinaryEncoder.new_with_encoders(schema, encoders)

    def _deleting(self, batch: Any) -> Any | None:
        """True for rows that delete; None where no row does."""
        if self._plan.delete is None:
            return None
        deleting = batch.column(self._plan.delete)
        return deleting if pc.any(deleting).as_py() else None

    def _prepared(self, batch: Any, column: CopyColumn, deleting: Any | None) -> Any:
        index = batch.schema.get_field_index(column.name)
        if index < 0:
            raise LocalProtocolError(
                operation="encode",
                state=f"a batch of {', '.join(batch.schema.names)}",
                rule=f"it has each column of the plan once, {column.name} too",
            )
        values = batch.column(index)
        if _usual(values.type) != column.arrow_type:
            raise LocalProtocolError(
                operation="encode",
                state=f"column {column.name} arrives as {values.type}",
                rule=f"it is {column.arrow_type}, as planned from the batch's schema",
            )
        if deleting is not None and column.name not in self._read_by_deletion:
            # Nothing but its key counts: the event of a deletion may have no more.
            self._refuse_null(batch, column, pc.and_not(values.is_null(), deleting))
            values = pc.if_else(deleting, pa.scalar(None, values.type), values)
        elif values.null_count > 0:
            self._refuse_null(batch, column, values.is_null())
        scalars = pc.list_flatten(values) if column.element_oid else values
        for check in column.storage.checks:
            offenders = check.offenders(scalars)
            if offenders is not None:
                raise self._unstorable(batch, column, values, offenders, check.rule)
        return _wire(column, values, scalars)

    def _refuse_null(self, batch: Any, column: CopyColumn, absent: Any) -> None:
        if not column.nullable and pc.any(absent).as_py():
            rule = f"the table's column is {column.type_name} NOT NULL, or an upsert key"
            raise self._refusal(batch, column, _first(absent), "null", rule)

    def _unstorable(
        self, batch: Any, column: CopyColumn, values: Any, offenders: Any, rule: str
    ) -> UnstorableValueError:
        first = _first(offenders)
        scalars = pc.list_flatten(values) if column.element_oid else values
        row = pc.list_parent_indices(values)[first].as_py() if column.element_oid else first
        return self._refusal(batch, column, row, _shown(scalars[first]), rule)

    def _refusal(self, batch: Any, column: CopyColumn, row: int, value: str, rule: str) -> UnstorableValueError:
        keys = [f"{_label(name)}={_shown(batch.column(name)[row])}" for name in self._row_keys]
        return UnstorableValueError(
            column=column.name,
            row_key=", ".join(keys) or f"number {self._rows + row} of its task",
            value=value,
            rule=rule,
        )


def _label(name: str) -> str:
    """A column's name in a message: without what marks the sink's own columns."""
    return name.removeprefix(OWN_PREFIX)


def _wire(column: CopyColumn, values: Any, scalars: Any) -> Any:
    """The array that pgpq encodes."""
    storage = column.storage
    if column.element_oid and column.element_oid not in PGPQ_ELEMENT_OIDS:
        return array_payload(values, _element_payload(storage.encoding, scalars), element_oid=column.element_oid)
    if storage.encoding is Encoding.UUID:
        return uuid_payload(values)
    if storage.wire is None:
        return values
    return values.cast(pa.list_(storage.wire) if column.element_oid else storage.wire)


def _element_payload(encoding: Encoding, scalars: Any) -> Any:
    if encoding is Encoding.UUID:
        return uuid_payload(scalars)
    if pa.types.is_timestamp(scalars.type):
        return timestamp_payload(scalars)
    return scalars  # text is its own payload


def _builder(column: CopyColumn, field: Any) -> Any:
    if column.storage.encoding is not Encoding.JSONB:
        return ArrowToPostgresBinaryEncoder.infer_encoder(field)
    builder = LargeStringEncoderBuilder if field.type == pa.large_string() else StringEncoderBuilder
    return builder.new_with_output(field, Jsonb())


def _first(mask: Any) -> int:
    index: int = pc.index(mask, value=True).as_py()
    return index


def _usual(arrived: Any) -> Any:
    """The type without what a session's settings change: large_ variants, the time zone, nullability of elements."""
    if pa.types.is_list(arrived) or pa.types.is_large_list(arrived):
        return pa.list_(_usual(arrived.value_type))
    if arrived == pa.large_string():
        return pa.string()
    if arrived == pa.large_binary():
        return pa.binary()
    if pa.types.is_timestamp(arrived) and arrived.tz is not None:
        return pa.timestamp(arrived.unit, tz="UTC")
    return arrived


def _shown(scalar: Any) -> str:
    """A value as a message shows it: cut, and never failing."""
    try:
        value = scalar.as_py()
        text = repr(value) if isinstance(value, str | bytes) else str(value)
    except (ValueError, OverflowError):
        # Not UTF-8, or a time that Python's datetime cannot hold.
        text = repr(scalar.as_buffer().to_pybytes()) if hasattr(scalar, "as_buffer") else str(scalar.value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}… ({len(text)} characters)"
