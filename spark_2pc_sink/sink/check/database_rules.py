"""Rules of a check for PostgreSQL: what each answer means for the job. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.plural import counted
from spark_2pc_sink.sink.check.findings import Finding

if TYPE_CHECKING:
    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.check.database_side import DatabaseFacts, TableFacts

_VERSION_MIN: Final = 14


def database_findings(options: SinkOptions, database: DatabaseFacts) -> Iterator[Finding]:
    """The lines about the database."""
    if database.problem:
        yield Finding("database", "problem", database.problem, database.remedy)
        return
    yield _server(database)
    if database.kind.lacks:
        text = f"it is {database.kind.name}, which lacks {database.kind.lacks}"
        yield Finding(
            "kind of database", "warning", text, "accept_database lets it pass: test crashes with it yourself"
        )
    if database.kind.limits:
        yield Finding("kind of database", "ok", database.kind.limits)
    if not database.fsync:
        text = "fsync is off: a crash of the server may lose what it has committed, and Kafka keeps"
        yield Finding("database", "warning", text, "set fsync=on in postgresql.conf")
    yield _state(options, database)
    for table in database.tables:
        yield _table(table, database)
    if database.dead_letters is not None:
        yield _dead_letters(database.dead_letters)


def _server(database: DatabaseFacts) -> Finding:
    text = f"{database.kind.name} {database.version} answers, as role {database.role}"
    if database.standby:
        remedy = "name the primary in the URL, or add target_session_attrs=read-write to it"
        return Finding("database", "problem", f"{text}; it is a standby, which takes no writes", remedy)
    if database.read_only:
        remedy = "take default_transaction_read_only back: of the role, the database or the server (is its disk full?)"
        return Finding("database", "problem", f"{text}; its transactions only read", remedy)
    if database.version_number < _VERSION_MIN * 10_000:
        return Finding("database", "problem", f"{text}; the sink needs {_VERSION_MIN} or later", "upgrade the server")
    return Finding("database", "ok", text)


def _state(options: SinkOptions, database: DatabaseFacts) -> Finding:
    subject, name = "state table", f"{options.state_schema}.{options.state_table}"
    remedy = "\n".join(database.state_remedies) or "choose another state_table or history_table"
    if database.state_there:
        text = "; ".join(database.state_lines)
        if database.state_ready:
            return Finding(subject, "ok", text)
        return Finding(subject, "problem", text, remedy)
    if database.may_make_state:
        return Finding(subject, "ok", f"{name} is not there; the first start makes it")
    text = f"{name} is not there, and role {database.role} may not make it"
    return Finding(subject, "problem", text, remedy)


def _table(table: TableFacts, database: DatabaseFacts) -> Finding:
    subject = f"table {table.name}"
    if table.created:
        return Finding(subject, "ok", "it is not there; the first batch makes it")
    if table.refusal is not None:
        return Finding(subject, "problem", table.refusal.rule, table.refusal.remedy)
    if not table.may_insert:
        grant = f"GRANT INSERT ON {table.name} TO {quote_identifier(database.role)}"
        return Finding(subject, "problem", f"role {database.role} lacks INSERT", f"have the owner run: {grant}")
    return Finding(subject, "ok", f"it can be written; {counted(table.columns, 'column')}")


def _dead_letters(table: TableFacts) -> Finding:
    subject = f"dead-letter table {table.name}"
    if table.refusal is not None:
        return Finding(subject, "problem", table.refusal.rule, table.refusal.remedy)
    return Finding(subject, "ok", "it is not there; the first start makes it" if table.created else "it can be written")
