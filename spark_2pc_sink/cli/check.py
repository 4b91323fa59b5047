"""``spark-2pc check``: all that can be found out before the first batch of a job."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.cli.options import add_sides, add_sink, add_sink_options, given_sink_options
from spark_2pc_sink.cli.output import EXIT_IN_DOUBT, EXIT_SETTLED, CommandResult
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.check.check import TIMEOUT_S, check_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ABOUT: Final = (
    "check before the first batch what a job will need: both sides, permissions, types; writes no row and no record"
)
_EXITS: Final = (
    "exit codes: 0 no problem was found, and with --strict no warning; 2 wrong command line or option; 3 a problem was "
    "found: the job would stop"
)


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("check", help=_ABOUT, description=f"{_ABOUT[0].upper()}{_ABOUT[1:]}.", epilog=_EXITS)
    add_sides(command, required=False, positional=True)
    add_sink(command, about="the sink (default: that of the file)")
    about = (
        "columns of a batch, such as 'order_id BIGINT, total DOUBLE', or a JSON file with a Spark schema: Spark on "
        "this machine compares expressions and types with the table"
    )
    command.add_argument("--schema", metavar="DDL|FILE", help=about)
    command.add_argument("--strict", action="store_true", help="exit with code 3 for warnings too")
    about = "for each request to Kafka (default: %(default)s)"
    command.add_argument("--timeout", type=int, default=TIMEOUT_S, metavar="SECONDS", help=about)
    add_sink_options(command)
    command.set_defaults(run=_check)


def _check(given: argparse.Namespace) -> CommandResult:
    options = given_sink_options(given)
    with _rows(given.schema) as rows:
        report = check_sink(options, rows, timeout_s=given.timeout)
    code = EXIT_IN_DOUBT if report.problems or (given.strict and report.warnings) else EXIT_SETTLED
    return CommandResult(exit_code=code, fields=report.as_json(), text=f"{report}\n")


@contextmanager
def _rows(schema: str | None) -> Iterator[DataFrame | None]:
    """An empty DataFrame with a schema, in a Spark session for the block; None if no schema is given."""
    if schema is None:
        yield None
        return
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second that only this needs
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from spark_2pc_sink.sink.check.spark_side import rows_with  # noqa: PLC0415

    parsed: Any = schema
    if schema.endswith(".json"):
        try:
            parsed = StructType.fromJson(json.loads(Path(schema).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError) as error:
            rule, remedy = f"must be a file with a Spark schema in JSON: {error}", "write df.schema.json() into it"
            raise refused("--schema", schema, rule, remedy) from error
    with tempfile.TemporaryDirectory(prefix="spark-2pc-check-") as folder:
        session = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.warehouse.dir", folder)
            .getOrCreate()
        )
        # It logs each expression that it does not support, with a stack trace; the check reports it in one line.
        session.sparkContext.setLogLevel("OFF")
        try:
            yield rows_with(parsed)
        finally:
            session.stop()
