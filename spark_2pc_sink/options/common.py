"""The options that a sink and recovery share: the location of both sides, the sink's id, and time-outs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from spark_2pc_sink.choices.choice import state_command
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import BatchRange, check_transactional_id
from spark_2pc_sink.options.database import has_password, parse_database_url
from spark_2pc_sink.options.kafka import KafkaOptions
from spark_2pc_sink.options.keywords import check_keywords
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import IDENTIFIER_BYTES_MAX, parse_identifier
from spark_2pc_sink.options.password_command import PasswordCommand
from spark_2pc_sink.options.settings import HIDDEN, check_settings, milliseconds, options_of, setting

if TYPE_CHECKING:
    from typing_extensions import Self

#: Suffixes of the state table's name for the tables of its history, and of what drivers and people did.
HISTORY_SUFFIX = "_history"
ACTIONS_SUFFIX = "_actions"


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options that a sink and recovery share: the location of both sides, the sink's id, and time-outs.

    Frozen, can be pickled, and has no secret in its repr. Time-outs have no hidden second default elsewhere.

    Raises:
        ConfigurationError: a value is out of bounds, or two of them contradict each other.
    """

    transactional_id: str = setting(
        why="the name of the sink, the same after a restart and different for each sink; both sides fence by it"
    )
    kafka: KafkaOptions = setting(  # noqa: RUF009 - makes a field
        given="Mapping[str, str | int | Callable[[str], Any]]",
        why="Kafka client properties, by the names of librdkafka or Kafka",
    )
    database: str = setting(
        secret=True, why="SQLAlchemy URL, dialect postgresql, driver psycopg2; shown without its password"
    )
    database_password: Callable[[], str] | None = setting(  # noqa: RUF009 - makes a field
        None,
        given="Callable[[], str] | None",
        secret=True,
        why="a function that returns the password for a new connection, where passwords or tokens expire. Driver and "
        "tasks call it, each in its own process. None: the URL has the password, or libpq finds it (PGPASSWORD, "
        "~/.pgpass, a service file)",
    )
    password_command: str | None = setting(
        None,
        why="a program and its arguments, quoted as for a shell and called without one; the first line of its output "
        "is the password. Called for each new connection, by driver, tasks and commands; it has connect_timeout_s. "
        "Messages show it: it has no secret in itself",
    )
    require_tls: bool = setting(
        default=False,
        why="refuse connections to another machine that have no TLS, before anything is written: to the database, by "
        "what each connection is, and to Kafka, by security.protocol. False: the log warns of such a database, once",
    )
    accept_database: str | None = setting(
        None,
        why="the name of a database that speaks PostgreSQL's protocol, is not PostgreSQL, and is used all the same, as "
        "the error that refuses it has the name. For who has tested crashes with it",
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
            raise contradiction("accept_loss", str(self.accept_loss), rule, "pass adopt=True with it, or leave it out")
        self._check_password()
        self._check_kafka_tls()
        _not_above(self, "claim_lock_timeout_ms", "claim_deadline_ms")
        _not_above(self, "lock_timeout_ms", "statement_timeout_ms")
        self._check_tables()

    def _check_password(self) -> None:
        """One source of a password."""
        given: object = self.database_password
        if given is not None and not callable(given):
            rule = "it is a function without arguments that returns the password"
            raise contradiction("database_password", HIDDEN, rule, "pass a function, or put the password into the URL")
        named = "database_password" if given is not None else "password_command"
        if self.password_source is None:
            return
        if given is not None and self.password_command is not None:
            rule = "database_password is given as well"
            raise contradiction("password_command", HIDDEN, rule, "leave one of the two out")
        if has_password(self.database):
            raise contradiction(named, HIDDEN, "the URL of database has a password as well", "take it out of the URL")

    def _check_kafka_tls(self) -> None:
        """Whether a broker connection uses TLS depends only on security.protocol, unlike with PostgreSQL."""
        protocol = self.kafka.security_protocol
        elsewhere = [server for server in self.kafka.bootstrap_servers if not _is_here(server)]
        if self.require_tls and elsewhere and not protocol.endswith("SSL"):
            rule = f"security.protocol={protocol} has no TLS, and {elsewhere[0]} is on another machine"
            remedy = "set security.protocol to SSL or SASL_SSL in kafka={...}, and ssl.ca.location"
            raise contradiction("require_tls", True, rule, remedy)  # noqa: FBT003 - the value

    @property
    def password_source(self) -> Callable[[], str] | None:
        """Provider of each new connection's password, in the process that makes it; None for none."""
        if self.password_command is not None:
            return PasswordCommand(self.password_command, self.connect_timeout_s)
        return self.database_password

    def _check_tables(self) -> None:
        """Check that the three tables have distinct names that PostgreSQL does not truncate."""
        actions_table = self.state_table + ACTIONS_SUFFIX
        if self.history_table in (self.state_table, actions_table):
            rule = f"it is another table than state_table, and than {actions_table}"
            raise contradiction("history_table", self.history_table, rule, "rename it")
        if len(self._history_table.encode()) > IDENTIFIER_BYTES_MAX:
            rule = f"with {HISTORY_SUFFIX} behind it, it has at most {IDENTIFIER_BYTES_MAX} bytes"
            raise contradiction("state_table", self.state_table, rule, "shorten it, or pass history_table=")
        if self.history_batches and len(actions_table.encode()) > IDENTIFIER_BYTES_MAX:
            rule = f"with {ACTIONS_SUFFIX} behind it, it has at most {IDENTIFIER_BYTES_MAX} bytes"
            raise contradiction("state_table", self.state_table, rule, "shorten it, or pass history_batches=0")

    @classmethod
    def parse(cls, **given: Any) -> Self:
        """Check every keyword before any of them is used.

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
        """Keywords of ``jdbc_state.StoreSettings``: names, time-outs, history, and the password provider."""
        names = (
            "state_schema state_table history_batches connect_timeout_s connect_deadline_ms "
            "claim_lock_timeout_ms claim_deadline_ms lock_timeout_ms statement_timeout_ms "
            "idle_in_transaction_timeout_ms commit_timeout_ms require_tls accept_database"
        )
        given = {name: getattr(self, name) for name in names.split()}
        given |= {"history_table": self._history_table, "password": self.password_source}
        return given | {"schema_help": state_command}

    @property
    def layout(self) -> SinkLayout | None:
        """Places of records and rows; None for a command, which does not know them."""
        return None

    @property
    def _history_table(self) -> str:
        return self.state_table + HISTORY_SUFFIX if self.history_table is None else self.history_table


def _is_here(server: str) -> bool:
    """Whether 'HOST:PORT' is this machine, by the name alone."""
    host = server.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _not_above(options: CommonOptions, low: str, high: str) -> None:
    value, bound = getattr(options, low), getattr(options, high)
    if value > bound:
        raise contradiction(low, value, f"it is not above {high}={bound}", f"lower {low} or raise {high}")


def contradiction(option: str, value: object, rule: str, remedy: str) -> ConfigurationError:
    """The error for contradictory options, or for an invalid value within its bounds."""
    return ConfigurationError(option=option, value=value, rule=rule, remedy=remedy)
