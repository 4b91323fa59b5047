"""The order of upsert rows: which one is the newest.

A task turns the value of upsert_order_by into an order key before anything else is done with it, and PostgreSQL
compares order keys only. So the greatest is Spark's maximum on every database, whatever its
collation: a text is its UTF-8 bytes, a number with a binary fraction is an integer of the same order in which NaN is
the greatest and -0.0 equals 0.0, and everything that Spark counts (time, whole numbers, booleans) is that count. Null
is less than anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from spark_2pc_sink.wire.arrow_layout import ArrowColumn, Int64Array

#: The name under which the value of upsert_order_by, and then its order key, stands beside the table's columns.
ORDER_COLUMN: Final = "_2pc_order"

#: Bits of a double that are flipped where its sign says that it is negative.
_MAGNITUDE_BITS: Final = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_SIGN_SHIFT: Final = 63


def order_keys(values: ArrowColumn) -> ArrowColumn:
    """The order key of each value, null where it is null.

    Args:
        values: of upsert_order_by, as Spark hands them over.

    Returns:
        int64, binary or decimal128, as `column_plan.order_column` says.
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


def _counted(numbers: Any) -> Int64Array:
    """Integers in the order of doubles: their bits, those of negative numbers turned round."""
    # Adding 0.0 makes -0.0 positive; there are many bit patterns of NaN, and one is the greatest.
    bits = np.where(np.isnan(numbers), np.nan, numbers + 0.0).view(np.int64)
    counted: Int64Array = bits ^ ((bits >> _SIGN_SHIFT) & _MAGNITUDE_BITS)
    return counted
