"""The primitive fields of Kafka's message format, as far as the coordinator's records use them.

The types are those of "Protocol Primitive Types" in Kafka's protocol guide: big-endian integers, strings and arrays
with an int16 or int32 length, and in flexible versions (KIP-482) compact forms whose length is an unsigned varint of
length + 1, with 0 for null, followed by tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from spark_2pc_sink.errors import RemoteProtocolError

_PEER = "the transaction state log"
#: A string of Kafka's non-compact form has an int16 length.
STRING_BYTES_MAX = 32767
#: An unsigned varint of 32 bits takes 5 bytes at most; a longer one is garbage.
VARINT_BYTES_MAX = 5
#: Each byte of a varint carries seven bits, and says with the eighth that another one follows.
_PAYLOAD = 0x7F
_MORE = 0x80


def encode_varint(number: int) -> bytes:
    """An unsigned varint: seven bits a byte, least significant first."""
    encoded = bytearray()
    rest = number
    while rest > _PAYLOAD:
        encoded.append(rest & _PAYLOAD | _MORE)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def encode_string(text: str, *, compact: bool) -> bytes:
    """A string that is not null.

    Raises:
        RemoteProtocolError: longer than an int16 length can say.
    """
    encoded = text.encode()
    if compact:
        return encode_varint(len(encoded) + 1) + encoded
    if len(encoded) > STRING_BYTES_MAX:
        raise RemoteProtocolError(peer=_PEER, detail=f"a string of {len(encoded)} bytes does not fit an int16 length")
    return struct.pack(">h", len(encoded)) + encoded


def encode_length(count: int | None, *, compact: bool) -> bytes:
    """The length in front of an array; None for a null array."""
    if compact:
        return encode_varint(0 if count is None else count + 1)
    return struct.pack(">i", -1 if count is None else count)


def encode_tags(tags: Iterable[tuple[int, bytes]]) -> bytes:
    """The tagged fields at the end of a structure in a flexible version, in the order of their tags."""
    ordered = sorted(tags)
    parts = [encode_varint(len(ordered))]
    for tag, payload in ordered:
        parts += [encode_varint(tag), encode_varint(len(payload)), payload]
    return b"".join(parts)


class Reader:
    """Takes fields from the front of some bytes, and refuses to read past their end.

    Every method raises `RemoteProtocolError` where the bytes cannot be what they should be.

    Args:
        peer: whose bytes they are, for the error's sentence.
    """

    def __init__(self, data: bytes, *, peer: str = _PEER) -> None:
        self._data = data
        self._peer = peer
        self._position = 0

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        end = self._position + count
        if count < 0 or end > len(self._data):
            raise RemoteProtocolError(
                peer=self._peer,
                detail=f"{count} bytes wanted at {self._position} of a record with {len(self._data)} bytes",
            )
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def integer(self, size: int) -> int:
        """A signed big-endian integer of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def varint(self) -> int:
        """An unsigned varint."""
        number = 0
        for index in range(VARINT_BYTES_MAX):
            (byte,) = self.take(1)
            number |= (byte & _PAYLOAD) << (7 * index)
            if byte < _MORE:
                return number
        raise RemoteProtocolError(peer=self._peer, detail=f"a varint of more than {VARINT_BYTES_MAX} bytes")

    def string(self, *, compact: bool) -> str:
        """A string that is not null."""
        raw = self.take(self.varint() - 1 if compact else self.integer(2))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(peer=self._peer, detail=f"a string that is not UTF-8: {error}") from error

    def length(self, *, compact: bool) -> int | None:
        """The length in front of an array; None for a null array."""
        count = self.varint() - 1 if compact else self.integer(4)
        if count > len(self._data):
            raise RemoteProtocolError(
                peer=self._peer, detail=f"an array of {count} in a record of {len(self._data)} bytes"
            )
        return None if count < 0 else count

    def tags(self) -> dict[int, bytes]:
        """The tagged fields, unknown ones included."""
        return {self.varint(): self.take(self.varint()) for _ in range(self.varint())}

    def finish(self) -> None:
        """Refuse bytes that no field has claimed."""
        if self._position != len(self._data):
            raise RemoteProtocolError(
                peer=self._peer, detail=f"{len(self._data) - self._position} bytes after the end of a record"
            )
