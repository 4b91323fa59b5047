"""JSON documents with a checksum, so that a flipped bit is not taken for a value."""

from __future__ import annotations

import json
from typing import Any, Final

import google_crc32c

_CHECKSUM: Final = "crc32c"


def write_checked(document: dict[str, Any]) -> bytes:
    """The document as JSON, with a checksum of all its fields."""
    return json.dumps({**document, _CHECKSUM: _checksum(document)}, indent=1).encode()


def read_checked(data: bytes) -> Any:
    """The document that `write_checked` wrote, without its checksum.

    One without a checksum is taken: an earlier version wrote none.

    Raises:
        ValueError: the bytes are no JSON, or the checksum does not fit them.
    """
    found = json.loads(data)
    if isinstance(found, dict) and _CHECKSUM in found:
        written = found.pop(_CHECKSUM)
        if written != _checksum(found):
            raise ValueError(f"its checksum is {written}, its fields make {_checksum(found)}")
    return found


def _checksum(document: dict[str, Any]) -> int:
    return int(google_crc32c.value(json.dumps(document, sort_keys=True).encode()))
