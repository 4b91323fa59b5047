"""Layout of a sink: where its records and rows are, and how both are made of a batch.

A job leaves it with its claim in the database, so that whoever compares both sides needs no arguments. Connections are
no part of it, so it has no secret but one that a person has written into an expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SinkLayout:
    """The options of a sink that say what a reader of either side finds; see `SinkOptions` for each.

    Expressions are as the user wrote them, and None where the sink chose by the columns of the batch.
    """

    table: str
    topic: str | None = None
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    partition: str | None = None
    columns: Mapping[str, str] | None = None
    mode: str = "append"
    upsert_keys: tuple[str, ...] = ()
    upsert_order_by: str | None = None
    upsert_superseded: str = "send_first"
    upsert_late_rows: str = "replace"

    @classmethod
    def of(cls, options: Any) -> SinkLayout:
        """That of a sink's options."""
        return cls(**{each.name: getattr(options, each.name) for each in fields(cls)})

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> SinkLayout:
        """What `as_json` has made, perhaps in another version: what this one does not know is left out."""
        known = {each.name: found[each.name] for each in fields(cls) if each.name in found}
        return cls(**{**known, "upsert_keys": tuple(known.get("upsert_keys", ()))})

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return {**asdict(self), "upsert_keys": list(self.upsert_keys)}
