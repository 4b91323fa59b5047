"""``spark-2pc runbook``: walk a person through an incident, and write down what was done."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Final

from jdbc_state import Actor
from spark_2pc_sink.choices import TABLE, HaltCause, Problem, problem_in
from spark_2pc_sink.cli.options import PROGRAM, add_sides, add_sink, add_timeout, file_of, given_sides
from spark_2pc_sink.cli.output import EXIT_FAILED, EXIT_IN_DOUBT, EXIT_NOT_KNOWN, EXIT_SETTLED, CommandResult
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.runbook.conversation import Conversation, IncidentLog, NoAnswerError, RunbookEnd
from spark_2pc_sink.runbook.sides import BothSides

_EXITS: Final = {
    RunbookEnd.SETTLED: EXIT_SETTLED,
    RunbookEnd.NOT_KNOWN: EXIT_NOT_KNOWN,
    RunbookEnd.LEFT: EXIT_IN_DOUBT,
    RunbookEnd.OUT_OF_REACH: EXIT_FAILED,
}
_EPILOG: Final = (
    "Answers are read from standard input, one per line; at its end, or at Ctrl-C, nothing more is changed. "
    "RUNBOOK.md has a section for each symptom. Exit codes: 0 nothing is in doubt (any more); 1 a side refused or "
    "could not be reached; 2 wrong command line or option; 3 a person must finish something; 4 the sink is unknown here"
)


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "diagnose an incident and be guided through the fix; asks before anything is changed"
    parser = commands.add_parser("runbook", help=about, epilog=_EPILOG)
    add_sides(parser, positional=True)
    add_sink(parser, about="the sink (default: that of --config, or else every sink that needs attention)")
    causes = ", ".join(cause.value for cause in HaltCause)
    about = f"if the job has stopped: the line of its error, or the cause that it names: {causes}"
    parser.add_argument("--cause", type=_cause, metavar="CAUSE", help=about)
    about = (
        "ask no questions, and do only what is always safe: end batches as the database has decided, note how they "
        "ended, rebuild a lost state row from its history"
    )
    parser.add_argument("--yes", action="store_true", help=about)
    add_timeout(parser)
    about = "how a record becomes a row, if its value is not the row's JSON; as for spark-2pc verify"
    parser.add_argument("--record-columns", metavar="TEXT", help=about)
    about = "log of what was seen, answered and done: JSON if the name ends with .json, text otherwise"
    parser.add_argument("--protocol", type=Path, metavar="FILE", help=about)
    parser.set_defaults(run=_run)


def _cause(text: str) -> Problem:
    found = problem_in(text)
    if found is None:
        says = "; ".join(f'{cause.value} ("… {each.says} …")' for cause, each in TABLE.items() if each.job_only)
        raise argparse.ArgumentTypeError(f"{text!r} contains no known cause. Causes that only the job can tell: {says}")
    return found


def _run(given: argparse.Namespace) -> CommandResult:
    connection = given_sides(given)
    transactional_id = connection.pop("transactional_id", None)
    if given.cause is not None and transactional_id is None:
        raise refused("--cause", given.cause.value, "is the error of one sink's job", "pass --transactional-id too")
    registry = file_of(given).options.get("schema_registry")
    form = {"record_columns": given.record_columns, "schema_registry": registry}
    sides = BothSides(connection, timeout_s=given.timeout_s, **form)
    log = IncidentLog(who=Actor.of_this_process(PROGRAM), save=partial(_save, given.protocol))
    log.save(log)
    ending = Conversation(sides, Terminal(), log, told=given.cause, automatic=given.yes).run(transactional_id)
    fields = {"ending": ending.name.lower(), "protocol": log.as_json()}
    # The dialogue's messages about the side are in the log.
    error = ConnectionError(ending.value) if ending is RunbookEnd.OUT_OF_REACH else None
    return CommandResult(exit_code=_EXITS[ending], fields=fields, error=error)


def _save(path: Path | None, log: IncidentLog) -> None:
    if path is None:
        return
    text = json.dumps(log.as_json(), indent=2) + "\n" if path.suffix == ".json" else str(log)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise refused("--protocol", str(path), str(error), "name a file that can be written") from error


class Terminal:
    """The person at standard input and output, or a script that supplies the answers."""

    def say(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")

    def ask(self, question: str) -> str:
        try:
            answer = input(f"{question} ")
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n")
            raise NoAnswerError from None
        if not sys.stdin.isatty():
            # A terminal echoes the input; in other output the answers would be missing.
            self.say(answer)
        return answer
