"""Record batches of magic 2, written and read by a second hand: nothing here comes from the package under test."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c

_HEAD: Final = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, checksum
_BODY: Final = struct.Struct(">hiqqqhii")  # attributes, last delta, times, producer id, epoch, sequence, count
_CONTROL_KEY: Final = struct.Struct(">hh")
_CONTROL_VALUE: Final = struct.Struct(">hi")
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_COMPRESSION: Final = 0x07


@dataclass(frozen=True)
class Batch:
    """One record batch as it lies in the log.

    Args:
        marker: "COMMIT" or "ABORT" for a control batch, else "".
        coordinator_epoch: of a control batch, else -1.
        records: keys and values, of a batch of data.
    """

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    sequence: int
    transactional: bool
    marker: str = ""
    coordinator_epoch: int = -1
    records: tuple[tuple[bytes | None, bytes | None], ...] = ()

    @property
    def values(self) -> tuple[bytes | None, ...]:
        """Of the records."""
        return tuple(value for _, value in self.records)


def batch(
    values: Sequence[bytes | None],
    *,
    now_ms: int,
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    keys: Sequence[bytes | None] = (),
) -> bytes:
    """The bytes of one uncompressed batch.

    Args:
        values: of the records.
        now_ms: timestamp of every record.
        producer: id and epoch.
        sequence: of the first record.
        transactional: the batch belongs to a transaction.
        control: it says that it is an end marker.
        keys: of the records; none by default.
    """
    found = list(keys) or [None] * len(values)
    records = b"".join(_record(index, key, value) for index, (key, value) in enumerate(zip(found, values, strict=True)))
    attributes = (_TRANSACTIONAL if transactional else 0) | (_CONTROL if control else 0)
    count = len(values)
    body = _BODY.pack(attributes, count - 1, now_ms, now_ms, *producer, sequence, count) + records
    return _HEAD.pack(0, len(body) + 9, -1, 2, google_crc32c.value(body)) + body


def read_batches(data: bytes) -> list[Batch]:
    """The whole batches in the bytes of a Fetch; a last one that is cut off is left out, as consumers do."""
    return list(_batches(bytes(data)))


def read_records(data: bytes) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of all data records in the bytes of a Fetch."""
    return [record for each in _batches(data) for record in each.records if not each.marker]


class Reader:
    """Reads fields of a message one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self, form: str) -> tuple[Any, ...]:
        """The next fields of fixed size, as `struct` has them."""
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def take(self, count: int) -> bytes:
        """The next bytes."""
        found = self._data[self._at : self._at + count]
        assert len(found) == count
        self._at += count
        return found

    def unsigned(self) -> int:
        """The next unsigned varint."""
        found = shift = 0
        while True:
            (byte,) = self.take(1)
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    @property
    def at_end(self) -> bool:
        """True when everything has been read."""
        return self._at == len(self._data)


def _batches(data: bytes) -> Iterator[Batch]:
    start = 0
    while start + _HEAD.size + _BODY.size <= len(data):
        base, length, _, magic, checksum = _HEAD.unpack_from(data, start)
        end = start + 12 + length
        if end > len(data):
            return
        assert magic == 2
        body = data[start + _HEAD.size : end]
        assert google_crc32c.value(body) == checksum
        attributes, delta, _, _, producer, epoch, sequence, count = _BODY.unpack_from(body)
        assert attributes & _COMPRESSION == 0
        records = list(_records(body[_BODY.size :], count))
        marker, coordinator = "", -1
        if attributes & _CONTROL:
            marker = ("ABORT", "COMMIT")[_CONTROL_KEY.unpack(records[0][0] or b"")[1]]
            coordinator = _CONTROL_VALUE.unpack(records[0][1] or b"")[1]
        yield Batch(
            base_offset=base,
            last_offset=base + delta,
            producer_id=producer,
            producer_epoch=epoch,
            sequence=sequence,
            transactional=bool(attributes & _TRANSACTIONAL),
            marker=marker,
            coordinator_epoch=coordinator,
            records=() if marker else tuple(records),
        )
        start = end


def _records(data: bytes, count: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    at = 0
    for _ in range(count):
        length, at = _read_varint(data, at)
        end = at + length
        at += 1  # attributes
        _, at = _read_varint(data, at)  # timestamp delta
        _, at = _read_varint(data, at)  # offset delta
        key, at = _read_field(data, at)
        value, at = _read_field(data, at)
        at = end
        yield key, value


def _record(delta: int, key: bytes | None, value: bytes | None) -> bytes:
    fields = b"\0" + _varint(0) + _varint(delta) + _field(key) + _field(value) + _varint(0)
    return _varint(len(fields)) + fields


def _field(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _read_field(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _varint(value: int) -> bytes:
    left = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while data[at] & 0x80:
        found |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    found |= data[at] << shift
    return (found >> 1) ^ -(found & 1), at + 1
