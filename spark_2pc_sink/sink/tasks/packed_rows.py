"""The packed rows of a lane: one column of structs, or of arrays of structs, beside those of the other lanes.

So one pass over a batch makes the rows of all lanes. Each row of the batch has in such a column its row for the lane,
null where the lane does not get it; or an array of those that an array in it became.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from spark_2pc_sink.wire.arrow_layout import ArrowColumn


def unpacked(column: ArrowColumn) -> pa.RecordBatch:
    """The rows in a packed column, in their order, with a column for each field."""
    if not pa.types.is_struct(column.type):
        # Without those of arrays that are null.
        column = column.flatten()
    if column.null_count:
        column = column.filter(column.is_valid())
    return pa.RecordBatch.from_struct_array(column)
