"""The options of a sink that are not Kafka client properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

from spark_2pc_sink.options.bad_row_limit import BadRowLimit
from spark_2pc_sink.options.common import CommonOptions, contradiction
from spark_2pc_sink.options.conflict_options import ConflictOptions, check_superseded
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import IDENTIFIER_BYTES_MAX, TableName, check_topic
from spark_2pc_sink.options.outputs import (
    Lane,
    Records,
    Rows,
    check_primary_key,
    checked_columns,
    checked_names,
    ended,
    lanes_of,
)
from spark_2pc_sink.options.row_source import RowSource
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.options.settings import milliseconds, same_setting, setting
from spark_2pc_sink.options.sql_text import transaction_command

#: Suffix of the state table's name for the dead-letter table.
DEAD_LETTERS_SUFFIX = "_dead_letters"
_PORT_MAX = 65_535
#: Options of a sink that are one SQL expression each.
_EXPRESSIONS = ("key", "value", "headers", "partition", "upsert_order_by", "delete_when")
#: Options of a sink with one topic and one table, and their names in Records and Rows.
_OF_RECORDS = {
    "topic": "topic",
    "key": "key",
    "value": "value",
    "headers": "headers",
    "partition": "partition",
    "key_format": "key_format",
    "value_format": "value_format",
    "value_schema": "value_schema",
    "value_schema_name": "value_schema_name",
    "value_subject_name_strategy": "value_subject_name_strategy",
    "upsert_superseded": "superseded",
}
_BOTH = "pass writes=[Records('orders', key='order_id'), Rows('orders')]"
_OF_ROWS = {
    "table": "table",
    "columns": "columns",
    "mode": "mode",
    "upsert_keys": "keys",
    "upsert_order_by": "order_by",
    "upsert_late_rows": "late_rows",
    "delete_when": "delete_when",
    "update_columns": "update_columns",
    "upsert_where": "upsert_where",
    "unchanged_when": "unchanged_when",
    "create_table": "create_table",
    "primary_key": "primary_key",
    "schema_evolution": "schema_evolution",
}


@dataclass(frozen=True, kw_only=True)
class SinkOptions(CommonOptions):
    """Everything that ``DualWriteSink(...)`` takes in addition to :class:`CommonOptions`."""

    topic: str | None = same_setting(Records, "topic")
    key: str | None = same_setting(Records, "key")
    value: str | None = same_setting(Records, "value")
    headers: str | None = same_setting(Records, "headers")
    partition: str | None = same_setting(Records, "partition")
    key_format: Literal["raw", "avro", "protobuf"] = same_setting(Records, "key_format")
    value_format: Literal["json", "avro", "protobuf"] = same_setting(Records, "value_format")
    value_schema: str | None = same_setting(Records, "value_schema")
    value_schema_name: str | None = same_setting(Records, "value_schema_name")
    value_subject_name_strategy: Literal["topic", "record", "topic_record"] = same_setting(
        Records, "value_subject_name_strategy"
    )
    schema_registry: SchemaRegistryOptions | None = setting(  # noqa: RUF009 - makes a field
        None,
        given="Mapping[str, str | int | bool] | None",
        secret=True,
        why="where the schemas of Avro and Protobuf are: properties of confluent-kafka's client and serializers, "
        "{'url': 'http://registry:8081', 'basic.auth.user.info': 'user:password'}",
    )
    table: str | None = setting(None, why="'table' or 'schema.table', quoted as in SQL; required without writes")
    columns: Mapping[str, str] | None = setting(
        None, why="column -> SQL expression; None: every column of the batch that is not one of Kafka's"
    )
    mode: Literal["append", "upsert", "insert_ignore"] = setting(
        "append",
        why="'upsert' replaces rows with the same upsert_keys; 'insert_ignore' leaves them as they are, and the new "
        "row out. Kafka gets its record all the same",
    )
    upsert_keys: tuple[str, ...] = same_setting(Rows, "keys")
    upsert_order_by: str | None = same_setting(Rows, "order_by")
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
    delete_when: str | None = same_setting(Rows, "delete_when")
    tombstones: bool = setting(
        default=False,
        why="the record of a row that deletes has its key and no value, which removes the key from a compacted topic. "
        "False: it has its value as any other",
    )
    update_columns: tuple[str, ...] | None = same_setting(Rows, "update_columns")
    upsert_where: str | None = setting(
        None,
        why="PostgreSQL's SQL over EXCLUDED and the table's name, as in orders.version < EXCLUDED.version: a row that "
        "is there changes only where it is true. Kafka gets all records. None: always",
    )
    unchanged_when: Mapping[str, str] | None = same_setting(Rows, "unchanged_when")
    create_table: bool = same_setting(Rows, "create_table")
    primary_key: tuple[str, ...] = setting(
        (),
        given="list[str] | tuple[str, ...]",
        why="with create_table: the columns of the primary key of a table to which rows are appended; else upsert_keys "
        "are it",
    )
    schema_evolution: Literal["strict", "add_columns"] = same_setting(Rows, "schema_evolution")
    writes: tuple[Records | Rows, ...] = setting(
        (),
        given="Sequence[Records | Rows]",
        why="several topics and tables, written by one decision; in place of topic, table and what belongs to them. "
        "Tables are written in this order",
    )
    batch_attempts_max: int = setting(
        3, at_least=1, at_most=100, why="the number of attempts of a batch before the query fails"
    )
    driver_port: int = setting(
        0,
        at_least=0,
        at_most=_PORT_MAX,
        why="the port of the driver to which tasks send rows and records. 0: a free one, which the system chooses. Set "
        "it where a firewall is between executors and driver",
    )
    driver_port_range: int = setting(
        16,
        at_least=1,
        at_most=1_000,
        why="with driver_port: the number of ports tried from it on, because each query that runs in the driver at the "
        "same time needs its own; as many as Spark tries for spark.driver.port",
    )
    bad_rows: Literal["fail", "dead_letter"] = setting(
        "fail",
        why="a row that PostgreSQL or Kafka cannot take fails the batch; or it goes to the dead-letter table and "
        "nowhere else, in the same decision",
    )
    max_bad_rows: BadRowLimit = setting(  # noqa: RUF009 - makes a field
        BadRowLimit(),
        given="float | str",
        why="above so many bad rows of a batch it fails: a number, or a share as 0.001 or '0.1%', and never more than "
        "10 000. With 100 a person can look at each of them, and a change that makes every row bad is noticed",
    )
    dead_letter_table: str | None = setting(
        None,
        why="'table' or 'schema.table', made when it is missing; None: the state table's name with _dead_letters "
        "behind it, in state_schema",
    )
    dead_letter_topic: str | None = setting(
        None,
        why="with bad_rows='dead_letter': a topic that gets each dead letter too, in the Kafka transaction of its "
        "batch. It exists, and is no output of the sink. None: dead letters are in the table alone",
    )
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
    on_decide: Callable[[Any, Any], object] | tuple[str, ...] | None = setting(  # noqa: RUF009 - makes a field
        None,
        given="Callable[[Connection, DecidingBatch], object] | list[str] | tuple[str, ...] | None",
        why="SQL texts, or a function, in the transaction that decides a batch: behind its rows, once, and never for a "
        "replay. An exception of it fails the attempt, and nothing is written",
    )
    openlineage_namespace: str | None = setting(
        None,
        why="the namespace of the job in OpenLineage: each run sends events with its topics, its tables and what it "
        "wrote. The extra openlineage brings the client, which has its own configuration. None: no "
        "events",
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
        self._check_outputs()
        self._check_dead_letters()
        given: object = self.on_batch
        if given is not None and not callable(given):
            rule = "it is a function of one argument, the BatchReport"
            raise contradiction("on_batch", given, rule, "pass on_batch=lambda report: print(report)")
        self._check_on_decide()
        self._check_ports()
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
        for name in ("columns", "unchanged_when"):
            given[name] = checked_columns(given.get(name), option=name)
        given |= {name: ended(given[name]) for name in _EXPRESSIONS if isinstance(given.get(name), str)}
        for name in ("upsert_keys", "primary_key"):
            given[name] = checked_names(name, given.get(name, ()))
        if given.get("update_columns") is not None:
            given["update_columns"] = checked_names("update_columns", given["update_columns"])
        if isinstance(given.get("on_decide"), list):
            given["on_decide"] = tuple(given["on_decide"])
        given["writes"] = _listed(given.get("writes", ()))
        given["schema_registry"] = SchemaRegistryOptions.parse(given.get("schema_registry"))
        if "max_bad_rows" in given:
            given["max_bad_rows"] = BadRowLimit.parse(given["max_bad_rows"])
        return given

    @property
    def dead_letter_name(self) -> TableName:
        """The dead-letter table, with its schema."""
        if self.dead_letter_table is None:
            return TableName(self.state_table + DEAD_LETTERS_SUFFIX, self.state_schema)
        name = TableName.parse(self.dead_letter_table, option="dead_letter_table")
        return TableName(name.name, name.schema or self.state_schema)

    @property
    def layout(self) -> SinkLayout:
        """Places of records, rows and dead letters, and how the first two are made from a batch."""
        topic = self.dead_letter_topic
        return SinkLayout.of(self.lanes, dead_letters=None if topic is None else (topic, str(self.dead_letter_name)))

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """The topics and tables, grouped if they get the same rows."""
        if self.writes:
            return lanes_of(self.writes)
        records = Records(
            **{name: getattr(self, given) for given, name in _OF_RECORDS.items()},
            tombstone_when=self.delete_when if self.tombstones else None,
        )
        rows = Rows(**{name: getattr(self, given) for given, name in _OF_ROWS.items()})
        return (Lane(0, records, rows, RowSource(), alone=True),)

    def _check_ports(self) -> None:
        last = self.driver_port + self.driver_port_range - 1
        if self.driver_port and last > _PORT_MAX:
            rule = f"with driver_port={self.driver_port} the last port would be {last}, above {_PORT_MAX}"
            raise contradiction("driver_port_range", self.driver_port_range, rule, "lower one of the two")

    def _check_on_decide(self) -> None:
        given: Any = self.on_decide
        if given is None or callable(given):
            return
        listed = isinstance(given, tuple) and given and all(isinstance(text, str) and text.strip() for text in given)
        if not listed:
            rule = "it is a function of two arguments, the connection and the DecidingBatch, or a list of SQL texts"
            raise contradiction("on_decide", given, rule, "pass on_decide=['INSERT INTO audit VALUES (:batch_id)']")
        for text in given:
            if command := transaction_command(text):
                rule = f"{command.upper()} would end the transaction that decides, which is the sink's to end"
                raise contradiction("on_decide", text, rule, "leave it out")

    def _check_rows(self) -> None:
        """The checks of outputs, with the names of this sink's options."""
        if self.tombstones and self.delete_when is None:
            rule = "a tombstone is the record of a row that delete_when deletes"
            raise contradiction("tombstones", self.tombstones, rule, "pass delete_when=\"op = 'd'\", or leave it out")
        ConflictOptions(
            mode=self.mode,
            keys=self.upsert_keys,
            order_by=self.upsert_order_by,
            late_rows=self.upsert_late_rows,
            delete_when=self.delete_when,
            update_columns=self.update_columns,
            upsert_where=self.upsert_where,
            unchanged_when=self.unchanged_when,
            columns=self.columns,
        ).check()
        check_primary_key(self.primary_key, create_table=self.create_table, keys=self.upsert_keys)
        unchanged = bool(self.unchanged_when)
        check_superseded(self.mode, self.upsert_order_by, self.upsert_superseded, unchanged=unchanged)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are known before the first row."""
        named = (lane.records.topic for lane in self.lanes if lane.records is not None)
        return tuple(dict.fromkeys(topic for topic in named if topic is not None))

    @property
    def all_topics(self) -> tuple[str, ...]:
        """The same, and the topic of dead letters."""
        return self.topics if self.dead_letter_topic is None else (*self.topics, self.dead_letter_topic)

    def _check_outputs(self) -> None:
        if not self.writes:
            if self.table is None:
                raise contradiction("table", None, "it is required", "pass table=, or writes= with several outputs")
            check_topic(self.topic)
            TableName.parse(self.table)
            self._check_rows()
            self._check_registry()
            return
        for given in self.writes:
            if not isinstance(given, (Records, Rows)):
                raise contradiction("writes", given, "it is a list of Records(...) and Rows(...)", _BOTH)
        for item in fields(self):
            if item.name in {*_OF_RECORDS, *_OF_ROWS, "tombstones"} and getattr(self, item.name) != item.default:
                rule = f"with writes, each output has its own, and {item.name} would belong to none"
                raise contradiction(item.name, getattr(self, item.name), rule, "move it into Records(...) or Rows(...)")
        self._check_registry()

    def _check_registry(self) -> None:
        encoded = [lane.records for lane in self.lanes if lane.records is not None and lane.records.formats]
        if encoded and self.schema_registry is None:
            rule = "records are encoded with schemas, and no registry is named"
            raise contradiction("schema_registry", None, rule, "pass schema_registry={'url': 'http://registry:8081'}")

    def _check_dead_letters(self) -> None:
        name = self.dead_letter_name
        if self.bad_rows == "dead_letter":
            self._check_dead_letter_topic()
            if len(name.name.encode()) > IDENTIFIER_BYTES_MAX:
                rule = f"with {DEAD_LETTERS_SUFFIX} behind it, it has at most {IDENTIFIER_BYTES_MAX} bytes"
                raise contradiction("state_table", self.state_table, rule, "shorten it, or pass dead_letter_table=")
            return
        if self.max_bad_rows != BadRowLimit():
            rule = "it has no meaning with bad_rows='fail'"
            raise contradiction("max_bad_rows", str(self.max_bad_rows), rule, "pass bad_rows='dead_letter'")
        if self.dead_letter_topic is not None:
            rule = "there are no dead letters with bad_rows='fail'"
            raise contradiction("dead_letter_topic", self.dead_letter_topic, rule, "pass bad_rows='dead_letter'")

    def _check_dead_letter_topic(self) -> None:
        topic = self.dead_letter_topic
        if topic is None:
            return
        check_topic(topic, option="dead_letter_topic")
        if topic in self.topics:
            rule = "it is the topic of an output, whose readers would take dead letters for its records"
            raise contradiction("dead_letter_topic", topic, rule, "name another topic")


def _listed(given: object) -> tuple[Any, ...]:
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return tuple(given)
    raise contradiction("writes", given, "it is a list of Records(...) and Rows(...)", _BOTH)
