"""Sink views: what a page shows about a sink, as text and as charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.monitoring.dashboard.charts import Bar, short_number

if TYPE_CHECKING:
    from jdbc_state import HistoryLine
    from spark_2pc_sink.recovery.report import Condition, RecoveryReport

_MINUTE_S: Final = 60
_HOUR_S: Final = 60 * _MINUTE_S
_DAY_S: Final = 24 * _HOUR_S
#: Below this, tenths of a second are shown.
_TENTHS_BELOW_S: Final = 10
#: The steps of a batch shown separately in a chart; negligible ones are combined.
SHOWN_STEPS: Final = ("produce", "decide", "complete")
OTHER_STEPS: Final = "other"
_ROWS: Final = "rows"
#: An en dash, for missing values.
NOTHING: Final = "\u2013"


@dataclass(frozen=True)
class Badge:
    """A word for the condition of a sink.

    Attributes:
        text: the word.
        tone: CSS class: good, warn, bad or quiet.
    """

    text: str
    tone: str


_BADGES: Final[dict[Condition, Badge]] = {
    "fine": Badge("both sides agree", "good"),
    "at_work": Badge("at work", "good"),
    "in_doubt": Badge("in doubt", "bad"),
    "owed": Badge("Kafka is owed a batch", "warn"),
    "elsewhere": Badge("on another cluster", "quiet"),
    "not_known": Badge("not known", "quiet"),
    "unclear": Badge("unclear", "warn"),
}
#: In the order of a list.
_TONES: Final = ("bad", "warn", "good", "quiet")


def badge(sink: RecoveryReport) -> Badge:
    """The condition of a sink in a word."""
    return Badge("needs a decision", "bad") if sink.cause is not None else _BADGES[sink.condition]


def weight(sink: RecoveryReport) -> tuple[int, str]:
    """Sort key of a sink in a list: those that need attention are first."""
    return _TONES.index(badge(sink).tone), sink.transactional_id


def pending(sink: RecoveryReport) -> str:
    """What is in doubt, and since when; '' if nothing is."""
    if sink.elsewhere:
        return ""
    if sink.in_doubt_s is not None and sink.row is not None:
        return f"Kafka has lacked batch {sink.row.batch_id} for {duration(sink.in_doubt_s)}"
    if sink.prepared_s is not None:
        return f"a transaction has been open for {duration(sink.prepared_s)}"
    return ""


def driver_line(sink: RecoveryReport) -> str:
    """Whether the driver is alive, in a few words."""
    if sink.driver is None or sink.driver.alive is None:
        return "not known"
    if not sink.driver.alive:
        return "not running"
    session = sink.driver.session
    return f"runs on {session.address}" if session is not None and session.address else "runs"


def duration(seconds: float) -> str:
    """``8.2 s``, ``45 s``, ``3 min 12 s``, ``5 h 3 min``, ``12 d 4 h``."""
    if seconds < _TENTHS_BELOW_S:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def number(value: int | None) -> str:
    """A count, with narrow spaces between thousands; a dash for none."""
    return NOTHING if value is None else f"{value:,}".replace(",", "\u202f")


def name(value: object) -> str:
    """An identifying number, such as a batch id: as programs print it; a dash for none."""
    return NOTHING if value is None or value == "" else str(value)


def instant(value: datetime | None) -> str:
    """To the second, in UTC, which the page names; a dash for none."""
    return NOTHING if value is None else value.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def row_bars(lines: Sequence[HistoryLine]) -> list[Bar]:
    """Rows of each batch, from the oldest to the newest."""
    return [
        Bar(_at(line), f"batch {line.row.batch_id}: {number(line.row.row_count)} rows", {_ROWS: line.row.row_count})
        for line in _batches(lines)
    ]


def step_bars(lines: Sequence[HistoryLine]) -> list[Bar]:
    """Seconds of each batch by steps, if the history has them."""
    bars = []
    for line in _batches(lines):
        taken: dict[str, float] = line.figures.get("step_seconds", {})
        if not taken:
            continue
        parts = {step: taken.get(step, 0.0) for step in SHOWN_STEPS}
        parts[OTHER_STEPS] = sum(taken.values()) - sum(parts.values())
        told = ", ".join(f"{step} {short_number(seconds)} s" for step, seconds in parts.items() if seconds)
        bars.append(Bar(_at(line), f"batch {line.row.batch_id}: {told}", parts))
    return bars


def _batches(lines: Sequence[HistoryLine]) -> list[HistoryLine]:
    return [line for line in reversed(lines) if line.row.batch_id is not None]


def _at(line: HistoryLine) -> str:
    when = line.row.decided_at or line.row.claimed_at
    return when.astimezone(timezone.utc).strftime("%H:%M:%S")
