"""``spark-2pc verify``: compare what readers of both sides see, and say where they differ."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from spark_2pc_sink.cli.options import add_sides, add_sink, file_of, given_sides
from spark_2pc_sink.cli.output import EXIT_IN_DOUBT, EXIT_INCONCLUSIVE, EXIT_NOT_KNOWN, EXIT_SETTLED, CommandResult
from spark_2pc_sink.extras import extra
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.verification.api import SHAPE, verify
from spark_2pc_sink.verification.repairs import Commands, next_steps
from spark_2pc_sink.verification.report import Verdict

_EXITS: Final = (
    "exit codes: 0 both sides are the same; 1 a side refused or could not be reached; 2 wrong command line or option; "
    "3 they differ; 4 the state table has no row for the sink; 5 inconclusive: no difference was found, but too "
    "much could not be compared"
)
_EXIT_OF: Final[dict[Verdict, int]] = {
    "same": EXIT_SETTLED,
    "different": EXIT_IN_DOUBT,
    "inconclusive": EXIT_INCONCLUSIVE,
}
_ASKED: Final = ("since", "last", "batch", "open_transaction", "table_only", "write_missing")


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "compare the records of the topics with the rows of the table; changes nothing"
    command = commands.add_parser("verify", help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=_EXITS)
    add_sides(command, positional=True)
    add_sink(command, about="the sink (default: that of --config)", required=True)
    noted = "(default: as noted by the sink)"
    about = f"'table' or 'schema.table', quoted as in SQL; the one to compare if there are several {noted}"
    command.add_argument("--table", metavar="TABLE", help=about)
    command.add_argument("--topic", metavar="TOPIC", help=f"the topic with the records of the table {noted}")
    modes = ("append", "upsert", "insert_ignore")
    command.add_argument("--mode", choices=modes, help=f"how the sink writes the table {noted}")
    about = "the columns that identify a row (default: as noted by the sink, or else the primary key)"
    command.add_argument(
        "--keys", type=lambda text: [name.strip() for name in text.split(",")], metavar="COLUMN,…", help=about
    )
    about = f"with upserts: the greatest value wins among rows with the same key in a batch {noted}"
    command.add_argument("--order-by", metavar="COLUMN", help=about)
    about = f"with upserts: the sink's upsert_late_rows {noted}"
    command.add_argument("--late-rows", choices=("replace", "keep_newer"), help=about)
    about = "how a record becomes a row if its value is not its JSON, such as \"order_id = (value->>'id')::bigint\""
    command.add_argument("--record-columns", metavar="COLUMN=SQL,…", help=about)
    about = "registry of Avro and Protobuf schemas (default: that of --config, which may include a login)"
    command.add_argument("--schema-registry", metavar="URL", help=about)
    scope = command.add_mutually_exclusive_group()
    scope.add_argument("--since", type=int, metavar="BATCH", help="only this batch and all later ones")
    scope.add_argument("--last", type=int, metavar="N", help="only the newest N batches")
    scope.add_argument("--batch", type=int, metavar="BATCH", help="only this batch")
    about = "compare only the records of the open transaction with the table, to decide whether to commit or abort it"
    command.add_argument("--open", dest="open_transaction", action="store_true", help=about)
    about = "ignore the history: for topics into which records were put back by hand, outside of any batch"
    command.add_argument("--table-only", action="store_true", help=about)
    about = "write files with what either side lacks, and the commands that add it; DIR must be empty or new"
    command.add_argument("--write-missing", metavar="DIR", help=about)
    command.set_defaults(run=_verify)


def _verify(given: argparse.Namespace) -> CommandResult:
    shape, asked = ({name: getattr(given, name) for name in names} for names in (SHAPE, _ASKED))
    sides = {name: value for name, value in given_sides(given).items() if name not in asked}
    chosen = {name: value for name, value in shape.items() if value is not None}
    registry = file_of(given).options.get("schema_registry")
    if given.schema_registry is not None:
        registry = {"url": given.schema_registry}
    with _progress_bars() as progress:
        report = verify(progress=progress, schema_registry=registry, **sides, **asked, **chosen)
    steps = next_steps(report, Commands(RecoveryOptions.parse(**sides), shape))
    return CommandResult(
        exit_code=_EXIT_OF[report.verdict] if report.known else EXIT_NOT_KNOWN,
        fields={**report.as_json(), "next_steps": list(steps)},
        text="".join(f"{line}\n" for line in [str(report), *(f"  next: {step}" for step in steps)]),
    )


@contextmanager
def _progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on standard error for each part of the work in turn, if that is a terminal."""
    with ExitStack() as shown:
        bars: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in bars:
                # Only here: the help of all commands is shown without the extra.
                with extra("verify"):
                    from tqdm import tqdm  # noqa: PLC0415

                shown.close()
                bars.clear()
                # disable=None: on a terminal only.
                bar = tqdm(desc=what, total=total, file=sys.stderr, disable=None, leave=False, unit_scale=True)
                bars[what] = shown.enter_context(bar)
            bars[what].total = total
            bars[what].update(done - bars[what].n)

        yield show
