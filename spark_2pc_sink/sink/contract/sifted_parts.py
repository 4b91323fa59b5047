"""The sifted parts of a task: COPY bytes of some rows behind the names of these rows, as bytes that can be staged."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.sink.bad_rows.bad_row import IDENTITY_BYTES
from spark_2pc_sink.sink.bad_rows.copy_rows import CopyRows
from spark_2pc_sink.sink.bad_rows.table_sift import RowName, SiftedPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_2pc_sink.sink.table.copy_stream import Stream

_COUNT: Final = struct.Struct("!q")
_NAME: Final = struct.Struct(f"!{IDENTITY_BYTES}sq?")


def pack_names(names: Sequence[RowName]) -> list[bytes]:
    """What stands before the stream of rows that have these names."""
    return [_COUNT.pack(len(names)), b"".join(_NAME.pack(*name) for name in names)]


def read_part(stream: Stream) -> SiftedPart:
    """The part that was stored as `pack_names` and a stream."""
    content = b"".join(stream)
    (count,) = _COUNT.unpack_from(content)
    begin = _COUNT.size + count * _NAME.size
    names = tuple(RowName(*name) for name in _NAME.iter_unpack(content[_COUNT.size : begin]))
    return SiftedPart(CopyRows(content[begin:], count), names)
