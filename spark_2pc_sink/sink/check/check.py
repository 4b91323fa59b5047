"""Check of a sink: both sides, the sink's own state, and rows against tables; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.recipe.remedies import STATUS, remedy
from spark_2pc_sink.recovery.api import status
from spark_2pc_sink.recovery.recover_command import with_command
from spark_2pc_sink.sink.check.database_rules import database_findings
from spark_2pc_sink.sink.check.database_side import look_at_database
from spark_2pc_sink.sink.check.executor_side import executor_findings
from spark_2pc_sink.sink.check.findings import CheckReport, Finding
from spark_2pc_sink.sink.check.guarantee import guarantee
from spark_2pc_sink.sink.check.kafka_rules import kafka_findings
from spark_2pc_sink.sink.check.kafka_side import look_at_kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.recovery.report import RecoveryReport

#: Seconds that each question to Kafka may take, unless its properties allow less.
TIMEOUT_S: Final = 10
#: What `status` takes as the sink does. Kafka's options that are read already are taken as they are.
_SIDES: Final = (
    "kafka",
    "database",
    "database_password",
    "password_command",
    "require_tls",
    "history_batches",
)
_NAMES: Final = ("state_schema", "state_table", "history_table")


def check_sink(
    options: SinkOptions,
    rows: DataFrame | None = None,
    *,
    spark: SparkSession | None = None,
    timeout_s: int = TIMEOUT_S,
) -> CheckReport:
    """Find out all that can be found out before the first batch.

    Args:
        options: of the sink.
        rows: with the schema of a batch; none of them is read. None: rows are not compared with the tables.
        spark: the session of the job, whose executors are tried. None: they are not.
        timeout_s: seconds for each question to Kafka.
    """
    kafka = look_at_kafka(options.kafka, options.transactional_id, options.all_topics, timeout_s=timeout_s)
    database = look_at_database(options)
    findings = [*kafka_findings(options, kafka), *database_findings(options, database)]
    if kafka.id_allowed and database.state_there and not (kafka.problem or database.problem):
        findings += _sink_findings(options, timeout_s)
    if rows is None:
        how = "pass the schema of a batch: --schema 'order_id BIGINT, …', or sink.check(schema)"
        findings.append(Finding("rows", "not_checked", "expressions and types are not compared with the table", how))
    elif not database.problem:
        # Only here: it loads PySpark.
        from spark_2pc_sink.sink.check.schema_side import schema_findings  # noqa: PLC0415

        findings += schema_findings(options, rows)
    findings += [*executor_findings(options, spark), *_verify_findings(options)]
    promise = guarantee(options, kafka, database)
    if any(each.level == "problem" for each in findings):
        promise = f"When the problems are settled: {promise}"
    return CheckReport(options.transactional_id, tuple(findings), promise)


def _verify_findings(options: SinkOptions) -> Iterator[Finding]:
    """Whether verify will be able to compare the tables of the sink."""
    # Only here: a job checks without the modules of a comparison.
    from spark_2pc_sink.verification.table_pairs import foreseen_refusals  # noqa: PLC0415

    found = foreseen_refusals(options.layout)
    if not found:
        yield Finding("verify", "ok", "it can compare both sides, as far as the options tell")
    for table, refusal in found.items():
        text = f"it will be inconclusive (exit code 5) about table {table}: {refusal.why}"
        yield Finding("verify", "warning", text, refusal.remedy)


def _sink_findings(options: SinkOptions, timeout_s: int) -> Iterator[Finding]:
    """Whether the sink has run, and whether it runs now: a second driver would end the first."""
    sides: dict[str, Any] = {name: getattr(options, name) for name in _SIDES}
    sides |= {name: quote_identifier(named) for name in _NAMES if (named := getattr(options, name)) is not None}
    found = status(
        transactional_id=options.transactional_id,
        timeout_s=timeout_s,
        **sides,
    )
    [look] = with_command([remedy(STATUS, "changes nothing: shows both sides, and what settles it")], options)
    for report in found.sinks:
        yield _sink(report, look)
    for sink in found.unreadable:
        yield Finding("sink", "problem", sink.problem, look)
    for problem in filter(None, (found.kafka_problem, found.database_problem)):
        yield Finding("sink", "not_checked", problem, "check again when it answers")


def _sink(report: RecoveryReport, look: str) -> Finding:
    if report.condition == "elsewhere":
        text = "its state row belongs to another Kafka cluster"
        return Finding("sink", "problem", text, look)
    if report.driver is not None and report.driver.alive:
        text = f"a driver of this id lives ({report.driver.detail}); a second one would end it"
        return Finding("sink", "warning", text, "stop that job first, or choose another transactional_id")
    if report.condition == "not_known":
        return Finding("sink", "ok", "no job has run with this id")
    if report.condition == "fine":
        return Finding("sink", "ok", "it has run before, and nothing is in doubt")
    text = f"the last run left a batch {report.condition.replace('_', ' ')}; the next start settles it"
    return Finding("sink", "warning", text, look)
