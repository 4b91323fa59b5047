"""``spark-2pc status`` and ``recover``: both sides of one sink, or of all, on one screen; and settling one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from spark_2pc_sink.choices.choice import flags
from spark_2pc_sink.cli.options import add_options, add_sides, add_sink, add_timeout, given_sides, reason_for
from spark_2pc_sink.cli.output import EXIT_FAILED, EXIT_IN_DOUBT, EXIT_NOT_KNOWN, EXIT_SETTLED, CommandResult
from spark_2pc_sink.clock import Clock, Deadline, SystemClock
from spark_2pc_sink.errors import HaltError, TakeOverRefusedError
from spark_2pc_sink.options import OperatorDecision, StatusOptions
from spark_2pc_sink.options.settings import options_of, setting_of
from spark_2pc_sink.recovery.api import recover, status
from spark_2pc_sink.recovery.report import IN_DOUBT, Condition, RecoveryReport, StatusReport

#: Maximum of listed sinks; beyond it, fine sinks are only counted.
ROWS_MAX: Final = 20
#: Sinks in doubt whose details are printed below the list by default.
DETAILS_MAX: Final = 2
_ORDER: Final[tuple[Condition, ...]] = ("in_doubt", "owed", "unclear", "not_known", "at_work", "fine", "elsewhere")
_WELL: Final[frozenset[Condition]] = frozenset({"at_work", "fine", "elsewhere"})
_SIDE: Final = {"database": "the database", "kafka": "Kafka"}


def status_text(
    found: StatusReport, *, in_doubt: bool = False, everything: bool = False, details: bool = False, one: bool = False
) -> str:
    """All of it, as lines. If ``one`` sink was requested, its verdict includes the details."""
    listed = ordered(found.in_doubt if in_doubt else found.sinks)
    rows = listed
    if len(listed) > ROWS_MAX and not everything:
        rows = [report for report in listed if report.condition not in _WELL][:ROWS_MAX]
    omitted = [f"and {len(listed) - len(rows)} more (see --all)"] if len(listed) > len(rows) else []
    described = rows if one or details else [report for report in rows if report.condition in IN_DOUBT]
    cut = len(described) - DETAILS_MAX if not (one or details) else 0
    blocks = [
        [*([] if one and rows else [found.summary]), *_problems(found)],
        [] if one or not rows else [*(f"{each.transactional_id}: {each.headline}" for each in rows), *omitted],
        *([str(report)] for report in (described[:-cut] if cut > 0 else described)),
        [f"{cut} more in doubt: --details or --transactional-id ID shows what to do"] if cut > 0 else [],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def ordered(reports: Sequence[RecoveryReport]) -> list[RecoveryReport]:
    """Sinks that need a person first, the oldest of them first; then by id."""
    return sorted(reports, key=lambda one: (_ORDER.index(one.condition), -(one.waits_s or 0.0), one.transactional_id))


def _problems(found: StatusReport) -> list[str]:
    """The part that could not be read, and the effect on the rest. The reason is the command's error."""
    lines = [found.note] if found.note else []
    if found.kafka_problem:
        lines.append("KAFKA COULD NOT BE READ (see the error below). This is the state in the database only")
    if found.database_problem:
        lines.append("THE DATABASE COULD NOT BE READ (see the error below). This is the state in Kafka only")
    lines += [f"{each.transactional_id}: UNREADABLE in {_SIDE[each.side]}: {each.problem}" for each in found.unreadable]
    return lines


def _unread(found: StatusReport) -> list[tuple[str, str]]:
    sides = (("Kafka", found.kafka_problem), ("the database", found.database_problem))
    return [(side, problem) for side, problem in sides if problem]


#: How long ``--wait`` waits by default, in seconds: a restart with its recovery takes less.
WAIT_S: Final = 60
#: The pause between two looks.
_PAUSE_S: Final = 1.0
_STATUS_EXITS: Final = (
    "exit codes: 0 nothing is in doubt; 1 a side could not be read, or (if nothing is in doubt) the data of a sink is "
    "invalid; 2 wrong command line or option; 3 something is in doubt (normal for a moment during a batch); 4 none of "
    "the requested sinks is known here: the state table has no row for it, or it belongs to another Kafka cluster"
)
_RECOVER_EXITS: Final = (
    "exit codes: 0 nothing is in doubt (any more); 1 a side refused or could not be reached; 2 wrong command line or "
    "option; 3 something is in doubt (normal for a moment during a batch); 4 the state table has no row for the sink"
)


class IncompleteStatusError(Exception):
    """A side could not be read, or a sink's data is invalid. The rest of the status is still printed."""

    def __init__(self, found: StatusReport) -> None:
        problems = [f"{side} could not be read: {problem}" for side, problem in _unread(found)]
        self.remedies: tuple[str, ...] = ("try again when it answers, or raise --timeout",) if problems else ()
        problems += [f"{each.transactional_id} has invalid data: {each.problem}" for each in found.unreadable]
        super().__init__("; ".join(problems))


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    looking = commands.add_parser("status", help="show both sides of every sink; changes nothing", epilog=_STATUS_EXITS)
    add_sides(looking, positional=True)
    chosen = looking.add_mutually_exclusive_group()
    add_sink(chosen, about="one sink, with all details (default: that of --config, or else all sinks)")
    chosen.add_argument("--match", metavar="GLOB", help=setting_of(options_of(StatusOptions)[0]).why)
    shown = looking.add_mutually_exclusive_group()
    shown.add_argument("--in-doubt", action="store_true", help="only sinks that need attention")
    shown.add_argument("--all", action="store_true", help="every sink, also if there are many and all are healthy")
    looking.add_argument("--details", action="store_true", help="show both sides and the remedies of each listed sink")
    add_timeout(looking)
    about = (
        f"wait until nothing is in doubt, at most this long (without a number: {WAIT_S}); prints on standard error "
        "what it waits for"
    )
    looking.add_argument("--wait", dest="wait_s", type=int, nargs="?", const=WAIT_S, metavar="SECONDS", help=about)
    looking.set_defaults(run=_status)

    about = "settle what a crashed job left; safe to run twice"
    settling = commands.add_parser("recover", help=about, epilog=_RECOVER_EXITS)
    add_sides(settling, positional=True)
    add_sink(settling, about="the sink (default: that of --config)", required=True)
    add_options(settling, "dry_run", "take_over", "adopt", "accept_loss", "open_transaction", "batch", "reason")
    add_options(settling, "accept_database")
    choice = settling.add_mutually_exclusive_group()
    for decision in OperatorDecision:
        about = f"for a batch that Kafka lacks: {decision.value}"
        [flag] = flags({"decision": decision})
        choice.add_argument(flag, dest="decision", action="store_const", const=decision, help=about)
    settling.set_defaults(run=_recover)


def exit_code_of(found: StatusReport) -> int:
    """The exit code of a status. A picture that lacks a side is not an answer, even if the rest is fine."""
    if found.in_doubt and not _unread(found):
        return EXIT_IN_DOUBT
    if not found.complete:
        return EXIT_FAILED
    none_known = all(report.condition in {"elsewhere", "not_known"} for report in found.sinks)
    return EXIT_NOT_KNOWN if none_known else EXIT_SETTLED


def _status(given: argparse.Namespace) -> CommandResult:
    options = given_sides(given)

    def look() -> StatusReport:
        return status(match=given.match, timeout_s=given.timeout_s, **options)

    def say(line: str) -> None:
        print(f"spark-2pc: {line}", file=sys.stderr, flush=True)

    found = look() if given.wait_s is None else wait_until_settled(look, given.wait_s, say, SystemClock())
    shown = {"in_doubt": given.in_doubt, "everything": given.all, "details": given.details}
    fields = replace(found, sinks=found.in_doubt) if given.in_doubt else found
    code = exit_code_of(found)
    return CommandResult(
        exit_code=code,
        fields={**fields.as_json(), "summary": found.summary},
        text=status_text(found, **shown, one="transactional_id" in options),
        error=IncompleteStatusError(found) if code == EXIT_FAILED else None,
    )


def wait_until_settled(
    look: Callable[[], StatusReport], limit_s: int, say: Callable[[str], None], clock: Clock
) -> StatusReport:
    """The last look, once both sides are read and nothing is in doubt, or time is up; ``say`` gets each new reason."""
    deadline, told = Deadline(clock, limit_s * 1000), ""
    while True:
        found = look()
        reasons = [f"{side}, which cannot be read" for side, _ in _unread(found)]
        for report in found.in_doubt:
            # Without growing numbers, so that it is printed once.
            batch = "" if report.row is None or report.row.batch_id is None else f", batch {report.row.batch_id}"
            reasons.append(f"{report.transactional_id} ({report.condition.replace('_', ' ')}{batch})")
        waits_for = "; ".join(reasons)
        if not waits_for or deadline.passed:
            return found
        if waits_for != told:
            say(f"waiting for {waits_for}")
            told = waits_for
        clock.sleep(min(_PAUSE_S, deadline.remaining_s))


def _recover(given: argparse.Namespace) -> CommandResult:
    said = given_sides(given)
    if decided := _decided(said):
        said["reason"] = reason_for(given, decided)
    try:
        report = recover(**said)
    except (HaltError, TakeOverRefusedError) as error:
        # The error has the same text. A halt of the state table has no report, because Kafka was not read.
        found = [] if error.report is None else [error.report.as_json()]
        return CommandResult(exit_code=EXIT_IN_DOUBT, fields={"sinks": found}, error=error)
    code = (EXIT_SETTLED if report.known else EXIT_NOT_KNOWN) if report.settled else EXIT_IN_DOUBT
    return CommandResult(exit_code=code, fields={"sinks": [report.as_json()]}, text=f"{report}\n")


def _decided(said: Mapping[str, Any]) -> str:
    """The flag after which data may differ, so that a reason is required; '' for none."""
    if said.get("dry_run"):
        return ""
    accepting = ("decision", "accept_loss", "open_transaction")
    return next((flags({name: said[name]})[0].split()[0] for name in accepting if name in said), "")
