"""Columns that users may have: with the names that statements of ours use for something else, and with odd ones."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any, Final

#: All one-letter names, the aliases and temporary names of statements, keywords, and what only quotes allow.
NAMES: Final = (
    *string.ascii_lowercase,
    "at",
    "batch",
    "c0",
    "gone",
    "h_1",
    "it",
    "key_hash",
    "n_1",
    "own",
    "part",
    "piece",
    "place",
    "record",
    "record_at",
    "records",
    "row",
    "row_at",
    "rows",
    "twice",
    "verify_record",
    "verify_records",
    "verify_rows",
    "wanted",
    "EXCLUDED",
    "aimed",
    "as_in_kafka",
    "excluded",
    "found",
    "ranked",
    "target",
    "there",
    "winners",
    "#offset",
    "#place",
    "#tombstone",
    "current_user",
    "from",
    "json",
    "jsonb",
    "null",
    "numeric",
    "order",
    "user",
    'a "b"',
    "a%s",
    "a.b",
    "a:b",
    ":c",
    "a?b",
    "{0}",
    "back\\slash",
    "C",
    "quote's",
)
#: Types of columns, and the value of a row's number as Spark's to_json spells it; greater numbers are greater values.
KINDS: Final[Mapping[str, Any]] = {
    "text": lambda n: f"text {n:03}",
    "jsonb": lambda n: {"at": "2023-01-01T05:45:00.123+05:45", "n": n},
    "bigint": lambda n: n,
    "timestamptz": lambda n: f"2024-01-01T00:00:{n:02}.123Z",
    "double precision": lambda n: n / 8,
}


def column_kinds(kind_of_j: str) -> dict[str, str]:
    """The type of each column, all types in turn."""
    kinds = list(KINDS)
    first = kinds.index(kind_of_j) - NAMES.index("j")
    return {name: kinds[(first + place) % len(kinds)] for place, name in enumerate(NAMES)}


def row_of(kinds: Mapping[str, str], number: int, *, value: int | None = None) -> dict[str, Any]:
    """A row with a key, and a value in each column. ``value``: the number that the values tell; by default the key."""
    told = number if value is None else value
    return {"id": number, **{name: KINDS[kind](told) for name, kind in kinds.items()}}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
