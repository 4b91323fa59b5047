"""Text of a status: a summary, a table with one line for each sink, and the details of those that need a person.

It is made for one screen. Where there are more sinks than fit, those that are well are counted and not listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.recovery.report import duration
from spark_2pc_sink.recovery.status import IN_DOUBT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_2pc_sink.recovery.report import ActionKind, Condition, RecoveryReport
    from spark_2pc_sink.recovery.status import StatusReport

#: Lines of the table; of more sinks, those that are well are counted only.
ROWS_MAX: Final = 20
#: Sinks in doubt whose details are printed below the table without being asked for.
DETAILS_MAX: Final = 2
_ORDER: Final[tuple[Condition, ...]] = ("in_doubt", "owed", "unclear", "not_known", "at_work", "fine", "elsewhere")
_WELL: Final[frozenset[Condition]] = frozenset({"at_work", "fine", "elsewhere"})
_HEAD: Final = ("sink", "condition", "batch", "rows", "records", "for", "driver", "recover would")
#: Columns whose numbers stand right.
_RIGHT: Final = frozenset({"batch", "rows", "records", "for"})
#: What is left out first where the terminal is too narrow.
_LEAST_NEEDED: Final = ("records", "rows")
#: No column that has texts becomes narrower.
_TEXT_MIN: Final = 12
_GAP: Final = "  "
_SIDE: Final = {"database": "the database", "kafka": "Kafka"}
_WOULD: Final[dict[ActionKind, str]] = {
    "rebuild_row": "make the row again",
    "take_open": "take it as decided",
    "commit": "commit",
    "abort": "abort",
    "note_done": "note it as done",
    "note_owed": "note it as owed",
    "accept_loss": "go on without a loss",
    "drop": "drop",
    "accept_replay": "accept the replay",
    "resend": "send it again",
    "wait": "wait for its end",
}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a person wants to see.

    Attributes:
        in_doubt: only those that a person has to look after.
        everything: every sink.
        details: of each that is shown.
        width: of the terminal, in characters.
    """

    in_doubt: bool = False
    everything: bool = False
    details: bool = False
    width: int


def status_text(found: StatusReport, shown: Shown, *, one: bool = False) -> str:
    """All of it, as lines.

    Args:
        found: what there is to show.
        shown: what of it.
        one: one sink was asked for: it has details, and no table.
    """
    listed = ordered(found.in_doubt if shown.in_doubt else found.sinks)
    rows = listed if shown.everything else _fitting(listed)
    details = rows if one or shown.details else [report for report in rows if report.condition in IN_DOUBT]
    cut = len(details) - DETAILS_MAX if not (one or shown.details) else 0
    blocks = [
        [found.summary, *_problems(found)],
        [] if one or not rows else [*table(rows, shown.width), *_left_out(listed, rows)],
        *([str(report)] for report in (details[:-cut] if cut > 0 else details)),
        [f"{cut} more in doubt: --details, or --transactional-id ID, shows what to do"] if cut > 0 else [],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def ordered(reports: Sequence[RecoveryReport]) -> list[RecoveryReport]:
    """What needs a person first, the oldest of it first; then by id."""
    return sorted(
        reports,
        key=lambda report: (_ORDER.index(report.condition), -(report.waits_s or 0.0), report.transactional_id),
    )


def table(reports: Sequence[RecoveryReport], width: int) -> list[str]:
    """A line for the head, and one for each report, none longer than the terminal is wide where that can be.

    Args:
        reports: in their order.
        width: of the terminal.
    """
    columns = {name: [name, *cells] for name, cells in zip(_HEAD, zip(*map(_cells, reports), strict=True), strict=True)}
    for name in _LEAST_NEEDED:
        if _width(columns) > width:
            del columns[name]
    for name in ("driver", "sink", "recover would"):
        excess = _width(columns) - width
        longest = max(map(len, columns[name]))
        if excess > 0:
            room = max(_TEXT_MIN, longest - excess)
            columns[name] = [_cut(cell, room) for cell in columns[name]]
    padded = []
    for name, cells in columns.items():
        longest = max(map(len, cells))
        padded.append([cell.rjust(longest) if name in _RIGHT else cell.ljust(longest) for cell in cells])
    return [_GAP.join(line).rstrip() for line in zip(*padded, strict=True)]


def _cells(report: RecoveryReport) -> tuple[str, ...]:
    row = report.row
    batch = None if row is None else row.batch_id
    return (
        report.transactional_id,
        report.condition.replace("_", " "),
        "-" if batch is None else str(batch),
        "-" if row is None or batch is None else f"{row.row_count:,}".replace(",", " "),
        "-" if row is None or batch is None else f"{row.record_count:,}".replace(",", " "),
        "-" if report.waits_s is None else duration(report.waits_s),
        _driver(report),
        _would(report),
    )


def _driver(report: RecoveryReport) -> str:
    """Whether it lives, and where."""
    if report.driver is None:
        return "-"
    if report.driver.session is not None:
        return f"pid {report.driver.session.pid} at {report.driver.session.address or 'local socket'}"
    return "not known" if report.driver.alive is None else "none"


def _would(report: RecoveryReport) -> str:
    """What recover would do."""
    if report.elsewhere or report.settled:
        return "-"
    if report.cause is not None and not report.actions:
        return f"stop: {report.cause.value}"
    if report.actions:
        return ", ".join(_WOULD[action.kind] for action in report.actions)
    return "nothing: start the job" if report.condition == "owed" else "not known"


def _fitting(listed: list[RecoveryReport]) -> list[RecoveryReport]:
    if len(listed) <= ROWS_MAX:
        return listed
    return [report for report in listed if report.condition not in _WELL][:ROWS_MAX]


def _left_out(listed: Sequence[RecoveryReport], rows: Sequence[RecoveryReport]) -> list[str]:
    number = len(listed) - len(rows)
    return [f"and {number} more, which --all shows"] if number else []


def _problems(found: StatusReport) -> list[str]:
    """What could not be read, and what that means for the rest. Why that is so is the error of the command."""
    lines = [found.note] if found.note else []
    if found.kafka_problem:
        lines.append("KAFKA COULD NOT BE READ (why: below). This is what the database alone knows")
    if found.database_problem:
        lines.append("THE DATABASE COULD NOT BE READ (why: below). This is what Kafka alone shows")
    lines += [f"{each.transactional_id}: UNREADABLE in {_SIDE[each.side]}: {each.problem}" for each in found.unreadable]
    return lines


def _width(columns: dict[str, list[str]]) -> int:
    return sum(max(map(len, cells)) for cells in columns.values()) + len(_GAP) * (len(columns) - 1)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"
