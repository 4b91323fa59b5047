"""The identity and the order of upsert rows: which rows are the same, and which is the newest.

A task turns the value of upsert_order_by into an order key before anything else is done with it, and PostgreSQL and
the records' way to Kafka compare order keys only. So the greatest is Spark's maximum on every database, whatever its
collation: a text is its UTF-8 bytes, a number with a binary fraction is an integer of the same order in which NaN is
the greatest and -0.0 equals 0.0, and everything that Spark counts (time, whole numbers, booleans) is that count. Null
is less than anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark.sql.types import DataType, DecimalType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.table.catalog import TargetColumn
from spark_2pc_sink.sink.table.type_mapping import arrow_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_2pc_sink.wire.arrow_layout import ArrowColumn, Int64Array

#: The name under which the value of upsert_order_by, and then its order key, stands beside the table's columns.
ORDER_COLUMN: Final = "_2pc_order"

#: Spark orders texts of any other collation by rules of its own, which no other program has.
_BYTE_COLLATION: Final = "UTF8_BINARY"
_TEXTS: Final = ("StringType", "CharType", "VarcharType")
_BYTES: Final = (*_TEXTS, "BinaryType")
#: Bits of a double that are flipped where its sign says that it is negative.
_MAGNITUDE_BITS: Final = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_SIGN_SHIFT: Final = 63
_HASH_BYTES: Final = 16
_LENGTH_BYTES: Final = 8


def order_column(spark_type: DataType) -> tuple[Any, TargetColumn]:
    """The Arrow type of order keys, and the column of the database that holds them.

    Args:
        spark_type: of upsert_order_by.

    Raises:
        ConfigurationError: values of this type have no order that both sides could follow.
    """
    kind = type(spark_type).__name__
    arrives = arrow_type(spark_type)
    if arrives is None or pa.types.is_list(arrives):
        raise _no_order(
            spark_type, "it is a number, a text, a date or a timestamp: something with one order everywhere"
        )
    if kind in _TEXTS and _collation(spark_type) != _BYTE_COLLATION:
        raise ConfigurationError(
            option="upsert_order_by",
            value=spark_type.simpleString(),
            rule=f"texts are ordered by their bytes, and Spark orders these by the collation {_collation(spark_type)}",
            remedy=f"say that bytes are meant: upsert_order_by='expression COLLATE {_BYTE_COLLATION}'",
        )
    if kind in _BYTES:
        return pa.binary(), TargetColumn(name=ORDER_COLUMN, type_name="bytea", base_type="bytea")
    if isinstance(spark_type, DecimalType):
        return arrives, TargetColumn(name=ORDER_COLUMN, type_name="numeric", base_type="numeric")
    return pa.int64(), TargetColumn(name=ORDER_COLUMN, type_name="bigint", base_type="int8")


def order_keys(values: ArrowColumn) -> ArrowColumn:
    """The order key of each value, null where it is null.

    Args:
        values: of upsert_order_by, as Spark hands them over.

    Returns:
        int64, binary or decimal128, as `order_column` says.
    """
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return values.cast(pa.binary())
    if pa.types.is_floating(kind):
        numbers = values.fill_null(0.0).cast(pa.float64()).to_numpy(zero_copy_only=False)
        return pa.array(_counted(numbers), mask=np.asarray(values.is_null()))
    if pa.types.is_date32(kind):
        return values.cast(pa.int32()).cast(pa.int64())
    if pa.types.is_binary(kind) or pa.types.is_decimal(kind):
        return values
    return values.cast(pa.int64())


def row_identities(columns: Sequence[ArrowColumn], keyed: ArrowColumn) -> ArrowColumn:
    """What rows of one upsert key share, and others do not: the key itself where it is a count, else a hash of it.

    Args:
        columns: the upsert keys of each row, at least one.
        keyed: the key of each row's record. A row without one has no identity: no later record takes its place.

    Returns:
        int64, or binary of 16 bytes; null for a row without an identity.
    """
    if len(columns) == 1 and _counts(columns[0].type):
        found = order_keys(columns[0])
    else:
        hashed = b"".join(map(xxhash.xxh3_128_digest, _joined(columns)))
        found = pa.Array.from_buffers(pa.binary(_HASH_BYTES), len(columns[0]), [None, pa.py_buffer(hashed)])
    return found if keyed.null_count == 0 else pc.if_else(keyed.is_valid(), found, pa.scalar(None, found.type))


def _counted(numbers: Any) -> Int64Array:
    """Integers in the order of doubles: their bits, those of negative numbers turned round."""
    # Adding 0.0 makes -0.0 positive; there are many bit patterns of NaN, and one is the greatest.
    bits = np.where(np.isnan(numbers), np.nan, numbers + 0.0).view(np.int64)
    counted: Int64Array = bits ^ ((bits >> _SIGN_SHIFT) & _MAGNITUDE_BITS)
    return counted


def _counts(kind: Any) -> bool:
    return not (pa.types.is_decimal(kind) or pa.types.is_nested(kind) or _is_bytes(kind))


def _is_bytes(kind: Any) -> bool:
    return any(is_one(kind) for is_one in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, _is_large))


def _is_large(kind: Any) -> bool:
    return bool(pa.types.is_large_string(kind))


def _joined(columns: Sequence[ArrowColumn]) -> list[bytes]:
    """The bytes of each row's keys; of several, each behind its length."""
    texts = [_key_bytes(column) for column in columns]
    if len(texts) == 1:
        return _as_objects(texts[0])
    parts: list[Any] = []
    for text in texts:
        lengths = pc.binary_length(text).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        fixed = pa.Array.from_buffers(pa.binary(_LENGTH_BYTES), len(text), [None, pa.py_buffer(lengths)])
        parts += [fixed.cast(pa.large_binary()), text]
    nothing = pa.scalar(b"", pa.large_binary())
    return _as_objects(pc.binary_join_element_wise(*parts, nothing, null_handling="replace", null_replacement=b""))


def _key_bytes(column: ArrowColumn) -> ArrowColumn:
    kind = column.type
    if _is_bytes(kind):
        return column.cast(pa.large_binary())
    if _counts(kind):
        counted = order_keys(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        fixed = pa.Array.from_buffers(pa.binary(_LENGTH_BYTES), len(column), [None, pa.py_buffer(counted)])
        return fixed.cast(pa.large_binary())
    # Equal decimals of one type have one text, and so have equal arrays.
    return pa.array([repr(value).encode() for value in column.to_pylist()], pa.large_binary())


def _as_objects(texts: ArrowColumn) -> list[bytes]:
    found: list[bytes] = texts.fill_null(b"").to_numpy(zero_copy_only=False).tolist()
    return found


def _collation(spark_type: DataType) -> str:
    """Spark 4.0 has given texts collations."""
    return str(getattr(spark_type, "collation", _BYTE_COLLATION))


def _no_order(spark_type: DataType, rule: str) -> ConfigurationError:
    return ConfigurationError(
        option="upsert_order_by", value=spark_type.simpleString(), rule=rule, remedy="order by a field of it"
    )
