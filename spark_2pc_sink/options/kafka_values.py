"""Parsers for texts, numbers and booleans as Kafka clients accept them: each also as a text."""

from __future__ import annotations

import re

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import HIDDEN

#: librdkafka's default; Java has none and refuses an address without a port.
DEFAULT_PORT = 9092
_PORT_MAX = 65535
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\],]+)(?::(?P<port>[0-9]{1,5}))?")
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def as_text(name: str, raw: object, *, secret: bool = False) -> str:
    """A text; numbers are not texts, so that a password of digits keeps its leading zeros."""
    if isinstance(raw, str):
        return raw
    raise ConfigurationError(
        option=name, value=HIDDEN if secret else raw, rule="it is a text", remedy="put it in quotation marks"
    )


def as_number(name: str, raw: object) -> int:
    """A whole number, or its decimal text."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and _NUMBER.fullmatch(raw.strip()):
        # int() itself strips fewer kinds of blanks than strip() does.
        return int(raw.strip())
    raise ConfigurationError(option=name, value=raw, rule="it is a whole number", remedy="pass a number or its text")


def as_boolean(name: str, raw: object, *, true: tuple[str, ...], false: tuple[str, ...]) -> bool:
    """One of the texts in ``true`` or in ``false``, in any case."""
    text = raw.strip().lower() if isinstance(raw, str) else None
    if text in true:
        return True
    if text in false:
        return False
    shown = ", ".join(repr(word) for word in (*true, *false))
    raise ConfigurationError(option=name, value=raw, rule=f"it is one of {shown}", remedy="pass one of them")


def as_servers(name: str, raw: object) -> tuple[str, ...]:
    """'host:port,host:port', or a list of such texts, as a tuple of 'host:port'."""
    listed = isinstance(raw, (list, tuple)) and all(isinstance(part, str) for part in raw)
    parts = list(raw) if isinstance(raw, (list, tuple)) and listed else as_text(name, raw).split(",")
    addresses = tuple(_address(name, part.strip()) for part in parts if part.strip())
    if not addresses:
        raise ConfigurationError(
            option=name, value=raw, rule="it names at least one broker", remedy="pass 'host:9092,host:9092'"
        )
    return addresses


def _address(name: str, text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port <= _PORT_MAX:
        raise ConfigurationError(
            option=name,
            value=text,
            rule="each broker is 'host:port', an IPv6 address in square brackets, without a protocol before it",
            remedy="pass 'host:9092,host:9092', and the protocol as security.protocol",
        )
    return f"{match['host']}:{port}"
