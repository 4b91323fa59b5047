"""Check of a sink: both sides, the sink's own state, and rows against tables; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, text

from jdbc_state import SchemaReport, SqlStateStore
from jdbc_state.database_kind import PLAIN, DatabaseKind
from spark_2pc_sink.choices.choice import STATUS, remedy
from spark_2pc_sink.errors import ConfigurationError, StateStoreError
from spark_2pc_sink.options import CommonOptions, RecoveryOptions, SinkOptions
from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.options.outputs import Rows
from spark_2pc_sink.options.settings import options_of
from spark_2pc_sink.plural import counted
from spark_2pc_sink.recovery.report import RecoveryReport, sink_flags
from spark_2pc_sink.recovery.sink_survey import SinkSurvey
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.check.findings import EXECUTORS, CheckReport, Finding
from spark_2pc_sink.sink.check.kafka_side import (
    KafkaFacts,
    is_durable,
    kafka_findings,
    minutes,
    query_brokers,
    timeout_ms,
)
from spark_2pc_sink.sink.rows.catalog import read_target, table_oid, table_transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SERVER = text(
    "SELECT current_setting('server_version') AS version, current_user AS role, "
    "pg_catalog.pg_is_in_recovery() AS standby, current_setting('transaction_read_only') = 'on' AS read_only, "
    "current_setting('fsync') = 'on' AS fsync, has_schema_privilege(current_user, oid, 'CREATE') AS may_make_state "
    "FROM (SELECT (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = :schema) AS oid) AS named"
)
_MAY_INSERT = text("SELECT has_table_privilege(:table, 'INSERT')")
_READY: Final = SchemaReport(there=True, ready=True, lines=())


@dataclass(frozen=True)
class DatabaseFacts:
    """The database, as the role of the job sees it."""

    #: Why it could not be queried, in which case all else is unknown.
    problem: str = ""
    remedy: str = "correct the URL, or start the server"
    version: str = ""
    kind: DatabaseKind = PLAIN
    role: str = ""
    standby: bool = False
    #: This role's transactions are read-only by default.
    read_only: bool = False
    fsync: bool = True
    #: The role may create tables in the state table's schema; None if there is no such schema.
    may_make_state: bool | None = True
    state: SchemaReport = _READY
    #: Findings about the tables of rows and of dead letters.
    tables: tuple[Finding, ...] = ()


def query_database(options: SinkOptions) -> DatabaseFacts:
    with closing(SqlStateStore(options.database, options.store_settings())) as store:
        try:
            with table_transaction(store.database, options, "check of the database") as connection:
                kind = store.database.check_kind()
                server = connection.execute(_SERVER, {"schema": options.state_schema}).mappings().one()
                written = [lane.rows for lane in options.lanes if lane.rows is not None]
                tables = [_table(connection, rows, server["role"]) for rows in written]
                if options.bad_rows == "dead_letter":
                    tables.append(_dead_letters(connection, DeadLetters(options, store.database, query_id="")))
            return DatabaseFacts(kind=kind, state=store.check_schema(), tables=tuple(tables), **server)
        except StateStoreError as error:
            return DatabaseFacts(problem=str(error))
        except ConfigurationError as error:
            return DatabaseFacts(problem=error.rule, remedy=error.remedy)


def _table(connection: Connection, rows: Rows, role: str) -> Finding:
    subject = f"table {rows.table}"
    try:
        if rows.create_table and table_oid(connection, rows.table) is None:
            return Finding(subject, "ok", "it does not exist; the first batch creates it")
        target = read_target(connection, rows)
    except ConfigurationError as error:
        return Finding(subject, "problem", error.rule, error.remedy)
    if not connection.execute(_MAY_INSERT, {"table": str(target.table)}).scalar():
        grant = f"GRANT INSERT ON {rows.table} TO {quote_identifier(role)}"
        return Finding(subject, "problem", f"role {role} lacks INSERT", f"have the owner run: {grant}")
    return Finding(subject, "ok", f"it can be written; {counted(len(target.columns), 'column')}")


def _dead_letters(connection: Connection, letters: DeadLetters) -> Finding:
    subject = f"dead-letter table {letters.table}"
    if (refusal := letters.refusal(connection)) is not None:
        return Finding(subject, "problem", refusal.rule, refusal.remedy)
    there = letters.exists(connection)
    return Finding(subject, "ok", "it can be written" if there else "it does not exist; the first start creates it")


def database_findings(options: SinkOptions, database: DatabaseFacts) -> Iterator[Finding]:
    if database.problem:
        yield Finding("database", "problem", database.problem, database.remedy)
        return
    yield _server(database)
    if database.kind.lacks:
        text = f"it is {database.kind.name}, which lacks {database.kind.lacks}"
        remedy = "accept_database permits it: test crashes with it yourself"
        yield Finding("kind of database", "warning", text, remedy)
    if database.kind.limits:
        yield Finding("kind of database", "ok", database.kind.limits)
    if not database.fsync:
        text = "fsync is off: a crash of the server may lose commits whose records Kafka keeps"
        yield Finding("database", "warning", text, "set fsync=on in postgresql.conf")
    yield _state(options, database)
    yield from database.tables


def _server(database: DatabaseFacts) -> Finding:
    text = f"connected to {database.kind.name} {database.version} as role {database.role}"
    if database.standby:
        remedy = "name the primary in the URL, or add target_session_attrs=read-write to it"
        return Finding("database", "problem", f"{text}; it is a read-only standby", remedy)
    if database.read_only:
        remedy = "reset default_transaction_read_only of the role, the database or the server (is its disk full?)"
        return Finding("database", "problem", f"{text}; its transactions are read-only", remedy)
    return Finding("database", "ok", text)


def _state(options: SinkOptions, database: DatabaseFacts) -> Finding:
    subject, name = "state table", f"{options.state_schema}.{options.state_table}"
    remedy = "\n".join(database.state.remedies) or "choose another state_table or history_table"
    if database.state.there:
        text = "; ".join(database.state.lines)
        if database.state.ready:
            return Finding(subject, "ok", text)
        return Finding(subject, "problem", text, remedy)
    if database.may_make_state:
        return Finding(subject, "ok", f"{name} does not exist; the first start creates it")
    text = f"{name} does not exist, and role {database.role} may not create it"
    return Finding(subject, "problem", text, remedy)


def guarantee(options: SinkOptions, kafka: KafkaFacts, database: DatabaseFacts) -> str:
    said = [_promise(options)]
    if options.bad_rows == "dead_letter":
        name = options.dead_letter_name
        topic = "" if options.dead_letter_topic is None else f" and topic {options.dead_letter_topic}"
        where = f"table {name.schema}.{name.name}{topic}"
        said.append(f"A row that one side refuses goes to {where} only, also exactly once.")
    limit_ms = timeout_ms(options, kafka)
    if kafka.problem:
        said.append("How long the job may stay down is unknown, because Kafka did not answer.")
    elif limit_ms is None:
        said.append("The job may stay down indefinitely: transactions of the sink never time out.")
    else:
        said.append(
            f"After a crash between the two commits the job may stay down for {minutes(limit_ms)}. After that, Kafka "
            "has aborted what the database has committed; the sink then sends the same records again, after later "
            "records of other producers, if the source can still replay them."
        )
    if weak := ", ".join(topic.name for topic in kafka.topics if topic.there and not is_durable(topic)):
        said.append(f"Not guaranteed: that records of {weak} survive the loss of one broker (topic settings).")
    if not database.problem and not database.fsync:
        said.append("Not guaranteed: that committed rows survive a crash of PostgreSQL's machine (fsync=off).")
    said.append(
        "Not guaranteed: that both sides change at the same moment (rows appear shortly before records), and the order "
        "of records, except that with upsert_order_by the last record of a key is the row of the table. See "
        "docs/limits.md for all limits."
    )
    return " ".join(said)


def _promise(options: SinkOptions) -> str:
    topics = [f"topic {topic}" for topic in options.topics]
    if not topics and any(lane.records is not None for lane in options.lanes):
        topics = ["the topic that it names"]
    tables = [f"table {lane.rows.table}" for lane in options.lanes if lane.rows is not None]
    where = [*topics, *tables]
    places = where[0] if len(where) == 1 else f"{', '.join(where[:-1])} and {where[-1]}"
    matching = " that matches where" if any(lane.source.where is not None for lane in options.lanes) else ""
    return (
        f"Every row of a batch{matching} is written to {places} exactly once, whichever process crashes and when: once "
        "the sink is idle, readers of the topic with isolation.level=read_committed and of the table see the same "
        "batches."
    )


#: Maximum seconds for each request to Kafka, unless its properties allow less.
TIMEOUT_S: Final = 10


def check_sink(
    options: SinkOptions,
    rows: DataFrame | None = None,
    *,
    spark: SparkSession | None = None,
    timeout_s: int = TIMEOUT_S,
) -> CheckReport:
    """Check everything that can be checked before the first batch.

    ``rows`` has the schema of a batch, to compare with the tables; no row is read. The executors of ``spark`` are
    tried. ``timeout_s`` bounds each request to Kafka.
    """
    kafka = query_brokers(options, timeout_s=timeout_s)
    database = query_database(options)
    findings = [*kafka_findings(options, kafka), *database_findings(options, database)]
    if kafka.id_allowed and database.state.there and not (kafka.problem or database.problem):
        findings += _sink_findings(options, timeout_s)
    if rows is None:
        how = "pass the schema of a batch: --schema 'order_id BIGINT, …', or sink.check(schema)"
        findings.append(Finding("rows", "not_checked", "expressions and types were not compared with the table", how))
    elif not database.problem:
        # Local imports: they load PySpark.
        from spark_2pc_sink.sink.check.spark_side import schema_findings  # noqa: PLC0415

        findings += schema_findings(options, rows)
    if spark is None:
        how = "call sink.check() in the job; the job itself checks its executors before its first batch"
        findings.append(Finding(EXECUTORS, "not_checked", "the job's Spark session is not available", how))
    else:
        from spark_2pc_sink.sink.check.spark_side import executor_findings  # noqa: PLC0415

        findings += executor_findings(options, spark)
    findings += _verify_findings(options)
    promise = guarantee(options, kafka, database)
    if any(each.level == "problem" for each in findings):
        promise = f"Once the problems are fixed: {promise}"
    return CheckReport(options.transactional_id, tuple(findings), promise)


def _verify_findings(options: SinkOptions) -> Iterator[Finding]:
    # Local import: a job's check does not need the comparison modules.
    from spark_2pc_sink.verification.table_pairs import expected_refusals  # noqa: PLC0415

    found = expected_refusals(options.layout)
    if not found:
        yield Finding("verify", "ok", "it can compare both sides, judging by the options")
    for table, refusal in found.items():
        text = f"it will be inconclusive (exit code 5) about table {table}: {refusal.why}"
        yield Finding("verify", "warning", text, refusal.remedy)


def _sink_findings(options: SinkOptions, timeout_s: int) -> Iterator[Finding]:
    """Whether the sink has run, and whether it is running: a second driver would stop the first."""
    common = RecoveryOptions(**{item.name: getattr(options, item.name) for item in options_of(CommonOptions)})
    found = SinkSurvey(common, transactional_id=options.transactional_id, timeout_s=timeout_s).run()
    look = remedy(f"{STATUS} {sink_flags(options)}", "changes nothing: shows both sides, and what settles it")
    for report in found.sinks:
        yield _sink(report, look)
    for sink in found.unreadable:
        yield Finding("sink", "problem", sink.problem, look)
    for problem in filter(None, (found.kafka_problem, found.database_problem)):
        yield Finding("sink", "not_checked", problem, "check again when it answers")


def _sink(report: RecoveryReport, show: str) -> Finding:
    if report.condition == "elsewhere":
        text = "its state row belongs to another Kafka cluster"
        return Finding("sink", "problem", text, show)
    if report.driver is not None and report.driver.alive:
        text = f"a driver with this id is running ({report.driver.detail}); a second one would stop it"
        return Finding("sink", "warning", text, "stop that job first, or choose another transactional_id")
    if report.condition == "not_known":
        return Finding("sink", "ok", "no job has run with this id")
    if report.condition == "fine":
        return Finding("sink", "ok", "it has run before, and no batch is in doubt")
    text = f"the last run left a batch {report.condition.replace('_', ' ')}; the next start resolves it"
    return Finding("sink", "warning", text, show)
