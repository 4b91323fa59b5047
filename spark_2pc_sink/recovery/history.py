"""History: the batches of sinks and the actions of drivers and people, in one timeline.

The batches are from the history that each decision writes, the rest from the table of actions (`jdbc_state.actions`).
Kafka is not contacted.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jdbc_state.actions import ActionLine
from jdbc_state.history import ADOPTED, CLAIMED, EMPTY, NOTED, PASSED
from spark_2pc_sink.options import RecoveryOptions, checks_keywords
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.recovery.api import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jdbc_state import HistoryLine

#: Default number of entries, if neither a number nor a time is given.
LAST: Final = 50
#: The maximum that can be requested.
LAST_MAX: Final = 1_000_000
#: Arguments of `history` that are not options of a sink.
_OWN: Final = {"last", "since", "batches", "actions"}
#: History events without a batch: their actions are listed instead.
_NO_BATCH: Final = (CLAIMED, ADOPTED)
#: History events whose batch was not decided together with rows: their time is that of settling.
_SETTLED_ONLY: Final = (EMPTY, PASSED, NOTED)


@dataclass(frozen=True, kw_only=True)
class BatchEntry:
    """A batch in the database.

    Attributes:
        at: when it was decided; for a batch without rows (`event`), when it was noted.
    """

    at: datetime
    transactional_id: str
    event: str
    status: str
    batch_id: int | None
    row_count: int
    record_count: int
    kafka_offsets: Mapping[str, tuple[int, int]]
    prepared_transaction_state: str
    generation: int
    decided_at: datetime | None
    settled_at: datetime | None

    @classmethod
    def of(cls, line: HistoryLine) -> BatchEntry:
        row = line.row
        at = row.settled_at if line.event in _SETTLED_ONLY else row.decided_at
        copied = {each.name: getattr(row, each.name) for each in fields(cls) if each.name not in ("at", "event")}
        return cls(at=at or row.claimed_at, event=line.event, **copied)


#: Both have `at`, `transactional_id` and `batch_id`.
Entry: TypeAlias = BatchEntry | ActionLine


@dataclass(frozen=True)
class HistoryReport:
    """Batches and actions, the newest last."""

    entries: tuple[Entry, ...]

    def as_json(self) -> list[dict[str, Any]]:
        """The entries as JSON has them: ``kind`` is ``batch`` or ``action``, times are ISO 8601 in UTC."""
        return [
            {"kind": "batch" if isinstance(entry, BatchEntry) else "action", **_as_json(entry)}
            for entry in self.entries
        ]


@checks_keywords
def history(
    *,
    database: str,
    transactional_id: str | None = None,
    last: int | None = None,
    since: datetime | None = None,
    batches: bool = True,
    actions: bool = True,
    database_password: Callable[[], str] | None = None,
    password_command: str | None = None,
    require_tls: bool = False,
    state_schema: str = "public",
    state_table: str = "kafka_transaction_state",
    history_table: str | None = None,
    history_batches: int = 1_000,
    connect_timeout_s: int = 10,
    lock_timeout_ms: int = 30_000,
    statement_timeout_ms: int = 600_000,
) -> HistoryReport:
    """The batches of one sink, or of all, and who did what to it, when and why; nothing is claimed or changed.

    Args:
        database and those of the database: as for the sink.
        transactional_id: one sink; None for all.
        last: maximum number of entries, the newest; None: 50, or with ``since`` all.
        since: none older than this; needs a time zone.
        batches: include the batches.
        actions: include the actions of drivers and people.

    Raises:
        ConfigurationError: an option is wrong.
        StateStoreError: the database cannot be read.
    """
    given = locals()
    if since is not None and since.tzinfo is None:
        raise refused("since", str(since), "must have a time zone", "pass datetime(…, tzinfo=timezone.utc)")
    if last is not None and not 1 <= last <= LAST_MAX:
        raise refused("last", last, f"must be between 1 and {LAST_MAX}", "pass a number in that range")
    options = RecoveryOptions.of_every_sink(**{name: value for name, value in given.items() if name not in _OWN})
    number = last or (LAST if since is None else LAST_MAX)
    found: list[Entry] = []
    with closing(open_store(options)) as store:
        if batches:
            lines = store.read_history(transactional_id, last=number)
            entries = [BatchEntry.of(line) for line in lines if line.event not in _NO_BATCH]
            found += [entry for entry in entries if since is None or entry.at >= since]
        if actions:
            found += store.read_actions(transactional_id, last=number, since=since)
    # Actions on a batch follow it, and two actions of one instant keep their order.
    found.sort(key=lambda entry: (entry.at, entry.number if isinstance(entry, ActionLine) else -1))
    return HistoryReport(tuple(found[-number:]))


def utc(moment: datetime, *, timespec: str = "milliseconds") -> str:
    return moment.astimezone(timezone.utc).isoformat(timespec=timespec).replace("+00:00", "Z")


def _as_json(entry: Entry) -> dict[str, Any]:
    values = asdict(entry)
    return {name: utc(value) if isinstance(value, datetime) else value for name, value in values.items()}
