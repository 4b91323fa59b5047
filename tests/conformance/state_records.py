"""What a coordinator keeps of a transactional id: the records of ``__transaction_state``, read by a second hand."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from tests.conformance.leader_operations import Fetch
from tests.conformance.operations import Partition, ProducerId
from tests.unit.reference.batches import seen

TRANSACTION_LOG: Final[Partition] = ("__transaction_state", 0)
_STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
#: Tags of TransactionLogValue v1: what they are, and their form.
_TAGS: Final = {0: ("previous", ">q"), 1: ("next", ">q"), 2: ("client", ">h"), 3: ("next epoch", ">h")}
_IDS: Final = frozenset({0, 1})
_BYTES_MAX: Final = 50_000_000


@dataclass(frozen=True, kw_only=True)
class StateRecords:
    """The records of one transactional id, oldest first; times are told only as whether there is one.

    Each is: version of the value, state, producer id, epoch, timeout, whether there is a start, partitions (None where
    the field is null), tagged fields. None is a tombstone.
    """

    tid: str
    version: int = 12

    def request(self) -> Any:
        return Fetch(partition=TRANSACTION_LOG, offset=0, bytes_max=_BYTES_MAX).request()

    def result(self, response: Any) -> Any:
        found = response.responses[0].partitions[0]
        if found.error_code:
            return found.error_code
        key = struct.pack(">hh", 0, len(self.tid)) + self.tid.encode()
        return [_decoded(each.value) for each in seen(bytes(found.records or b"")) if each.key == key]


class _Reader:
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


def _decoded(data: bytes | None) -> Any:
    if data is None:
        return None
    reader = _Reader(data)
    version, producer, epoch, timeout_ms, state = reader.fields(">hqhib")
    compact = version >= 1
    partitions = _partitions(reader, compact=compact)
    _, start_ms = reader.fields(">qq")
    tags = {}
    for _ in range(reader.unsigned() if compact else 0):
        tag, length = reader.unsigned(), reader.unsigned()
        name, form = _TAGS[tag]
        (number,) = struct.unpack(form, reader.take(length))
        tags[name] = ProducerId(number) if tag in _IDS else number
    assert reader.at_end
    return version, _STATES[state], ProducerId(producer), epoch, timeout_ms, start_ms >= 0, partitions, tags


def _partitions(reader: _Reader, *, compact: bool) -> list[Partition] | None:
    count = reader.unsigned() - 1 if compact else reader.fields(">i")[0]
    if count < 0:
        return None
    found: list[Partition] = []
    for _ in range(count):
        name = reader.take(reader.unsigned() - 1 if compact else reader.fields(">h")[0]).decode()
        members = reader.unsigned() - 1 if compact else reader.fields(">i")[0]
        found += [(name, reader.fields(">i")[0]) for _ in range(members)]
        if compact:
            assert reader.unsigned() == 0
    return sorted(found)
