"""What one side lacks, as it is handed to whoever writes it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

#: Why a side lacks it: the other side alone has it, has it in another form, or has it once more.
Reason = Literal["missing", "differing", "twice"]


@dataclass(frozen=True)
class LoneRecord:
    """A record that the table has no row of.

    Attributes:
        reason: see `Reason`; of ``differing`` the table has another row of the same key.
        topic, partition, offset: where it is.
        key, value: of the record.
        headers: of the record.
        row: its columns as texts in the form that COPY takes, by name, null as None; None where it cannot be a row.
    """

    reason: Reason
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    row: Mapping[str, str | None] | None


@dataclass(frozen=True)
class LoneRow:
    """A row that Kafka has no record of.

    Attributes:
        reason: see `Reason`; of ``differing`` Kafka has another record of the same key.
        columns: as texts, by name, null as None.
        json: the same as a JSON object, as PostgreSQL writes it.
    """

    reason: Reason
    columns: Mapping[str, str | None]
    json: str


class MissingWriter(Protocol):
    """Takes all that is lacking, one after the other; `files` are what it has written, once it is closed."""

    def add_record(self, record: LoneRecord) -> None:
        """Take what the table lacks."""

    def add_row(self, row: LoneRow) -> None:
        """Take what Kafka lacks."""

    def close(self) -> Sequence[str]:
        """End the files; their paths."""
