"""The COPY encoder: Arrow rows of a task become PostgreSQL's COPY BINARY; every value is checked first.

pgpq encodes the format, except where `payloads` explains otherwise. Values that fail these checks would otherwise fail
the whole batch's COPY on the driver, without identifying the row, or be stored changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pgpq import ArrowToPostgresBinaryEncoder
from pgpq.encoders import LargeStringEncoderBuilder, StringEncoderBuilder
from pgpq.schema import Jsonb

from spark_2pc_sink.errors import LocalProtocolError, UnstorableValueError
from spark_2pc_sink.sink.rows.value_checks import Check, text_bytes
from spark_2pc_sink.wire.arrow_layout import ArrowColumn, fixed_rows, grouped_rows, joined_rows

#: Prefix of the names of the sink's own columns, which are copied after the table's and not stored.
OWN_PREFIX: Final = "_2pc_"
#: The upsert_order_by value, and then its order key.
ORDER_COLUMN: Final = f"{OWN_PREFIX}order"
#: The value of delete_when: true for a row that deletes the one of its key.
DELETE_COLUMN: Final = f"{OWN_PREFIX}delete"
#: A text with a '1' for each column of unchanged_when for which the row carries no value, else a '0'.
UNCHANGED_COLUMN: Final = f"{OWN_PREFIX}unchanged"

#: Bits of a double that are flipped if its sign is negative.
_MAGNITUDE_BITS: Final = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_SIGN_SHIFT: Final = 63


def order_keys(values: ArrowColumn) -> ArrowColumn:
    """The order key of each value, null where it is null: int64, binary or decimal128, see `column_plan.order_column`.

    PostgreSQL compares only order keys, so the greatest is Spark's maximum on every database, regardless of collation:
    texts are UTF-8 bytes, floating-point numbers are integers of the same order in which NaN is the greatest and -0.0
    equals 0.0, and values that Spark counts (time, integers, booleans) are that count.
    """
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return values.cast(pa.binary())
    if pa.types.is_floating(kind):
        numbers = values.fill_null(0.0).cast(pa.float64()).to_numpy(zero_copy_only=False)
        # Integers in the order of doubles: their bits, with those of negative numbers inverted. Adding 0.0 makes -0.0
        # positive; NaN has many bit patterns, of which one is the greatest.
        bits = np.where(np.isnan(numbers), np.nan, numbers + 0.0).view(np.int64)
        return pa.array(bits ^ ((bits >> _SIGN_SHIFT) & _MAGNITUDE_BITS), mask=np.asarray(values.is_null()))
    if pa.types.is_date32(kind):
        return values.cast(pa.int32()).cast(pa.int64())
    if pa.types.is_binary(kind) or pa.types.is_decimal(kind):
        return values
    return values.cast(pa.int64())


#: Element types (pg_type.oid) that pgpq declares in arrays: bool, bytea, int8, int2, int4, text, float4, float8, date,
#: time, timestamp, interval, numeric.
PGPQ_ELEMENT_OIDS = frozenset({16, 17, 20, 21, 23, 25, 700, 701, 1082, 1083, 1114, 1186, 1700})

# Microseconds from 1970-01-01, Arrow's and Spark's epoch, to 2000-01-01, PostgreSQL's.
_POSTGRES_EPOCH_MICROSECONDS = 946_684_800_000_000
_NIL_UUID = "00000000-0000-0000-0000-000000000000"
# array_recv: dimensions, flag for nulls, element type; then for each dimension its length and lower bound.
_ARRAY_HEADER = np.dtype(
    [("dimensions", ">i4"), ("nulls", ">i4"), ("element", ">u4"), ("length", ">i4"), ("lower", ">i4")]
)


def uuid_payload(texts: Any) -> Any:
    """The 16 bytes of each uuid; all texts are canonical, see `UUID_TEXT`."""
    digits = text_bytes(pc.replace_substring(texts.fill_null(_NIL_UUID), "-", ""))
    content = pa.py_buffer(bytes.fromhex(digits.tobytes().decode()))
    return _with_nulls_of(texts, pa.Array.from_buffers(pa.binary(16), len(texts), [None, content]))


def timestamp_payload(timestamps: Any) -> Any:
    """The 8 bytes of each timestamp, as ``timestamptz_recv`` reads them: microseconds since 2000-01-01 UTC."""
    microseconds = timestamps.view(pa.int64()).fill_null(_POSTGRES_EPOCH_MICROSECONDS).to_numpy(zero_copy_only=False)
    return _with_nulls_of(timestamps, fixed_rows((microseconds - _POSTGRES_EPOCH_MICROSECONDS).astype(">i8")))


def array_payload(lists: Any, elements: Any, *, element_oid: int) -> Any:
    """One-dimensional arrays in binary form, as large_binary; ``elements`` are the payloads of ``lists.flatten()``."""
    payloads = elements.cast(pa.large_binary())
    # An element follows its length; only -1 stands for null.
    lengths = pc.fill_null(pc.binary_length(payloads), -1).to_numpy(zero_copy_only=False).astype(">i4")
    framed = joined_rows([fixed_rows(lengths), payloads], len(payloads))
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    headers = np.zeros(len(counts), _ARRAY_HEADER)
    headers["dimensions"] = 1
    headers["nulls"] = elements.null_count > 0
    headers["element"] = element_oid
    headers["length"] = counts
    headers["lower"] = 1
    return _with_nulls_of(lists, joined_rows([fixed_rows(headers), grouped_rows(framed, counts)], len(counts)))


def _with_nulls_of(values: Any, payload: Any) -> Any:
    return payload if values.null_count == 0 else pc.if_else(values.is_valid(), payload, pa.scalar(None, payload.type))


#: The end of a COPY BINARY stream: a row with -1 columns.
COPY_TRAILER = b"\xff\xff"

#: Maximum length of a value or key in an error message; messages are sent to the driver and logged.
SHOWN_CHARACTERS_MAX = 80


class Encoding(Enum):
    """Which encoder produces a value's PostgreSQL binary form."""

    PLAIN = "pgpq, by the Arrow type"
    JSONB = "pgpq, text after jsonb's version byte"
    UUID = "ours, from text"


@dataclass(frozen=True)
class Storage:
    """How the values of a scalar type are stored."""

    #: Arrow type to which values are cast before they are encoded.
    wire: Any | None = None
    checks: tuple[Check, ...] = ()
    encoding: Encoding = Encoding.PLAIN
    #: The database converts text to the value, see `spark_2pc_sink.sink.rows.table_copy`.
    cast: bool = False


@dataclass(frozen=True)
class CopyColumn:
    """How one column of the batch is checked and encoded."""

    name: str
    #: Type received by the task; its large_ variants and other time zones are accepted.
    arrow_type: Any
    #: False if a null is refused.
    nullable: bool
    #: For the value, or for each element of an array.
    storage: Storage
    #: For an array, the type that its elements must name; 0 for a scalar.
    element_oid: int
    #: Type of the table's column, for errors.
    type_name: str


@dataclass(frozen=True)
class CopyPlan:
    """How a task encodes rows for the table: the required part of a `ColumnPlan`. Can be pickled."""

    columns: tuple[CopyColumn, ...]
    #: Arrow columns that identify a row in messages (without any: its number in its task), and all that is read of a
    #: row that deletes.
    row_keys: tuple[str, ...] = ()


class CopyEncoder:
    """Encodes one task's batches, without header and trailer. `encode` holds rows back, so call `finish` at the end."""

    def __init__(self, plan: CopyPlan) -> None:
        self._plan = plan
        own = {column.name for column in plan.columns if column.name.startswith(OWN_PREFIX)}
        self._deletes = DELETE_COLUMN in own
        self._read_by_deletion = own.union(plan.row_keys)
        self._schema: Any = None
        self._encoder: ArrowToPostgresBinaryEncoder | None = None
        self.rows: int = 0

    def checked(self, batch: Any) -> Any:
        """The columns to encode of a ``pyarrow.RecordBatch``, which may have others too, as a batch for `encode`.

        A value that cannot be stored is an UnstorableValueError, before any row of the batch is encoded.
        """
        deleting = batch.column(DELETE_COLUMN) if self._deletes else None
        if deleting is not None and not pc.any(deleting).as_py():
            deleting = None
        arrays = [self._prepared(batch, column, deleting) for column in self._plan.columns]
        if self._schema is None:
            names = [column.name for column in self._plan.columns]
            self._schema = pa.schema([(name, array.type) for name, array in zip(names, arrays, strict=True)])
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def encode(self, checked: Any) -> bytes:
        """Encode rows of `checked`. May return nothing: pgpq returns about a MiB at a time, always whole rows."""
        if self._encoder is None:
            builders = {column.name: _builder(column, self._schema.field(column.name)) for column in self._plan.columns}
            self._encoder = ArrowToPostgresBinaryEncoder.new_with_encoders(self._schema, builders)
            # Not sent: `CopyReader` writes one for all tasks. The encoder requires the call.
            self._encoder.write_header()
        encoded = bytes(self._encoder.write_batch(checked))
        self.rows += checked.num_rows
        return encoded

    def finish(self) -> bytes:
        """The rows held back; empty if there are none."""
        return b"" if self._encoder is None else bytes(self._encoder.finish())[: -len(COPY_TRAILER)]

    def _prepared(self, batch: Any, column: CopyColumn, deleting: Any | None) -> Any:
        index = batch.schema.get_field_index(column.name)
        if index < 0:
            state = f"a batch of {', '.join(batch.schema.names)}"
            rule = f"it must have each column of the plan once, also {column.name}"
            raise LocalProtocolError(operation="encode", state=state, rule=rule)
        values = batch.column(index)
        if _usual(values.type) != column.arrow_type:
            state = f"column {column.name} is {values.type}"
            rule = f"it must be {column.arrow_type}, as planned from the batch's schema"
            raise LocalProtocolError(operation="encode", state=state, rule=rule)
        if deleting is not None and column.name not in self._read_by_deletion:
            # Only its key matters: a deletion event may have no other values.
            self._refuse_null(batch, column, pc.and_not(values.is_null(), deleting))
            values = pc.if_else(deleting, pa.scalar(None, values.type), values)
        elif values.null_count > 0:
            self._refuse_null(batch, column, values.is_null())
        scalars = pc.list_flatten(values) if column.element_oid else values
        for check in column.storage.checks:
            if (offenders := check.offenders(scalars)) is not None:
                first = offenders.index(value=True).as_py()
                row = pc.list_parent_indices(values)[first].as_py() if column.element_oid else first
                rule = check.rule.format(column.type_name)
                raise self._refusal(batch, column, row, _shown(scalars[first]), rule)
        return _wire(column, values, scalars)

    def _refuse_null(self, batch: Any, column: CopyColumn, absent: Any) -> None:
        if not column.nullable and pc.any(absent).as_py():
            rule = f"the table's column is {column.type_name} NOT NULL, or an upsert key"
            raise self._refusal(batch, column, absent.index(value=True).as_py(), "null", rule)

    def _refusal(self, batch: Any, column: CopyColumn, row: int, value: str, rule: str) -> UnstorableValueError:
        # Without the prefix of the sink's own columns.
        keys = [f"{name.removeprefix(OWN_PREFIX)}={_shown(batch.column(name)[row])}" for name in self._plan.row_keys]
        row_key = ", ".join(keys) or f"number {self.rows + row} of its task"
        return UnstorableValueError(column=column.name, row_key=row_key, value=value, rule=rule)


def _wire(column: CopyColumn, values: Any, scalars: Any) -> Any:
    storage = column.storage
    if column.element_oid and column.element_oid not in PGPQ_ELEMENT_OIDS:
        elements = scalars  # text is its own payload
        if storage.encoding is Encoding.UUID:
            elements = uuid_payload(scalars)
        elif pa.types.is_timestamp(scalars.type):
            elements = timestamp_payload(scalars)
        return array_payload(values, elements, element_oid=column.element_oid)
    if storage.encoding is Encoding.UUID:
        return uuid_payload(values)
    if storage.wire is None:
        return values
    return values.cast(pa.list_(storage.wire) if column.element_oid else storage.wire)


def _builder(column: CopyColumn, field: Any) -> Any:
    if column.storage.encoding is not Encoding.JSONB:
        return ArrowToPostgresBinaryEncoder.infer_encoder(field)
    builder = LargeStringEncoderBuilder if field.type == pa.large_string() else StringEncoderBuilder
    return builder.new_with_output(field, Jsonb())


def _usual(arrived: Any) -> Any:
    """The type without variations by session settings: large_ variants, time zone, nullability of elements."""
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
    """A value for a message: truncated, and never raising."""
    try:
        value = scalar.as_py()
        text = repr(value) if isinstance(value, str | bytes) else str(value)
    except (ValueError, OverflowError):
        # Not UTF-8, or a time outside the range of Python's datetime.
        text = repr(scalar.as_buffer().to_pybytes()) if hasattr(scalar, "as_buffer") else str(scalar.value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}… ({len(text)} characters)"
