"""Decoding of what clients sent, where it cannot hold up anybody else.

A batch of a few kilobytes may stand for millions of records. What is large or compressed is decoded in a thread, and
in `_THREADS` at a time, so that all clients together can make the decoder hold that many batches and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from spark_2pc_sink.reference.storage.errors import BatchError
from spark_2pc_sink.reference.storage.records import decode_records
from spark_2pc_sink.wire.batch_format import BatchHeader, Buffer, Record

#: Decoding is work of the interpreter, of which there is one; the second thread is there for small batches behind a
#: large one. Each holds a batch of `spark_2pc_sink.wire.compression.DECOMPRESSED_BYTES_MAX` at most.
_THREADS: Final = 2
#: Up to here the change to a thread takes longer than the work.
_INLINE_BYTES_MAX: Final = 16 * 1024
_decoders: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="decode")
_Result = TypeVar("_Result")


async def decoded(header: BatchHeader, work: Callable[[], _Result]) -> _Result:
    """What ``work`` makes of the records of a batch.

    Args:
        header: of the batch.
        work: decodes it; touches nothing else that changes. Its errors are raised here.
    """
    if not header.compression and header.size_bytes <= _INLINE_BYTES_MAX:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_decoders, work)


def first_from(batch: bytes, header: BatchHeader, timestamp_ms: int, offset: int) -> Record | None:
    """The first record of a batch that is not older than a time and not before an offset."""
    found = decode_records(batch, header)
    return next((each for each in found if each.timestamp_ms >= timestamp_ms and each.offset >= offset), None)


def max_timestamp_from(batch: bytes, header: BatchHeader, offset: int) -> int:
    """The newest time in a batch, of the records that are not before an offset."""
    return max(record.timestamp_ms for record in decode_records(batch, header) if record.offset >= offset)


def all_have_keys(records: Buffer, header: BatchHeader) -> bool:
    """What a compacted topic asks of a batch; no batch that cannot be read has it."""
    try:
        return all(record.key is not None for record in decode_records(bytes(records), header))
    except BatchError:
        return False
