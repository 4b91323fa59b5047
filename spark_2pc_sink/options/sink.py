"""All options of a sink: its own, those of its one topic and one table, and those that all calls share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.common import CommonOptions
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import TableName, check_topic
from spark_2pc_sink.options.outputs import Lane, Records, Rows, RowShape, lanes_of, with_names
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.options.settings import (
    Theme,
    is_option,
    milliseconds,
    options_of,
    parsed,
    refused,
    renamed,
    setting,
    setting_of,
)
from spark_2pc_sink.options.sql_text import RowSource, transaction_command

if TYPE_CHECKING:
    from typing_extensions import Self

_PORT_MAX: Final = 65_535
#: Maximum for one batch, whatever the option. The driver holds their list, and compares it with each row of the next
#: attempt; and finding that many in the database takes minutes.
BAD_ROWS_MAX: Final = 10_000
_PERCENT: Final = 100


@dataclass(frozen=True, repr=False)
class BadRowLimit:
    """How many of a batch may go to the dead letters before it fails. Its repr is the user's notation."""

    #: `BAD_ROWS_MAX` for a share.
    rows: int = 100
    #: The part of the batch's rows, from 0 to 1; None for a number.
    share: Decimal | None = None

    @classmethod
    def parse(cls, given: object) -> BadRowLimit:
        """Read ``100``, ``0.001`` or ``"0.1%"``, or the text of a number."""
        if isinstance(given, BadRowLimit):
            return given
        text = str(given).strip()
        number = _number(text.removesuffix("%").strip())
        whole = _PERCENT if text.endswith("%") else 1
        if text.isdecimal() and number <= BAD_ROWS_MAX:
            return cls(rows=int(number))
        if 0 < number < whole:
            return cls(rows=BAD_ROWS_MAX, share=number / whole)
        rule = f"it must be a number of rows from 0 to {BAD_ROWS_MAX}, or a share of the batch's rows between 0 and 1"
        raise refused("max_bad_rows", given, rule, "pass max_bad_rows=100, max_bad_rows=0.001 or max_bad_rows='0.1%'")

    def of(self, rows: int) -> int:
        """The limit for this many rows: a share is rounded down."""
        return self.rows if self.share is None else min(self.rows, math.floor(self.share * rows))

    def __str__(self) -> str:
        return str(self.rows) if self.share is None else f"{(self.share * _PERCENT).normalize():f}%"

    def __repr__(self) -> str:
        return str(self) if self.share is None else repr(str(self))


def _number(text: str) -> Decimal:
    """The number in a text; a negative one if there is none."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return Decimal(-1)
    return number if number.is_finite() else Decimal(-1)


def _outputs(given: object, name: str) -> tuple[Records | Rows, ...]:
    wrong = [given]
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        wrong = [output for output in given if not isinstance(output, (Records, Rows))]
        if not wrong:
            return tuple(given)
    remedy = "pass writes=[Records('orders', key='order_id'), Rows('orders')]"
    raise refused(name, wrong[0], "it must be a list of Records(...) and Rows(...)", remedy)


_code: Final = partial(setting, None, group=Theme.OWN_CODE)
_tuning: Final = partial(setting, group=Theme.TUNE, operational=True)
_bad_rows: Final = partial(setting, group=Theme.BAD_ROWS)


@dataclass(frozen=True, kw_only=True)
class SinkOptions(CommonOptions):
    """Everything that ``DualWriteSink(...)`` takes in addition to :class:`CommonOptions`, `Records` and `Rows`."""

    schema_registry: SchemaRegistryOptions | None = setting(
        None,
        "the registry of Avro and Protobuf schemas: properties of confluent-kafka's client and serializers, "
        "{'url': 'http://registry:8081', 'basic.auth.user.info': 'user:password'}",
        group=Theme.ENCODE,
        given="Mapping[str, str | int | bool] | None",
        secret=True,
        parse=lambda given, _: SchemaRegistryOptions.parse(given),
    )
    tombstones: bool = setting(
        default=False,
        why="the record of a row that deletes has its key and no value, which removes the key from a compacted topic. "
        "False: it has a value like any other",
        group=Theme.KEYED,
    )
    writes: tuple[Records | Rows, ...] = setting(
        (),
        "several topics and tables, written in one decision; replaces topic, table and their options. Tables are "
        "written in this order",
        group=Theme.SEVERAL,
        given="Sequence[Records | Rows]",
        parse=_outputs,
    )
    bad_rows: Literal["fail", "dead_letter"] = _bad_rows(
        "fail",
        "'fail': a row that PostgreSQL or Kafka refuses fails the batch. 'dead_letter': it goes only to the "
        "dead-letter table, in the same decision",
    )
    max_bad_rows: BadRowLimit = _bad_rows(
        BadRowLimit(),
        "a batch with more bad rows fails: a number, or a share such as 0.001 or '0.1%', at most 10 000. A person can "
        "look at 100 rows, and a change that makes every row bad is noticed",
        given="float | str",
        parse=lambda given, _: BadRowLimit.parse(given),
    )
    dead_letter_table: str | None = _bad_rows(
        None,
        "'table' or 'schema.table', created if it is missing. None: the state table's name followed by _dead_letters, "
        "in state_schema",
    )
    dead_letter_topic: str | None = _bad_rows(
        None,
        "with bad_rows='dead_letter': a topic that also gets each dead letter, in the Kafka transaction of its batch. "
        "It must exist, and must not be an output of the sink. None: dead letters are only in the table",
    )
    on_batch: Callable[[Any], object] | None = _code(
        "called in the driver with the BatchReport of each batch that both sides have. An exception ends the query; "
        "the batch remains written",
        given="Callable[[BatchReport], object] | None",
    )
    on_decide: Callable[[Any, Any], object] | tuple[str, ...] | None = _code(
        "SQL statements, or a function, run in the transaction that decides a batch: after its rows, once, and never "
        "for a replay. An exception fails the attempt, and nothing is written",
        given="Callable[[Connection, DecidingBatch], object] | list[str] | tuple[str, ...] | None",
        parse=lambda given, _: tuple(given) if isinstance(given, list) else given,
    )
    openlineage_namespace: str | None = setting(
        None,
        "the namespace of the job in OpenLineage: each run sends events with its topics, its tables and what it wrote. "
        "The extra openlineage installs the client, which has its own configuration. None: no events",
        group=Theme.TELL,
    )
    accept_replay: int | None = setting(
        None,
        "the id of a batch: continue although Spark replays it with different rows. If Kafka lacks the batch, it is "
        "sent as it is now; if both sides have it, it is skipped. The error that asks for this option names the batch. "
        "For one start only",
        group=Theme.CONTINUE,
        bounds=(0, 2**63 - 1),
        operational=True,
    )
    query_name: str | None = setting(
        None,
        "for a stream on Spark Connect, where a foreachBatch function does not know its query: a name that stays with "
        "the checkpoint and is unique to it. None: it is found, if the session has exactly one query",
        group=Theme.CONTINUE,
    )
    batch_attempts_max: int = _tuning(3, "number of attempts of a batch before the query fails", bounds=(1, 100))
    driver_port: int = _tuning(
        0,
        "the port of the driver to which tasks send rows and records. 0: a free one, chosen by the system. Set it if a "
        "firewall is between executors and driver",
        bounds=(0, _PORT_MAX),
    )
    driver_port_range: int = _tuning(
        16,
        "with driver_port: how many ports are tried, starting with it, because each concurrent query of a driver needs "
        "its own; as many as Spark tries for spark.driver.port",
        bounds=(1, 1_000),
    )
    decision_margin_ms: int = milliseconds(
        10_000,
        "a batch is not decided if the Kafka transaction times out in less than this: COMMIT and EndTxn need some time",
        at_least=0,
        operational=True,
    )
    #: The topics and tables, grouped if they get the same rows; made from the options of outputs.
    lanes: tuple[Lane, ...] = field(default=(), repr=False)

    @classmethod
    def declared(cls) -> list[Field[Any]]:
        """All options: also those of its one table and one topic, by the sink's names."""
        return [*map(_of_sink, _FLAT.values()), *fields(cls)]

    @classmethod
    def _made(cls, given: dict[str, Any]) -> Self:
        own = {item.name for item in fields(cls) if is_option(item)}
        made = parsed(cls, {name: value for name, value in given.items() if name in own})
        return cls(**made, lanes=_lanes(given, made.get("writes", ())))

    def given(self) -> dict[str, Any]:
        """The value of each option, by its name; those of outputs only if the sink has one topic and one table."""
        found = {item.name: getattr(self, item.name) for item in fields(self) if is_option(item)}
        if not self.writes and self.lanes:
            outputs = {Records: self.lanes[0].records, Rows: self.lanes[0].rows}
            found |= {name: getattr(outputs[kind], item.name) for name, (kind, item) in _FLAT.items()}
        return found

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reason is not None and not (self.adopt or self.accept_replay is not None):
            rule = "it must be combined with adopt, accept_loss or accept_replay"
            raise refused("reason", self.reason, rule, "leave it out")
        if self.schema_registry is None and any(lane.records and lane.records.formats for lane in self.lanes):
            rule = "records with a schema require it"
            raise refused("schema_registry", None, rule, "pass schema_registry={'url': 'http://registry:8081'}")
        self._check_dead_letters()
        self._check_own_code()
        last = self.driver_port + self.driver_port_range - 1
        if self.driver_port and last > _PORT_MAX:
            rule = f"with driver_port={self.driver_port} the last port would be {last}, above {_PORT_MAX}"
            raise refused("driver_port_range", self.driver_port_range, rule, "lower one of the two")
        open_ms = self.kafka.transaction_timeout_ms
        if open_ms is not None and self.decision_margin_ms >= open_ms:
            rule = f"it must be below transaction.timeout.ms={open_ms}, or no batch could ever be decided"
            remedy = "lower it, or raise transaction.timeout.ms"
            raise refused("decision_margin_ms", self.decision_margin_ms, rule, remedy)

    def _check_own_code(self) -> None:
        given: object = self.on_batch
        if given is not None and not callable(given):
            rule = "it must be a function of one argument, the BatchReport"
            raise refused("on_batch", given, rule, "pass on_batch=lambda report: print(report)")
        code: Any = self.on_decide
        if code is None or callable(code):
            return
        if not (isinstance(code, tuple) and code and all(isinstance(text, str) and text.strip() for text in code)):
            rule = "it must be a function of the connection and the DecidingBatch, or a list of SQL statements"
            raise refused("on_decide", code, rule, "pass on_decide=['INSERT INTO audit VALUES (:batch_id)']")
        for text in code:
            if command := transaction_command(text):
                rule = f"{command.upper()} would end the deciding transaction, which only the sink may end"
                raise refused("on_decide", text, rule, "leave it out")

    def _check_dead_letters(self) -> None:
        topic = self.dead_letter_topic
        for name, value in (("max_bad_rows", str(self.max_bad_rows)), ("dead_letter_topic", topic)):
            if self.bad_rows == "fail" and value not in (None, str(BadRowLimit())):
                raise refused(name, value, "it has no effect with bad_rows='fail'", "pass bad_rows='dead_letter'")
        check_topic(topic, "dead_letter_topic")
        if topic is not None and topic in self.topics:
            rule = "it must not be an output's topic, whose readers would mistake dead letters for its records"
            raise refused("dead_letter_topic", topic, rule, "name another topic")
        if self.dead_letter_table is not None:
            TableName.parse(self.dead_letter_table, option="dead_letter_table")
        elif self.bad_rows == "dead_letter":
            self._check_length(self.dead_letter_name.name, ", or pass dead_letter_table=")

    @property
    def dead_letter_name(self) -> TableName:
        if self.dead_letter_table is None:
            return TableName(f"{self.state_table}_dead_letters", self.state_schema)
        name = TableName.parse(self.dead_letter_table, option="dead_letter_table")
        return TableName(name.name, name.schema or self.state_schema)

    @property
    def layout(self) -> SinkLayout:
        """Where records, rows and dead letters go, and how the first two are made from a batch."""
        topic = self.dead_letter_topic
        return SinkLayout.of(self.lanes, dead_letters=None if topic is None else (topic, str(self.dead_letter_name)))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are known before the first row."""
        named = (lane.records.topic for lane in self.lanes if lane.records is not None)
        return tuple(dict.fromkeys(topic for topic in named if topic is not None))

    @property
    def all_topics(self) -> tuple[str, ...]:
        return self.topics if self.dead_letter_topic is None else (*self.topics, self.dead_letter_topic)


#: The options of `Rows` and `Records` that are keywords of the sink too: by the sink's name.
_FLAT: Final[Mapping[str, tuple[type[Records | Rows], Field[Any]]]] = {
    about.sink or item.name: (kind, item)
    for kind in (Rows, Records)
    # What all tables have comes before what only those with keys have.
    for item in sorted(fields(kind), key=lambda item: item.name in RowShape.__annotations__)
    for about in [setting_of(item)]
    if about.sink is not None
}


def _of_sink(flat: tuple[type[Records | Rows], Field[Any]]) -> Field[Any]:
    _, item = flat
    about = setting_of(item)
    why = with_names(about.why, long=True)
    if item.name == "table":
        return renamed(item, "table", why=f"{why}; required without writes", type="str | None", default=None)
    return renamed(item, about.sink or item.name, why=why)


def _lanes(given: Mapping[str, Any], writes: tuple[Records | Rows, ...]) -> tuple[Lane, ...]:
    """The lanes of a sink, by ``writes`` or by the options of its one topic and one table."""
    flat = {name: given[name] for name in _FLAT if name in given}
    if writes:
        defaults = {item.name: item.default for item in options_of(SinkOptions)}
        for name, value in (flat | {"tombstones": given.get("tombstones")}).items():
            if value and value != defaults[name]:
                rule = f"with writes, each output has its own {name}"
                raise refused(name, value, rule, "move it into Records(...) or Rows(...)")
        return lanes_of(writes)
    if flat.get("table") is None:
        raise refused("table", None, "it is required", "pass table=, or writes= with several outputs")
    deleted = flat.get("delete_when") if given.get("tombstones") else None
    if given.get("tombstones") is True and deleted is None:
        rule = "it requires delete_when: a tombstone is the record of a row that deletes"
        raise refused("tombstones", given["tombstones"], rule, "pass delete_when=\"op = 'd'\", or leave it out")
    by_kind: dict[type[Any], dict[str, Any]] = {Rows: {}, Records: {"tombstone_when": deleted}}
    for name, value in flat.items():
        kind, item = _FLAT[name]
        by_kind[kind][item.name] = value
    try:
        records, rows = Records(**by_kind[Records]), Rows(**by_kind[Rows])
    except ConfigurationError as error:
        # The cause names options as the sink does.
        raise error.__cause__ or error from None
    return (Lane(0, records, rows, RowSource(), alone=True),)
