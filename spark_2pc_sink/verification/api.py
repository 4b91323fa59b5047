"""Verification for operators: `verify`, without Spark and without the code that writes. The command line calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from spark_2pc_sink.options import checks_keywords
from spark_2pc_sink.verification.report import VerifyReport
from spark_2pc_sink.verification.request import Request


@checks_keywords
def verify(  # noqa: D417 - the options are described where they are declared
    *,
    transactional_id: str,
    kafka: Mapping[str, str | int | Callable[[str], Any]],
    database: str,
    table: str | None = None,
    topic: str | None = None,
    mode: Literal["append", "upsert", "insert_ignore"] | None = None,
    keys: Sequence[str] | None = None,
    order_by: str | None = None,
    late_rows: Literal["replace", "keep_newer"] | None = None,
    record_columns: str | None = None,
    schema_registry: Mapping[str, str | int | bool] | None = None,
    since: int | None = None,
    last: int | None = None,
    batch: int | None = None,
    open_transaction: bool = False,
    table_only: bool = False,
    write_missing: Path | str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    differences_max: int = 10,
    wait_ms: int = 10_000,
    database_password: Callable[[], str] | None = None,
    password_command: str | None = None,
    require_tls: bool = False,
    state_schema: str = "public",
    state_table: str = "kafka_transaction_state",
    history_table: str | None = None,
    history_batches: int = 1_000,
    connect_timeout_s: int = 10,
    connect_deadline_ms: int = 30_000,
    lock_timeout_ms: int = 30_000,
    statement_timeout_ms: int = 600_000,
) -> VerifyReport:
    """Compare what a reader of committed records sees with what the table holds; nothing is claimed or changed.

    Args:
        transactional_id, kafka, database, schema_registry, those of passwords, require_tls: as for the sink.
        table: 'table' or 'schema.table', of several the one to compare; None: all, as the sink has noted them.
        topic, mode: of the records of the table, and of the sink; None: as the sink has noted it.
        keys: the columns that name a row: the sink's upsert_keys, or any for which rows are told apart. None: as the
            sink has noted them, else the primary key of the table.
        order_by: with upserts, the column, or an expression of columns, whose greatest value wins in a batch.
        late_rows: as the sink's upsert_late_rows; None: as it has noted it.
        record_columns: how a record becomes a row where its value is not the row's JSON: 'column = SQL expression, …'
            over value (jsonb), value_text, value_bytes (bytea), key (text), key_bytes (bytea), headers (jsonb), topic,
            partition and "offset".
        since, last, batch: compare the batches from this one on, so many of the newest, or this one alone. None: all.
        open_transaction: compare the records of the open transaction with the table, and nothing else.
        table_only: leave the history out. For topics into which a person has put records back: they are of no batch
            for ever.
        write_missing: a directory for files with what either side lacks; new, or empty.
        progress: called with what is being done, how much of it is done, and how much there is.
        differences_max: of each kind so many differences are named; all are counted.
        wait_ms: how long a batch that the database has decided may take to become visible in Kafka.

    Raises:
        ConfigurationError: an option is wrong, or the table is not there.
        DatabaseUnreachableError, KafkaError, KafkaTimeoutError: a side is out of reach before anything was compared.
    """
    request = Request.parse(locals())
    # Only here: the package can be imported without the extra that brings the reader of topics.
    from spark_2pc_sink.verification.verification import run  # noqa: PLC0415

    if not open_transaction:
        return run(request)
    # Only here: the client that asks the coordinator takes as much memory as all the rest.
    from spark_2pc_sink.verification.open_records import run_open  # noqa: PLC0415

    return run_open(request)
