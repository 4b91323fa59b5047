"""The options that a sink, a service, recovery and status share, and those of the last three.

Their groups decide which of them a call takes. A sink has more: `spark_2pc_sink.options.sink`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, replace
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Literal

from jdbc_state.settings import StoreSettings
from spark_2pc_sink.choices import OperatorDecision
from spark_2pc_sink.choices.choice import state_command
from spark_2pc_sink.ids import TRANSACTIONAL_ID_CHARACTERS_MAX, BatchRange, check_transactional_id
from spark_2pc_sink.options.database import PasswordCommand, has_password, parse_database_url
from spark_2pc_sink.options.kafka import KafkaOptions
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import IDENTIFIER_BYTES_MAX, parse_identifier
from spark_2pc_sink.options.settings import (
    HIDDEN,
    Theme,
    check_keywords,
    check_settings,
    milliseconds,
    options_of,
    parsed,
    refused,
    setting,
    setting_of,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_connection: Final = partial(setting, group=Theme.CONNECT)
_decision: Final = partial(setting, group=Theme.CONTINUE)
_state: Final = partial(setting, group=Theme.STATE, store=True)
_limit: Final = partial(milliseconds, operational=True, store=True)


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options that a sink and recovery share: the location of both sides, the sink's id, and time-outs.

    Frozen, can be pickled, and has no secret in its repr. Time-outs have no hidden second default elsewhere.

    Raises:
        ConfigurationError: a value is out of bounds, or two of them contradict each other.
    """

    transactional_id: str = _connection(
        why="the name of the sink: the same after a restart, unique to each sink; both sides use it for fencing"
    )
    kafka: KafkaOptions = _connection(
        why="Kafka client properties, named as in librdkafka or Kafka",
        given="Mapping[str, str | int | Callable[[str], Any]]",
        parse=lambda given, _: KafkaOptions.parse(given),
        operational=True,
    )
    database: str = _connection(
        why="SQLAlchemy URL, dialect postgresql, driver psycopg2; shown without its password",
        secret=True,
        parse=lambda given, _: parse_database_url(given),
    )
    database_password: Callable[[], str] | None = _connection(
        None,
        "a function that returns the password of a new connection, for passwords or tokens that expire. Driver and "
        "tasks call it, each in its own process. None: the URL has the password, or libpq finds it (PGPASSWORD, "
        "~/.pgpass, a service file)",
        secret=True,
    )
    password_command: str | None = _connection(
        None,
        "a program and its arguments, quoted as for a shell but run without one; the first line of its output is the "
        "password. Driver, tasks and commands run it for each new connection, for at most connect_timeout_s. Messages "
        "show the command, so it must not contain a secret",
    )
    require_tls: bool = _connection(
        default=False,
        why="refuse connections to another machine without TLS, before anything is written: to the database, judged by "
        "each connection, and to Kafka, judged by security.protocol. False: the log warns once about such a database",
        store=True,
    )
    accept_database: str | None = _connection(
        None,
        "the name of a database that uses PostgreSQL's protocol without being PostgreSQL, as in the error that refuses "
        "it: it is then accepted. For users who have tested crashes with it",
        store=True,
        operational=True,
    )
    adopt: bool = _decision(
        default=False,
        why="take over a state row or a transactional id that belongs to another query or another Kafka cluster. For "
        "one start only",
        operational=True,
    )
    accept_loss: BatchRange | None = _decision(
        None,
        "with adopt: continue without these batches ('41..43'), which the database has lost; 'none' for no loss. The "
        "error that asks for this option names them. For one start only",
        given="str | None",
        parse=lambda given, _: BatchRange.parse(given),
    )
    reason: str | None = _decision(
        None,
        "why a person adopts, accepts or abandons something, in their own words; it is recorded with the action, see "
        "spark-2pc history",
        operational=True,
    )
    state_schema: str = _state(
        "public",
        "the schema of the state table; not found by search_path, which may differ between the job's role and the "
        "operator's",
        parse=parse_identifier,
    )
    state_table: str = _state(
        "kafka_transaction_state",
        "the table with the state row of each sink, named as in KIP-939's recipe",
        parse=parse_identifier,
    )
    history_table: str | None = _state(
        None,
        "the table of earlier decisions, in the same schema. None: the name of the state table followed by _history, "
        "so that each state table has its own",
        parse=parse_identifier,
        operational=True,
    )
    history_batches: int = _state(
        1_000,
        "history rows kept for each sink. Each decision writes one of about half a kilobyte. A lost state row is "
        "rebuilt from the newest; the others are for audits. As many claims and recoveries are kept, in the table "
        "whose name is that of the state table followed by _actions. 0: neither is kept",
        bounds=(0, 1_000_000),
        operational=True,
    )
    connect_timeout_s: int = setting(
        10,
        "time limit of one attempt to connect to the database; libpq's minimum is 2 s",
        group=Theme.LIMITS,
        unit="s",
        bounds=(2, 600),
        store=True,
        operational=True,
    )
    connect_deadline_ms: int = _limit(
        30_000,
        "how long to retry connecting to a database that has answered before; a failover takes 10 to 20 s",
        at_least=0,
    )
    claim_lock_timeout_ms: int = _limit(
        2_000,
        "how long a claim waits for a COMMIT in progress before it terminates the older driver's session; a COMMIT "
        "takes milliseconds",
    )
    claim_deadline_ms: int = _limit(30_000, "time limit of a claim; the error names the sessions that block it")
    lock_timeout_ms: int = _limit(
        30_000, "time limit of a wait for a lock on the target table; the batch is then retried"
    )
    statement_timeout_ms: int = _limit(
        600_000,
        "time limit of one statement, COPY included: enough for 400 million rows at the measured rate, and below the "
        "15 minutes for which brokers keep a transaction open by default",
    )
    idle_in_transaction_timeout_ms: int = _limit(
        60_000,
        "a driver that stops between two statements loses its locks after this. While it waits for its tasks, it sends "
        "a statement after a third of this time",
    )
    commit_timeout_ms: int = _limit(
        60_000,
        "time limit of a COMMIT. No server setting bounds it, and without its synchronous standby it waits forever. "
        "The connection is then closed, and a new claim determines the outcome",
    )
    settle_deadline_ms: int = _limit(
        120_000, "how long recovery waits for a coordinator that writes end markers or loads its log", store=False
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_transactional_id(self.transactional_id)
        if self.accept_loss is not None and not self.adopt:
            rule = "it must be combined with adopt"
            raise refused("accept_loss", str(self.accept_loss), rule, "pass adopt=True too, or leave it out")
        self._check_password()
        self._check_kafka_tls()
        for low, high in (("claim_lock_timeout_ms", "claim_deadline_ms"), ("lock_timeout_ms", "statement_timeout_ms")):
            value, bound = getattr(self, low), getattr(self, high)
            if value > bound:
                raise refused(low, value, f"it must not exceed {high}={bound}", f"lower {low} or raise {high}")
        self._check_tables()

    def _check_password(self) -> None:
        given: object = self.database_password
        if given is not None and not callable(given):
            rule = "it must be a function without arguments that returns the password"
            raise refused("database_password", HIDDEN, rule, "pass a function, or put the password into the URL")
        if self.password_source is None:
            return
        if given is not None and self.password_command is not None:
            raise refused("password_command", HIDDEN, "database_password is given as well", "leave one of the two out")
        if has_password(self.database):
            named = "database_password" if given is not None else "password_command"
            raise refused(named, HIDDEN, "the URL of database has a password as well", "remove it from the URL")

    def _check_kafka_tls(self) -> None:
        """Whether a broker connection uses TLS depends only on security.protocol, unlike with PostgreSQL."""
        protocol = self.kafka.security_protocol
        hosts = {server: server.rpartition(":")[0].strip("[]") for server in self.kafka.bootstrap_servers}
        elsewhere = [server for server, host in hosts.items() if not is_loopback(host)]
        if self.require_tls and elsewhere and not protocol.endswith("SSL"):
            rule = f"security.protocol={protocol} has no TLS, and {elsewhere[0]} is on another machine"
            remedy = "set security.protocol to SSL or SASL_SSL in kafka={...}, and ssl.ca.location"
            raise refused("require_tls", self.require_tls, rule, remedy)

    def _check_tables(self) -> None:
        tables = self.store_settings()
        if self.history_table in (self.state_table, tables.actions_table):
            rule = f"it must differ from state_table and from {tables.actions_table}"
            raise refused("history_table", self.history_table, rule, "rename it")
        if self.history_table is None:
            self._check_length(tables.history_table, ", or pass history_table=")
        if self.history_batches:
            self._check_length(tables.actions_table, ", or pass history_batches=0")

    def _check_length(self, table: str, otherwise: str = "") -> None:
        """Check the name of a table that is that of the state table with a suffix."""
        if len(table.encode()) > IDENTIFIER_BYTES_MAX:
            suffix = table.removeprefix(self.state_table)
            rule = f"with the suffix {suffix} it must have at most {IDENTIFIER_BYTES_MAX} bytes"
            raise refused("state_table", self.state_table, rule, f"shorten it{otherwise}")

    @property
    def password_source(self) -> Callable[[], str] | None:
        """Provides the password of each new connection, in the process that opens it; None if the URL has it."""
        if self.password_command is not None:
            return PasswordCommand(self.password_command, self.connect_timeout_s)
        return self.database_password

    @classmethod
    def parse(cls, **given: Any) -> Self:
        """Check every keyword before any of them is used."""
        check_keywords(given, {item.name: item.default is MISSING for item in options_of(cls)})
        return cls._made(given)

    @classmethod
    def _made(cls, given: dict[str, Any]) -> Self:
        return cls(**parsed(cls, given))

    def store_settings(self) -> StoreSettings:
        given = {item.name: getattr(self, item.name) for item in options_of(CommonOptions) if setting_of(item).store}
        given["history_table"] = self.history_table or ""
        return StoreSettings(**given, password=self.password_source, schema_help=state_command)

    @property
    def layout(self) -> SinkLayout | None:
        """Where records and rows go; None for a command, which does not know."""
        return None


#: The options of a connection and of the state tables, which every reader of the database takes. Only writers need
#: accept_database.
READER_OPTIONS: Final = tuple(
    item.name
    for item in options_of(CommonOptions)
    if setting_of(item).group in (Theme.CONNECT, Theme.STATE)
    and item.default is not MISSING
    and item.name != "accept_database"
)
#: Those that can be flags of a command.
READER_FLAGS: Final = tuple(name for name in READER_OPTIONS if name != "database_password")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by the name alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class RecoveryOptions(CommonOptions):
    """Everything that ``recover(...)`` takes in addition to :class:`CommonOptions`; decisions are for one call."""

    dry_run: bool = setting(default=False, why="only report what would be done; nothing is claimed or changed")
    take_over: bool = setting(
        default=False,
        why="also recover from a driver that is running, judged by its database sessions, and stop it; or if the "
        "sessions do not show that, and the row was updated within takeover_grace_s",
    )
    decision: OperatorDecision | None = setting(None, "a person's decision about a batch that Kafka may lack")
    batch: int | None = setting(
        None,
        "with decision: the batch that it is about, as named by the refusal; no other is changed. With "
        "open_transaction='commit': its batch, the newest in the checkpoint's offsets/ that is not in its commits/",
        bounds=(0, 2**63 - 1),
    )
    open_transaction: Literal["commit", "abort"] | None = setting(
        None,
        "with adopt, if the state row and its history are lost and Kafka has an open transaction: 'commit' if the "
        "table has the rows of its records, 'abort' if it has none of them",
    )
    takeover_grace_s: int = setting(
        300,
        "a state row that was updated more recently than this may belong to a running sink. Where database sessions do "
        "not show whether it runs (behind a pooler in transaction mode, on a standby), recovery then takes over only "
        "with take_over",
        unit="s",
        bounds=(0, 86_400),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        decision: object = self.decision
        if decision is not None and not isinstance(decision, OperatorDecision):
            remedy = "pass OperatorDecision.DROP or OperatorDecision.ACCEPT_REPLAY"
            raise refused("decision", decision, "it must be an OperatorDecision", remedy)
        if self.open_transaction is not None and not self.adopt:
            rule = "it must be combined with adopt, because the id's state row is lost"
            raise refused("open_transaction", self.open_transaction, rule, "pass adopt too")
        if self.open_transaction is not None and decision is not None:
            rule = "it must not be combined with a decision, which is about a batch of a state row that exists"
            raise refused("open_transaction", self.open_transaction, rule, "leave one of the two out")
        if self.open_transaction == "commit" and self.batch is None:
            remedy = "pass the newest batch in the checkpoint's offsets/ that is not in its commits/"
            raise refused("batch", None, "open_transaction='commit' requires it", remedy)
        if self.batch is not None and self.open_transaction != "commit" and self.decision is None:
            rule = "it must be combined with open_transaction='commit' or a decision"
            raise refused("batch", self.batch, rule, "leave it out, or pass a decision about that batch")

    @classmethod
    def of_every_sink(cls, **given: Any) -> Self:
        """The options of a call that may be about no single sink, and without ``kafka`` only reads the database."""
        kafka = {"bootstrap.servers": "localhost:9092"}
        # Placeholders: they are required, and not used.
        return cls.parse(**{"kafka": kafka, **given, "transactional_id": given.get("transactional_id") or "every sink"})


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """What ``status(...)`` takes in addition to the connections and the names of tables."""

    match: str | None = setting(None, "only sinks whose ids match this glob, such as 'orders-*'; None: all")
    timeout_s: int = setting(
        10,
        "time limit of both sides together. If one of them has not answered by then, the result says so and has what "
        "the other one reported",
        unit="s",
        bounds=(1, 3_600),
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class ServiceOptions(CommonOptions):
    """Everything that ``DualWrite(...)`` takes in addition to :class:`CommonOptions`."""

    transactional_id: str = _connection(
        why="the name of the service: the same after a restart and in all its processes. Its transactional ids are "
        "this name followed by -0, -1, …"
    )
    ids: int = setting(
        8,
        "transactional ids that one process holds, and so the number of transactions that can be open at once, from "
        "their first record to EndTxn. Choose twice as many: an id can be used again only when its end markers are "
        "written. Each has its own connection to each broker, which answers the requests of a connection in order",
        bounds=(1, 1_024),
    )
    ids_max: int = setting(
        64,
        "transactional ids, and so state rows, of all processes of the service together. A process takes ids that no "
        "other holds, and recovers those that a crashed one has left",
        bounds=(1, 1_024),
    )
    wait_for_id_ms: int = milliseconds(
        10_000,
        "how long to wait for a transactional id that no other transaction is using. After that the transaction is "
        "rolled back, and nothing is written",
        at_least=0,
        group=Theme.OWN,
    )
    kafka_commit: Literal["before_return", "in_background"] = setting(
        "before_return",
        "'before_return': the call returns when both sides have committed. 'in_background': it returns after the "
        "database's COMMIT, which is the decision; readers of the topic see the records a moment later",
    )
    takeover_grace_s: int = setting(
        60,
        "where database sessions do not show whether another process is running (behind a pooler in transaction mode), "
        "an id is taken over if its state row was not updated for this time",
        unit="s",
        bounds=(0, 86_400),
    )
    history_batches: int = _state(
        0,
        "history rows kept for each transactional id, as for a sink. Writing one costs as much as the decision, and a "
        "thousand cover only seconds of a busy service: none by default",
        bounds=(0, 1_000_000),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ids > self.ids_max:
            raise refused("ids", self.ids, f"it must not exceed ids_max={self.ids_max}", "raise ids_max")
        longest = self.id_of(self.ids_max - 1)
        if len(longest) > TRANSACTIONAL_ID_CHARACTERS_MAX:
            rule = f"followed by a number it must have at most {TRANSACTIONAL_ID_CHARACTERS_MAX} characters"
            raise refused("transactional_id", self.transactional_id, rule, "shorten it")
        self._check_length(self.store_settings().records_table)

    def id_of(self, number: int) -> str:
        return f"{self.transactional_id}-{number}"

    @property
    def owner(self) -> str:
        """Owner in a service's state rows in place of a query id, so that no query takes them for its own."""
        return f"service {self.transactional_id}"

    def store_settings(self) -> StoreSettings:
        return replace(super().store_settings(), keep_records=True)
