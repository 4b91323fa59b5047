"""Text of a status: a line with the verdict for each sink, and the details of those that need a person.

It fits on one screen. If there are more sinks than fit, fine ones are counted and not listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.recovery.status import IN_DOUBT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_2pc_sink.recovery.report import Condition, RecoveryReport
    from spark_2pc_sink.recovery.status import StatusReport

#: Maximum of listed sinks; beyond it, fine sinks are only counted.
ROWS_MAX: Final = 20
#: Sinks in doubt whose details are printed below the list by default.
DETAILS_MAX: Final = 2
_ORDER: Final[tuple[Condition, ...]] = ("in_doubt", "owed", "unclear", "not_known", "at_work", "fine", "elsewhere")
_WELL: Final[frozenset[Condition]] = frozenset({"at_work", "fine", "elsewhere"})
_SIDE: Final = {"database": "the database", "kafka": "Kafka"}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The parts to show.

    Attributes:
        in_doubt: only those that need a person.
        everything: every sink.
        details: details of each shown sink.
    """

    in_doubt: bool = False
    everything: bool = False
    details: bool = False


def status_text(found: StatusReport, shown: Shown, *, one: bool = False) -> str:
    """All of it, as lines.

    Args:
        found: the status.
        shown: parts to show.
        one: one sink was requested: its verdict includes the details.
    """
    listed = ordered(found.in_doubt if shown.in_doubt else found.sinks)
    rows = listed if shown.everything else _fitting(listed)
    details = rows if one or shown.details else [report for report in rows if report.condition in IN_DOUBT]
    cut = len(details) - DETAILS_MAX if not (one or shown.details) else 0
    blocks = [
        [*([] if one and rows else [found.summary]), *_problems(found)],
        []
        if one or not rows
        else [*(f"{each.transactional_id}: {each.headline}" for each in rows), *_left_out(listed, rows)],
        *([str(report)] for report in (details[:-cut] if cut > 0 else details)),
        [f"{cut} more in doubt: --details, or --transactional-id ID, shows what to do"] if cut > 0 else [],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def ordered(reports: Sequence[RecoveryReport]) -> list[RecoveryReport]:
    """Sinks that need a person first, the oldest of them first; then by id."""
    return sorted(
        reports,
        key=lambda report: (_ORDER.index(report.condition), -(report.waits_s or 0.0), report.transactional_id),
    )


def _fitting(listed: list[RecoveryReport]) -> list[RecoveryReport]:
    if len(listed) <= ROWS_MAX:
        return listed
    return [report for report in listed if report.condition not in _WELL][:ROWS_MAX]


def _left_out(listed: Sequence[RecoveryReport], rows: Sequence[RecoveryReport]) -> list[str]:
    number = len(listed) - len(rows)
    return [f"and {number} more, which --all shows"] if number else []


def _problems(found: StatusReport) -> list[str]:
    """The part that could not be read, and the effect on the rest. The reason is the command's error."""
    lines = [found.note] if found.note else []
    if found.kafka_problem:
        lines.append("KAFKA COULD NOT BE READ (why: below). This is what the database alone knows")
    if found.database_problem:
        lines.append("THE DATABASE COULD NOT BE READ (why: below). This is what Kafka alone shows")
    lines += [f"{each.transactional_id}: UNREADABLE in {_SIDE[each.side]}: {each.problem}" for each in found.unreadable]
    return lines
