"""The options of a sink that are not Kafka client properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spark_2pc_sink.options.common import CommonOptions, contradiction
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import TableName, check_topic, parse_identifier
from spark_2pc_sink.options.settings import INT32_MAX, milliseconds, setting

#: Options of a sink that are one SQL expression each.
_EXPRESSIONS = ("key", "value", "headers", "partition", "upsert_order_by")


@dataclass(frozen=True, kw_only=True)
class SinkOptions(CommonOptions):
    """Everything that ``DualWriteSink(...)`` takes beside :class:`CommonOptions`."""

    topic: str | None = setting(None, why="where rows go; a column named topic overrides it row by row")
    key: str | None = setting(None, why="SQL expression; None: the column key if there is one, else null")
    value: str | None = setting(
        None, why="SQL expression; None: the column value if there is one, else to_json(struct(*))"
    )
    headers: str | None = setting(None, why="SQL expression; None: the column headers if there is one")
    partition: str | None = setting(
        None, why="SQL expression; None: the column partition if there is one, else as Java's producer partitions"
    )
    table: str = setting(why="'table' or 'schema.table', quoted as in SQL")
    columns: Mapping[str, str] | None = setting(
        None, why="column -> SQL expression; None: every column of the batch that is not one of Kafka's"
    )
    mode: Literal["append", "upsert"] = setting("append", why="'upsert' replaces rows with the same upsert_keys")
    upsert_keys: tuple[str, ...] = setting(
        (),
        given="list[str] | tuple[str, ...]",
        why="the columns of a unique key of the table; only with mode='upsert'",
    )
    upsert_order_by: str | None = setting(
        None,
        why="SQL expression; of rows with one key in a batch the greatest wins. None: a batch that has one key twice "
        "is refused",
    )
    upsert_superseded: Literal["send_first", "leave_out"] = setting(
        "send_first",
        why="the records of rows that upsert_order_by passed over in their batch are sent before the one that the "
        "table keeps, or not at all. With either the last record of a key is the table's row",
    )
    upsert_late_rows: Literal["replace", "keep_newer"] = setting(
        "replace",
        why="a row may be older, by upsert_order_by, than the one that an earlier batch has left in the table. It "
        "replaces that one on both sides; or the table keeps the newer one, and Kafka gets the late record all the "
        "same",
    )
    create_table: bool = setting(default=False, why="create the table from the first batch's schema when it is missing")
    batch_attempts_max: int = setting(
        3, at_least=1, at_most=100, why="the number of attempts of a batch before the query fails"
    )
    inline_copy_bytes_max: int | None = setting(
        None,
        unit="bytes",
        at_least=0,
        at_most=INT32_MAX,
        why="the COPY bytes that all running tasks together may return through the driver's memory. A task with more "
        "than its share stages its rows, and the driver takes them meanwhile. None: 128 MiB for all, and for each task "
        "no more than 8 MiB, or 1 MiB where they go to files. With more, executors need no connection to the database "
        "for batches of that size. A batch has up to four times as many tasks as run at one time, and "
        "spark.driver.maxResultSize is 1 GiB",
    )
    local_files: bool = setting(
        default=True,
        why="with a master local[n], tasks stage rows and hand encoded records to each other in files below "
        "spark.local.dir. False: in tables and by Spark's shuffle, as in a cluster",
    )
    staging_schema: str | None = setting(None, why="where staging tables are made; None: the schema of the table")
    accept_replay: int | None = setting(
        None,
        at_least=0,
        at_most=2**63 - 1,
        why="the id of a batch: continue although Spark replays different rows. If Kafka lacks the batch, it is sent "
        "as it is now; if both sides hold it, it is skipped. The error that asks for it names the batch. For one start "
        "only",
    )
    on_batch: Callable[[Any], object] | None = setting(  # noqa: RUF009 - makes a field
        None,
        given="Callable[[BatchReport], object] | None",
        why="called in the driver with the BatchReport of each batch that both sides have. An exception of it ends the "
        "query; the batch stays written",
    )
    query_name: str | None = setting(
        None,
        why="of a stream on Spark Connect, which tells a foreachBatch function nothing of its query: a name that stays "
        "with the checkpoint, and that no other checkpoint has. None: found, where the session has one query",
    )
    decision_margin_ms: int = milliseconds(
        10_000,
        at_least=0,
        why="the database does not decide when less time than this is left to the Kafka transaction: COMMIT and EndTxn "
        "need some",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reason is not None and not (self.adopt or self.accept_replay is not None):
            rule = "it says why adopt, accept_loss or accept_replay is set, and none of them is"
            raise contradiction("reason", self.reason, rule, "leave it out")
        check_topic(self.topic)
        TableName.parse(self.table)
        self._check_upsert()
        given: object = self.on_batch
        if given is not None and not callable(given):
            rule = "it is a function of one argument, the BatchReport"
            raise contradiction("on_batch", given, rule, "pass on_batch=lambda report: print(report)")
        open_ms = self.kafka.transaction_timeout_ms
        if open_ms is not None and self.decision_margin_ms >= open_ms:
            raise contradiction(
                "decision_margin_ms",
                self.decision_margin_ms,
                f"it is below transaction.timeout.ms={open_ms}, or no batch could ever be decided",
                "lower it, or raise transaction.timeout.ms",
            )

    @classmethod
    def _converted(cls, given: dict[str, Any]) -> dict[str, Any]:
        given = super()._converted(given)
        given["columns"] = _columns(given.get("columns"))
        given |= {name: _ended(given[name]) for name in _EXPRESSIONS if isinstance(given.get(name), str)}
        given["upsert_keys"] = _names("upsert_keys", given.get("upsert_keys", ()))
        if given.get("staging_schema") is not None:
            given["staging_schema"] = parse_identifier(given["staging_schema"], option="staging_schema")
        return given

    @property
    def layout(self) -> SinkLayout:
        """Where records and rows are, and how both are made of a batch."""
        return SinkLayout.of(self)

    def _check_upsert(self) -> None:
        if self.mode == "upsert" and not self.upsert_keys:
            raise contradiction("mode", self.mode, "it needs upsert_keys", "pass upsert_keys=['order_id']")
        if self.mode == "append":
            for name in ("upsert_keys", "upsert_order_by"):
                if getattr(self, name):
                    raise contradiction(
                        name, getattr(self, name), "it has no meaning with mode='append'", "pass mode='upsert'"
                    )
        for name, usual in (("upsert_superseded", "send_first"), ("upsert_late_rows", "replace")):
            if self.upsert_order_by is None and getattr(self, name) != usual:
                raise contradiction(
                    name,
                    getattr(self, name),
                    "it needs an order of the rows with one key",
                    f"pass upsert_order_by='event_time', or leave {name} out",
                )
        unknown = [key for key in self.upsert_keys if self.columns is not None and key not in self.columns]
        if unknown:
            raise contradiction(
                "upsert_keys", unknown[0], "each is one of columns", f"add {unknown[0]!r} to columns={{...}}"
            )


def _columns(given: object) -> dict[str, str] | None:
    """A copy of the mapping of target columns, or None."""
    if given is None:
        return None
    texts = isinstance(given, Mapping) and all(
        isinstance(text, str) and text.strip() for item in given.items() for text in item
    )
    if not isinstance(given, Mapping) or not given or not texts:
        raise contradiction(
            "columns",
            given,
            "it is a mapping of table columns to SQL expressions, neither of them empty",
            "pass columns={'order_id': 'order_id', 'total': 'price * quantity'}, or leave it out for all columns",
        )
    return {name: _ended(expression) for name, expression in given.items()}


def _ended(expression: str) -> str:
    """An expression that something may stand behind: a comment at its end would take that for its own."""
    return f"{expression}\n" if "--" in expression else expression


def _names(option: str, given: object) -> tuple[str, ...]:
    """A list of distinct column names; a single text is a common slip that would be read letter by letter."""
    listed = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    names = tuple(given) if isinstance(given, Sequence) and listed else ()
    good = listed and all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)
    if not good:
        raise contradiction(option, given, "it is a list of distinct column names", f"pass {option}=['order_id']")
    return names
