"""Everything of ``DualWriteSink(...)`` and ``recover(...)`` that is not a Kafka client property."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import BatchRange, check_transactional_id
from spark_2pc_sink.options.database import parse_database_url
from spark_2pc_sink.options.kafka import KafkaOptions
from spark_2pc_sink.options.keywords import check_keywords
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import IDENTIFIER_BYTES_MAX, TableName, check_topic, parse_identifier
from spark_2pc_sink.options.settings import INT32_MAX, check_settings, milliseconds, options_of, setting

if TYPE_CHECKING:
    from typing_extensions import Self

#: Stand behind the name of the state table in those of its history, and of what drivers and people did.
HISTORY_SUFFIX = "_history"
ACTIONS_SUFFIX = "_actions"

#: Options of a sink that are one SQL expression each.
_EXPRESSIONS = ("key", "value", "headers", "partition", "upsert_order_by")


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """What a sink and recovery both need to know: where both sides are, whose sink it is, and how long to wait.

    Frozen, can be pickled, and shows no secret in its repr. Time-outs have no hidden second default anywhere else.

    Raises:
        ConfigurationError: a value is out of bounds, or two of them contradict each other.
    """

    transactional_id: str = setting(
        why="the name of the sink, the same after a restart and different for each sink; both sides fence by it"
    )
    kafka: KafkaOptions = setting(  # noqa: RUF009 - makes a field
        given="Mapping[str, str | int]", why="Kafka client properties, by the names of librdkafka or Kafka"
    )
    database: str = setting(
        secret=True, why="SQLAlchemy URL, dialect postgresql, driver psycopg2; shown without its password"
    )
    adopt: bool = setting(
        default=False,
        why="take over a state row or a transactional id that belongs to another query or another Kafka cluster. For "
        "one start only",
    )
    accept_loss: BatchRange | None = setting(  # noqa: RUF009 - makes a field
        None,
        given="str | None",
        why="with adopt: continue without these batches ('41..43'), which the database has lost; 'none' for no loss. "
        "The error that asks for it names them. For one start only",
    )
    reason: str | None = setting(
        None,
        why="why a person adopts, accepts or gives something up, in their own words; it is written into the record of "
        "what people did, see spark-2pc history",
    )
    state_schema: str = setting(
        "public",
        why="the schema of the state table; it has a default because the search_path of the job's role and of the "
        "operator's may differ",
    )
    state_table: str = setting(
        "kafka_transaction_state", why="the table of the state row of each sink, by the name in KIP-939's recipe"
    )
    history_table: str | None = setting(
        None,
        why="the table of earlier decisions, in the same schema; None: the name of the state table with _history "
        "behind it, so that no two state tables share one",
    )
    history_batches: int = setting(
        1_000,
        at_least=0,
        at_most=1_000_000,
        why="lines of the history that are kept for each sink. A decision writes one of about half a kilobyte. A lost "
        "state row is made again from the newest, the others are for audits. As many claims and recoveries are kept, "
        "in the table with _actions behind the name of the state table. 0: none of both",
    )
    connect_timeout_s: int = setting(
        10,
        unit="s",
        at_least=2,
        at_most=600,
        why="the longest attempt to connect to the database; libpq takes no less than 2 s",
    )
    connect_deadline_ms: int = milliseconds(
        30_000,
        at_least=0,
        why="a database that has answered before is given this long to come back; a failover takes 10 to 20 s",
    )
    claim_lock_timeout_ms: int = milliseconds(
        2_000,
        why="a claim waits this long for a COMMIT under way, then ends the older driver's session; a COMMIT takes "
        "milliseconds",
    )
    claim_deadline_ms: int = milliseconds(
        30_000,
        why="the longest claim; it then gives up, and names the sessions in its way",
    )
    lock_timeout_ms: int = milliseconds(
        30_000,
        why="the longest wait for a lock of the target table; the batch is then run again",
    )
    statement_timeout_ms: int = milliseconds(
        600_000,
        why="the longest single statement, COPY included: 400 million rows at the measured rate, and below the 15 "
        "minutes that a stock broker lets a transaction stay open",
    )
    idle_in_transaction_timeout_ms: int = milliseconds(
        60_000,
        why="a driver that stops between two statements loses its locks after this. One that waits for its tasks sends "
        "a statement three times as often",
    )
    commit_timeout_ms: int = milliseconds(
        60_000,
        why="the longest COMMIT. No server setting bounds it, and a lost synchronous standby holds it for ever. The "
        "connection is then cut, and a new claim finds the outcome",
    )
    settle_deadline_ms: int = milliseconds(
        120_000,
        why="the longest wait of recovery for a coordinator that writes end markers or loads its log",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_transactional_id(self.transactional_id)
        if self.accept_loss is not None and not self.adopt:
            rule = "it names what adopt goes on without"
            raise _contradiction("accept_loss", str(self.accept_loss), rule, "pass adopt=True with it, or leave it out")
        _not_above(self, "claim_lock_timeout_ms", "claim_deadline_ms")
        _not_above(self, "lock_timeout_ms", "statement_timeout_ms")
        self._check_tables()

    def _check_tables(self) -> None:
        """Three tables, each with a name of its own that PostgreSQL keeps whole."""
        actions_table = self.state_table + ACTIONS_SUFFIX
        if self.history_table in (self.state_table, actions_table):
            rule = f"it is another table than state_table, and than {actions_table}"
            raise _contradiction("history_table", self.history_table, rule, "rename it")
        if len(self._history_table.encode()) > IDENTIFIER_BYTES_MAX:
            rule = f"with {HISTORY_SUFFIX} behind it, it has at most {IDENTIFIER_BYTES_MAX} bytes"
            raise _contradiction("state_table", self.state_table, rule, "shorten it, or pass history_table=")
        if self.history_batches and len(actions_table.encode()) > IDENTIFIER_BYTES_MAX:
            rule = f"with {ACTIONS_SUFFIX} behind it, it has at most {IDENTIFIER_BYTES_MAX} bytes"
            raise _contradiction("state_table", self.state_table, rule, "shorten it, or pass history_batches=0")

    @classmethod
    def parse(cls, **given: Any) -> Self:
        """Check every keyword before anything is done with one of them.

        Raises:
            ConfigurationError: an unknown keyword (with the nearest that exists), a missing one, a bad value, or a
                contradiction.
        """
        check_keywords(given, {item.name: item.default is MISSING for item in options_of(cls)})
        return cls(**cls._converted(dict(given)))

    @classmethod
    def _converted(cls, given: dict[str, Any]) -> dict[str, Any]:
        given["kafka"] = KafkaOptions.parse(given["kafka"])
        given["database"] = parse_database_url(given["database"])
        if given.get("accept_loss") is not None:
            given["accept_loss"] = BatchRange.parse(given["accept_loss"])
        for name in ("state_schema", "state_table", "history_table"):
            if given.get(name) is not None:
                given[name] = parse_identifier(given[name], option=name)
        return given

    def store_settings(self) -> dict[str, Any]:
        """Keywords of ``jdbc_state.StoreSettings``: names, time-outs and history."""
        names = (
            "state_schema state_table history_batches connect_timeout_s connect_deadline_ms "
            "claim_lock_timeout_ms claim_deadline_ms lock_timeout_ms statement_timeout_ms "
            "idle_in_transaction_timeout_ms commit_timeout_ms"
        )
        return {name: getattr(self, name) for name in names.split()} | {"history_table": self._history_table}

    @property
    def layout(self) -> SinkLayout | None:
        """Where records and rows are; None for a command, which is not told."""
        return None

    @property
    def _history_table(self) -> str:
        return self.state_table + HISTORY_SUFFIX if self.history_table is None else self.history_table


class OperatorDecision(Enum):
    """What a person has decided about a batch that the database has and Kafka may lack."""

    ACCEPT_REPLAY = "send to Kafka what Spark replays, whatever its digest"
    DROP = "leave Kafka without the batch"


@dataclass(frozen=True, kw_only=True)
class RecoveryOptions(CommonOptions):
    """Everything that ``recover(...)`` takes beside :class:`CommonOptions`; what a person says is for one call."""

    dry_run: bool = setting(default=False, why="only say what would be done; nothing is claimed or changed")
    take_over: bool = setting(
        default=False,
        why="also where the driver lives, by its database sessions, which this then stops; or where they do not tell, "
        "and the row was touched within takeover_grace_s",
    )
    decision: OperatorDecision | None = setting(  # noqa: RUF009 - makes a field
        None, why="a person's decision about a batch that Kafka may lack"
    )
    batch: int | None = setting(
        None,
        at_least=0,
        at_most=2**63 - 1,
        why="with decision the batch that is meant, which the refusal names: no other is touched. With "
        "open_transaction 'commit' its batch: the newest in the checkpoint's offsets/ that is not in its commits/",
    )
    open_transaction: Literal["commit", "abort"] | None = setting(
        None,
        why="with adopt, where the state row and its history are lost and Kafka has a transaction open: 'commit' when "
        "the table has the rows of its records, 'abort' when it has none of them",
    )
    takeover_grace_s: int = setting(
        300,
        unit="s",
        at_least=0,
        at_most=86_400,
        why="a state row that was touched later than this ago may have a running sink. Recovery then takes it over "
        "only if told to, where database sessions do not tell (behind a pooler in transaction mode, on a standby)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        decision: object = self.decision
        given, rule, remedy = "open_transaction", "", ""
        if decision is not None and not isinstance(decision, OperatorDecision):
            given, rule = "decision", "it is an OperatorDecision"
            remedy = "pass OperatorDecision.DROP or OperatorDecision.ACCEPT_REPLAY"
        elif self.open_transaction is not None and not self.adopt:
            rule, remedy = "it is about an id whose state row is lost, which has to be adopted", "pass adopt too"
        elif self.open_transaction == "commit" and self.batch is None:
            given, rule = "batch", "it comes with open_transaction='commit'"
            remedy = "pass the newest batch in the checkpoint's offsets/ that is not in its commits/"
        elif self.batch is not None and self.open_transaction != "commit" and self.decision is None:
            given, rule = "batch", "it comes with open_transaction='commit' or a decision, and with nothing else"
            remedy = "leave it out, or say what is decided about that batch"
        if rule:
            raise _contradiction(given, getattr(self, given), rule, remedy)


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """What ``status(...)`` takes beside the connections and the names of tables.

    Raises:
        ConfigurationError: a value is out of bounds.
    """

    match: str | None = setting(None, why="of all sinks, those whose ids fit this glob, such as 'orders-*'; None: all")
    timeout_s: int = setting(
        10,
        unit="s",
        at_least=1,
        at_most=3_600,
        why="the longest look at both sides together. What one of them does not tell until then is said, with what the "
        "other one knows",
    )

    def __post_init__(self) -> None:
        check_settings(self)


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
            raise _contradiction("reason", self.reason, rule, "leave it out")
        check_topic(self.topic)
        TableName.parse(self.table)
        self._check_upsert()
        given: object = self.on_batch
        if given is not None and not callable(given):
            rule = "it is a function of one argument, the BatchReport"
            raise _contradiction("on_batch", given, rule, "pass on_batch=lambda report: print(report)")
        open_ms = self.kafka.transaction_timeout_ms
        if open_ms is not None and self.decision_margin_ms >= open_ms:
            raise _contradiction(
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
            raise _contradiction("mode", self.mode, "it needs upsert_keys", "pass upsert_keys=['order_id']")
        if self.mode == "append":
            for name in ("upsert_keys", "upsert_order_by"):
                if getattr(self, name):
                    raise _contradiction(
                        name, getattr(self, name), "it has no meaning with mode='append'", "pass mode='upsert'"
                    )
        for name, usual in (("upsert_superseded", "send_first"), ("upsert_late_rows", "replace")):
            if self.upsert_order_by is None and getattr(self, name) != usual:
                raise _contradiction(
                    name,
                    getattr(self, name),
                    "it needs an order of the rows with one key",
                    f"pass upsert_order_by='event_time', or leave {name} out",
                )
        unknown = [key for key in self.upsert_keys if self.columns is not None and key not in self.columns]
        if unknown:
            raise _contradiction(
                "upsert_keys", unknown[0], "each is one of columns", f"add {unknown[0]!r} to columns={{...}}"
            )


def _not_above(options: CommonOptions, low: str, high: str) -> None:
    value, bound = getattr(options, low), getattr(options, high)
    if value > bound:
        raise _contradiction(low, value, f"it is not above {high}={bound}", f"lower {low} or raise {high}")


def _contradiction(option: str, value: object, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option=option, value=value, rule=rule, remedy=remedy)


def _columns(given: object) -> dict[str, str] | None:
    """A copy of the mapping of target columns, or None."""
    if given is None:
        return None
    texts = isinstance(given, Mapping) and all(
        isinstance(text, str) and text.strip() for item in given.items() for text in item
    )
    if not isinstance(given, Mapping) or not given or not texts:
        raise _contradiction(
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
        raise _contradiction(option, given, "it is a list of distinct column names", f"pass {option}=['order_id']")
    return names
