"""The targets: each reads any bytes, and fails on any error but the one that its reader promises; and their inputs.

Random bytes rarely have the right checksum. So where a reader checks one, the target can put it right first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import google_crc32c

from spark_2pc_sink.errors import ConfigurationError, RemoteProtocolError
from spark_2pc_sink.ids import BatchRange, PreparedTxnState
from spark_2pc_sink.options.kafka import KafkaOptions
from spark_2pc_sink.options.settings import options_of, value_of_text
from spark_2pc_sink.options.sink import SinkOptions
from spark_2pc_sink.options.sql_text import bare_statements, transaction_command
from spark_2pc_sink.reference.config.properties import BrokerProperties, Users, parse_assignments
from spark_2pc_sink.reference.groups.store import decode_group, decode_offset
from spark_2pc_sink.reference.internal_topics import TransactionLogKey, TransactionLogValue, decode, decode_value
from spark_2pc_sink.reference.metadata.catalog_state import read_checked
from spark_2pc_sink.reference.network.connection import RequestReader
from spark_2pc_sink.reference.network.sasl import SaslRefusedError, ScramExchange, evaluate_plain
from spark_2pc_sink.reference.protocol import REQUESTS, read_head, read_request
from spark_2pc_sink.reference.storage.batches import BatchError, decode_records, inspect, read_marker
from spark_2pc_sink.reference.storage.files import MemoryStore
from spark_2pc_sink.reference.storage.segmented_log import SegmentedLog
from spark_2pc_sink.sink.stream import attempt_input, task_stream as stream
from spark_2pc_sink.wire.batch_format import CRC_END, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC
from spark_2pc_sink.wire.batch_reader import decode_record_batches, decompress
from spark_2pc_sink.wire.record_batch import Compression

#: Of a frame in these tests: small, so that the bound itself is met.
_FRAME_BYTES_MAX: Final = 256
#: Connections share it too. Less than a frame and some: so that frames are met that do not fit.
_SCRATCH: Final = memoryview(bytearray(128))
_PLAIN_BYTES_MAX: Final = 64 * 1024
_USERS: Final = Users({"orders": "secret"})
_MAGIC_AT: Final = LOG_OVERHEAD_BYTES + 4
_CRC: Final = struct.Struct(">I")
_LENGTH: Final = struct.Struct(">i")


def _mended(data: bytes) -> bytes:
    """One batch whose length, format and checksum are right, whatever else is in it."""
    if len(data) < HEADER_BYTES:
        return data
    batch = bytearray(data)
    _LENGTH.pack_into(batch, LOG_OVERHEAD_BYTES - _LENGTH.size, len(data) - LOG_OVERHEAD_BYTES)
    batch[_MAGIC_AT] = MAGIC
    _CRC.pack_into(batch, CRC_END - _CRC.size, google_crc32c.value(bytes(batch[CRC_END:])))
    return bytes(batch)


def _maybe_mended(data: bytes) -> bytes:
    """The first byte says whether."""
    return _mended(data[1:]) if data[:1] < b"\xc0" else data[1:]


def frames(data: bytes) -> None:
    """However the bytes arrive, the frames are the same, and never larger than allowed."""
    # The last byte says in which parts. Byte by byte each time would be a tenth of the inputs in the same time.
    size = 1 + data[-1] % 16 if data else 1
    assert _frames_in_parts(data, size) == _frames_in_parts(data, len(_SCRATCH))


def _frames_in_parts(data: bytes, size: int) -> tuple[list[bytes], bool]:
    reader = RequestReader(_SCRATCH, frame_bytes_max=_FRAME_BYTES_MAX, has_room=lambda _: True)
    found: list[bytes] = []
    position = 0
    while position < len(data) and reader.broken is None:
        room = reader.buffer()
        part = data[position : position + min(size, len(room))]
        room[: len(part)] = part
        found += map(bytes, reader.received(len(part)))
        position += len(part)
        assert reader.buffered_bytes <= max(_FRAME_BYTES_MAX, 4)
    assert all(len(frame) <= _FRAME_BYTES_MAX for frame in found)
    return found, reader.broken is not None


def requests(data: bytes) -> None:
    """A frame as the reference coordinator reads it, of an API and a version that there is."""
    with suppress(RemoteProtocolError):
        head = read_head(data)
        if head.api_key in REQUESTS and 0 <= head.version <= REQUESTS[head.api_key].max_version:
            read_request(bytearray(data), head)


def record_batches(data: bytes) -> None:
    """What a broker answers to Fetch, read for a recovery."""
    with suppress(RemoteProtocolError):
        for batch in decode_record_batches(_maybe_mended(data)):
            with suppress(RemoteProtocolError):
                assert len(list(batch.records())) == batch.record_count
            with suppress(RemoteProtocolError):
                assert batch.marker is None or batch.control


def produced_batches(data: bytes) -> None:
    """What a client sends with Produce, read by the reference coordinator."""
    batch = _maybe_mended(data)
    with suppress(BatchError):
        header = inspect(batch)
        with suppress(BatchError):
            assert len(list(decode_records(batch, header))) == header.record_count
        with suppress(BatchError):
            read_marker(batch, header)


def segments(data: bytes) -> None:
    """A segment file, recovered: a second recovery finds the same batches and cuts nothing."""
    # Batches from the front, each behind a length of its own; the rest is torn.
    parts, offset = [], 0
    while len(data) > 1 and offset >= 0 and (size := data[0]) >= HEADER_BYTES and len(data) > size:
        parts.append(_mended(offset.to_bytes(8, "big") + data[9 : 1 + size]))
        offset += 1 + int.from_bytes(parts[-1][23:27], "big", signed=True)
        data = data[1 + size :]
    store = MemoryStore()
    store.segment(0).append([*parts, data])
    first, _ = _recovered(store)
    again, log = _recovered(store)
    assert first == again
    assert log.recovered_cut_bytes == 0
    assert b"".join(first) == store.segment(0).read(0, log.size_bytes)


def _recovered(store: MemoryStore) -> tuple[list[bytes], SegmentedLog]:
    """The batches of the one segment; what is torn there is cut off, and is no error."""
    taken: list[bytes] = []
    log = SegmentedLog(store)
    log.recover(lambda _, batch: taken.append(batch))
    return taken, log


def compressed(data: bytes) -> None:
    """A compressed section: bounded, whatever it says of itself."""
    if data:
        with suppress(RemoteProtocolError):
            codec = list(Compression)[data[0] % len(Compression)]
            plain = decompress(memoryview(data)[1:], codec, bytes_max=_PLAIN_BYTES_MAX)
            assert len(plain) <= _PLAIN_BYTES_MAX


def internal_records(data: bytes) -> None:
    """Records of the coordinators' own logs."""
    readers: tuple[Callable[[bytes], object], ...] = (
        lambda value: decode(TransactionLogKey, value, version=0, peer="fuzz"),
        lambda value: decode_value(TransactionLogValue, value, peer="fuzz"),
        decode_offset,
        partial(decode_group, "g"),
    )
    if data:
        with suppress(RemoteProtocolError):
            readers[data[0] % len(readers)](data[1:])


def logins(data: bytes) -> None:
    """SASL messages of a client that knows no password."""
    for evaluate in (partial(evaluate_plain, _USERS), ScramExchange(_USERS, "SCRAM-SHA-256").evaluate):
        with suppress(SaslRefusedError):
            for message in data.split(b"\xff"):
                _, user = evaluate(message)
                assert user is None or b"secret" in data


def kafka_properties(data: bytes) -> None:
    """Properties of a client, lines of NAME=VALUE."""
    lines = (line.partition("=") for line in data.decode(errors="replace").splitlines())
    with suppress(ConfigurationError):
        options = KafkaOptions.parse({"bootstrap.servers": "h:1", **{name: value for name, _, value in lines}})
        assert options.login_config()


def broker_properties(data: bytes) -> None:
    """Properties of the reference coordinator."""
    with suppress(ConfigurationError):
        properties = BrokerProperties.from_mapping(parse_assignments(data.decode(errors="replace").splitlines()))
        for listener in properties.listening:
            properties.users_of(listener)


def option_texts(data: bytes) -> None:
    """Options of a sink as texts: numbers, switches, lists, JSON."""
    if data:
        every = options_of(SinkOptions)
        with suppress(ConfigurationError):
            value_of_text(every[data[0] % len(every)], data[1:].decode(errors="replace"))


def checked_json(data: bytes) -> None:
    """The catalog of the reference coordinator."""
    with suppress(ValueError):
        read_checked(data)


def short_texts(data: bytes) -> None:
    """Texts that a database or a person gives: a pair, a range of batches, SQL."""
    text = data.decode(errors="replace")
    with suppress(ConfigurationError):
        assert PreparedTxnState(PreparedTxnState(text).text).text == PreparedTxnState(text).text
    with suppress(ConfigurationError):
        assert str(BatchRange.parse(str(BatchRange.parse(text)))) == str(BatchRange.parse(text))
    bare_statements(text)
    transaction_command(text)


def stream_frames(data: bytes) -> None:
    """What a task sends to the driver, and what the driver answers: the same however it is cut, or refused."""
    size = 1 + data[-1] % 16 if data else 1
    found = _stream_in_parts(data, size)
    assert found == _stream_in_parts(data, 1 + len(data))
    for frame in found:
        with suppress(RemoteProtocolError):
            assert stream.packed_details(attempt_input.unpacked_batch(frame)) == frame.details
    answered = bytearray(data)
    with suppress(RemoteProtocolError):
        while stream.next_message(answered) is not None:
            pass  # bounded: each message takes a byte


def _stream_in_parts(data: bytes, size: int) -> list[stream.Frame]:
    reader = attempt_input.FrameReader()
    found: list[stream.Frame] = []
    position = 0
    with suppress(RemoteProtocolError):
        while position < len(data):
            space = reader.space()
            part = data[position : position + min(size, len(space))]
            space[: len(part)] = part
            position += len(part)
            frame = reader.advance(len(part))
            found += [] if frame is None else [frame]
    assert all(0 < len(frame.payload) <= stream.PAYLOAD_BYTES_MAX for frame in found)
    return found


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    each.__name__: each
    for each in (
        frames,
        requests,
        record_batches,
        produced_batches,
        segments,
        compressed,
        internal_records,
        logins,
        kafka_properties,
        broker_properties,
        option_texts,
        checked_json,
        short_texts,
        stream_frames,
    )
}


CORPUS: Final = Path(__file__).parent / "corpus"
#: The targets; each has a folder.
NAMES: Final = tuple(sorted(folder.name for folder in CORPUS.iterdir()))


def inputs() -> list[tuple[str, Path]]:
    return [(name, path) for name in NAMES for path in sorted((CORPUS / name).iterdir())]
