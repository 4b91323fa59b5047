"""Record batches of kilobytes that become gigabytes, each made of one repeated piece, so that they cost nothing here.

How far a format goes decides its bomb: zstd's RLE blocks give 32768 bytes for one (RFC 8878, 3.1.1.2.2), deflate up to
1032, lz4 255. Snappy has 21, and announces a size that need not be true.

python -m tests.harness.bombs READER BOOTSTRAP TOPIC    reads partition 0 (``log``, ``markers``, ``verify`` or ``late``)
in a process of its own, and prints as JSON how that ended and what memory it took.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import lz4.frame
import pyarrow as pa

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import DualWriteError, RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.log_reader import LogReader
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.reference.storage.batches import build_batch, encode_key_values
from spark_2pc_sink.verification.topic_reader import TopicReader
from spark_2pc_sink.wire.batch_format import CONTROL_BIT, encode_varint
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import Compression, compress
from tests.conformance.raw_client import RawClient, code_of

_MIB: Final = 1024 * 1024
#: Of zstd: magic number, a descriptor without checksum and size, a window of 128 KiB (RFC 8878, 3.1.1.1).
_ZSTD_HEAD: Final = bytes.fromhex("28b52ffd0038")
_ZSTD_BLOCK_BYTES: Final = 128 * 1024
_ZSTD_RLE: Final = 1
#: Of gzip: magic number, deflate, no flags, no time, no system (RFC 1952).
_GZIP_HEAD: Final = bytes.fromhex("1f8b08000000000000ff")
_LZ4_BLOCK_BYTES: Final = 4 * _MIB
#: A raw snappy block that says that it becomes 4 GiB - 1.
_SNAPPY_ANNOUNCED: Final = b"\xff\xff\xff\xff\x0f" + bytes(64)
#: The timestamps in it are 1970: nothing here depends on them.
_TIMESTAMP_MS: Final = 0
#: More than one block in each format.
_CUT_RECORDS: Final = 20_000


def bomb(name: str, *, control: bool = False) -> bytes:
    """A batch, or by its header an end marker, that brokers take by their default ``message.max.bytes``."""
    codec, records, make = _SECTIONS[name]
    attributes = codec.value | (CONTROL_BIT if control else 0)
    return build_batch(make(), record_count=records, timestamp_ms=_TIMESTAMP_MS, attributes=attributes)


def cut_off(codec: Compression, *, left_bytes: int | None = None) -> bytes:
    """A batch whose compressed data ends in the middle; all else is right, its checksum too.

    Args:
        left_bytes: what is left of the data; half of it unless given. A hundred end within the first block.
    """
    section = encode_key_values([(b"%d" % n, b"%d" % (n * 7919)) for n in range(_CUT_RECORDS)])
    whole = bytes(memoryview(compress(pa.py_buffer(section), codec)))
    left = whole[: len(whole) // 2 if left_bytes is None else left_bytes]
    return build_batch(left, record_count=_CUT_RECORDS, timestamp_ms=_TIMESTAMP_MS, attributes=codec.value)


def _zstd_zeros(plain_bytes: int) -> bytes:
    """Four bytes for each 128 KiB."""
    block = _ZSTD_BLOCK_BYTES << 3 | _ZSTD_RLE << 1
    more = block.to_bytes(3, "little") + b"\0"
    last = (block | 1).to_bytes(3, "little") + b"\0"
    return _ZSTD_HEAD + more * (plain_bytes // _ZSTD_BLOCK_BYTES - 1) + last


def _gzip_zeros(plain_bytes: int, before: bytes = b"", behind: bytes = b"") -> bytes:
    """With a right end: without one librdkafka 2.16 goes on for ever."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    begin = stream.compress(before) + stream.flush(zlib.Z_FULL_FLUSH)
    mebibyte = stream.compress(bytes(_MIB)) + stream.flush(zlib.Z_FULL_FLUSH)
    checksum, zeros = zlib.crc32(before), bytes(_MIB)
    for _ in range(plain_bytes // _MIB):
        checksum = zlib.crc32(zeros, checksum)
    size = len(before) + plain_bytes + len(behind)
    end = stream.compress(behind) + stream.flush() + zlib.crc32(behind, checksum).to_bytes(4, "little")
    return _GZIP_HEAD + begin + mebibyte * (plain_bytes // _MIB) + end + size.to_bytes(4, "little")


def _lz4_zeros(plain_bytes: int) -> bytes:
    """In blocks that do not depend on each other, as Kafka wants them."""
    stream = lz4.frame.LZ4FrameCompressor(block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    head = stream.begin()
    block = stream.compress(bytes(_LZ4_BLOCK_BYTES))
    return bytes(head + block * (plain_bytes // _LZ4_BLOCK_BYTES) + stream.flush())


def _zstd(section: bytes) -> bytes:
    return bytes(memoryview(compress(pa.py_buffer(section), Compression.ZSTD)))


def _record(value: bytes, *, headers: int = 0) -> bytes:
    """A record with a key; its headers have neither name nor value: two bytes here, a tuple to the reader."""
    before, behind = _around(len(value), headers=headers)
    return before + value + behind


def _around(value_bytes: int, *, headers: int = 0) -> tuple[bytes, bytes]:
    """What of a record is before its value, and behind it."""
    before = bytes(3) + encode_varint(1) + b"k" + encode_varint(value_bytes)
    behind = encode_varint(headers) + b"\0\1" * headers
    return encode_varint(len(before) + value_bytes + len(behind)) + before, behind


#: Codec, number of records, and what makes the records section, by what comes of it.
_SECTIONS: Final[dict[str, tuple[Compression, int, Callable[[], bytes]]]] = {
    "2 GB of zstd": (Compression.ZSTD, 1, lambda: _zstd_zeros(2048 * _MIB)),
    "4 GB of zstd": (Compression.ZSTD, 1, lambda: _zstd_zeros(4096 * _MIB)),
    "120 MB of gzip": (Compression.GZIP, 1, lambda: _gzip_zeros(120 * _MIB)),
    "900 MB of gzip": (Compression.GZIP, 1, lambda: _gzip_zeros(900 * _MIB)),
    # A record that is in order, and so is taken by Kafka.
    "one value of 900 MB of gzip": (Compression.GZIP, 1, lambda: _gzip_zeros(900 * _MIB, *_around(900 * _MIB))),
    "240 MB of lz4": (Compression.LZ4, 1, lambda: _lz4_zeros(240 * _MIB)),
    "4 GB announced by snappy": (Compression.SNAPPY, 1, lambda: _SNAPPY_ANNOUNCED),
    "one value of 60 MB": (Compression.ZSTD, 1, lambda: _zstd(_record(bytes(60 * _MIB)))),
    "30 million headers of one record": (Compression.ZSTD, 1, lambda: _zstd(_record(b"", headers=30_000_000))),
    "a million headers of one record": (Compression.ZSTD, 1, lambda: _zstd(_record(b"", headers=1_000_000))),
    "a million records at one offset": (Compression.ZSTD, 1_000_000, lambda: _zstd(_record(bytes(40)) * 1_000_000)),
}
BOMBS: Final = tuple(_SECTIONS)


#: Of each request; a hundred times of what one takes.
_DEADLINE_MS: Final = 8_000


def _read_log(options: KafkaOptions, partition: TopicPartition) -> str:
    """Look for the end of a transaction that is not there: the whole log is read."""
    with Cluster(options) as cluster:
        epochs, limit_ms = frozenset({0}), options.max_block_ms
        reader = LogReader(cluster)
        return reader.find_marker(partition, from_offset=0, producer_id=7, epochs=epochs, limit_ms=limit_ms).name


def _read_markers(_options: KafkaOptions, _partition: TopicPartition) -> str:
    """Look into control batches, which brokers write alone: so these come from no broker."""
    batches = [batch for name in BOMBS for batch in decode_record_batches(bomb(name, control=True))]
    refused = 0
    for batch in batches:
        try:
            assert batch.marker is None
        except RemoteProtocolError:
            refused += 1
    return f"{refused} of {len(batches)} refused"


def _verify(options: KafkaOptions, partition: TopicPartition) -> str:
    reader = TopicReader(options)
    bounds = {partition: (0, reader.describe([partition.topic]).ends[partition])}
    return f"{sum(len(records) for _, records in reader.read(bounds))} records"


def _late(options: KafkaOptions, partition: TopicPartition) -> str:
    """Read two partitions, and put a batch behind the end of the one while the other is being read."""
    reader = TopicReader(options)
    ends = reader.describe([partition.topic]).ends
    bounds = {at: (0, ends[at]) for at in (partition, TopicPartition(partition.topic, 1))}
    read, late = 0, False
    for at, records in reader.read(bounds):
        if at == partition:
            with RawClient(options.bootstrap_servers[0]) as client:
                late = code_of(client, cut_off(Compression.LZ4, left_bytes=100), partition.topic) == Code.NONE
        else:
            read += len(records) if late else 0
    return f"{read > 0} that records came afterwards"


_READERS: Final[dict[str, Callable[[KafkaOptions, TopicPartition], str]]] = {
    "log": _read_log,
    "markers": _read_markers,
    "verify": _verify,
    "late": _late,
}


def peak_mib() -> int:
    """By proc(5): what getrusage(2) says begins with the peak of the process that this one was forked from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024


def main(reader: str, bootstrap: str, topic: str) -> None:
    """Read, and print the outcome and by how many MiB the process has grown."""
    options = KafkaOptions.parse({"bootstrap.servers": bootstrap, "max.block.ms": str(_DEADLINE_MS)})
    before = peak_mib()
    try:
        outcome = _READERS[reader](options, TopicPartition(topic, 0))
    except DualWriteError as error:
        outcome = f"{type(error).__name__}: {error}"
    print(json.dumps({"outcome": outcome, "growth_mib": peak_mib() - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
