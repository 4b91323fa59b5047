"""Verification for operators: `verify`, without Spark and without the code that writes. The command line calls it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from spark_2pc_sink.options import CommonOptions, checks_keywords
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.options.settings import options_of, refused
from spark_2pc_sink.plural import counted
from spark_2pc_sink.verification.repairs import checked_directory
from spark_2pc_sink.verification.report import VerifyReport
from spark_2pc_sink.verification.target import GivenTarget

SHAPE: Final = tuple(item.name for item in fields(GivenTarget))


@checks_keywords
def verify(
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
    """Compare what read_committed consumers see with the table; nothing is claimed or changed.

    Args:
        transactional_id, kafka, database, schema_registry, those of passwords, require_tls: as for the sink.
        table: 'table' or 'schema.table', the one to compare if there are several; None: all that the sink has noted.
        topic, mode: topic of the table's records, and mode of the sink; None: as the sink has noted it.
        keys: the columns that identify a row: the sink's upsert_keys, or any others. None: as the sink has noted them,
            otherwise the primary key of the table.
        order_by: with upserts, the column, or an expression of columns, whose greatest value wins in a batch.
        late_rows: as the sink's upsert_late_rows; None: as it has noted it.
        record_columns: how a record becomes a row if its value is not the row's JSON: 'column = SQL expression, …'
            over value (jsonb), value_text, value_bytes (bytea), key (text), key_bytes (bytea), headers (jsonb), topic,
            partition and "offset".
        since, last, batch: compare the batches from this one on, this many of the newest, or this one alone. None: all.
        open_transaction: compare only the records of the open transaction with the table.
        table_only: ignore the history. For topics into which a person has restored records: they will never belong to
            a batch.
        write_missing: a new or empty directory for files with the rows and records that either side lacks.
        progress: called with the current activity, the amount done, and the total.
        differences_max: how many differences of each kind are named; all are counted.
        wait_ms: how long a batch that the database has decided may take to become visible in Kafka.

    Raises:
        ConfigurationError: an option is wrong, or the table does not exist.
        DatabaseUnreachableError, KafkaError, KafkaTimeoutError: a side is out of reach before anything was compared.
    """
    request, begun = VerifyRequest.parse(locals()), time.monotonic()
    # Imported here: the package can be imported without the extra for the reader of topics.
    from spark_2pc_sink.verification.verification import run, run_open  # noqa: PLC0415

    report = run_open(request) if open_transaction else run(request)
    return replace(report, seconds=round(time.monotonic() - begun, 3))


@dataclass(frozen=True)
class Scope:
    """The batches to compare; with none of the three, all. See `verify`."""

    since: int | None = None
    last: int | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            first, second, *_ = given
            raise refused(first, given[first], f"cannot be combined with {second}", f"leave {second} out")
        for name, value in given.items():
            least = 1 if name == "last" else 0
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise refused(name, value, f"must be a whole number of at least {least}", "correct it")

    @property
    def is_all(self) -> bool:
        return self == Scope()

    def __str__(self) -> str:
        if self.since is not None:
            return f"since batch {self.since}"
        if self.last is not None:
            return f"the last {counted(self.last, 'batch')}"
        return "all" if self.batch is None else f"batch {self.batch}"

    def of(self, batches: Sequence[int]) -> frozenset[int]:
        """The batches of the scope in the history, the oldest first; refuses one that the history lacks."""
        for option, value in vars(self).items():
            if value is not None and not (batches and (option == "last" or value in batches)):
                known = f"has batches {batches[0]} to {batches[-1]}" if batches else "is empty"
                remedy = f"name a batch in the history, or leave {option} out to compare everything"
                raise refused(option, value, f"must be in the sink's history, which {known}", remedy)
        newest = batches[-(self.last or 0) :]
        return frozenset(each for each in newest if each >= (self.since or 0) and self.batch in (None, each))


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    options: CommonOptions
    target: GivenTarget
    scope: Scope
    progress: Callable[[str, int, int], None]
    differences_max: int
    wait_ms: int
    table_only: bool
    write_missing: Path | None
    registry: SchemaRegistryOptions | None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> VerifyRequest:
        common, directory = {item.name for item in options_of(CommonOptions)}, given["write_missing"]
        return cls(
            options=CommonOptions.parse(**{name: value for name, value in given.items() if name in common}),
            target=GivenTarget(**{name: given[name] for name in SHAPE}),
            scope=Scope(given["since"], given["last"], given["batch"]),
            progress=given["progress"] or (lambda *_: None),
            write_missing=None if directory is None else checked_directory(Path(directory)),
            registry=SchemaRegistryOptions.parse(given["schema_registry"]),
            **{name: given[name] for name in ("differences_max", "wait_ms", "table_only")},
        )
