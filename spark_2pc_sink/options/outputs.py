"""Outputs of a sink: the topics and tables of one decision, and the lanes that carry their rows.

A lane is at most one topic and at most one table that get the same rows. A sink with one topic and one table has one
lane. Their options are then keywords of the sink itself, some by longer names (``sink=`` in the declaration). The
checks name options as the sink does; `named_as_in` shortens the names for an output.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from itertools import zip_longest
from typing import Final, Literal, TypeAlias, TypeVar

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.names import TableName, check_topic
from spark_2pc_sink.options.settings import (
    Theme,
    check_settings,
    checks_keywords,
    parsed,
    refused,
    setting,
    setting_of,
    shown_name,
)
from spark_2pc_sink.options.sql_text import RowSource

_Output = TypeVar("_Output", bound=type)
#: The parts of a record that can have a schema, and the formats that need one.
Part: TypeAlias = Literal["key", "value"]
Format: TypeAlias = Literal["avro", "protobuf"]

_LIST: Final = "list[str] | tuple[str, ...]"


def _columns(given: object, name: str) -> dict[str, str]:
    texts = isinstance(given, Mapping) and all(
        isinstance(text, str) and text.strip() for item in given.items() for text in item
    )
    if not isinstance(given, Mapping) or not given or not texts:
        example = "columns={'order_id': 'order_id', 'total': 'price * quantity'}, or leave it out for all columns"
        if name != "columns":
            example = f"{name}={{'description': \"description = '__debezium_unavailable_value'\"}}"
        rule = "it must be a mapping of table columns to SQL expressions, neither of them empty"
        raise refused(name, given, rule, f"pass {example}")
    return {column: _newline_after_comment(expression, name) for column, expression in given.items()}


def _names(given: object, name: str) -> tuple[str, ...]:
    """A list of distinct column names; a single text is a common mistake that would be read letter by letter."""
    listed = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    each_given = tuple(given) if isinstance(given, Sequence) and listed else (given,)
    names = tuple(dict.fromkeys(each for each in each_given if isinstance(each, str) and each))
    if not listed or len(names) != len(each_given):
        meant = list(names) or ["order_id"]
        raise refused(name, given, "it must be a list of distinct column names", f"pass {name}={meant}")
    return names


def _newline_after_comment(expression: str, _: str) -> str:
    """An expression that can be followed by more SQL: a comment at its end would swallow it."""
    return f"{expression}\n" if "--" in expression and not expression.endswith("\n") else expression


_expression: Final = partial(setting, None, parse=_newline_after_comment)
_to_kafka: Final = partial(_expression, group=Theme.TO_KAFKA)
_keyed: Final = partial(setting, group=Theme.KEYED)
_encode: Final = partial(setting, group=Theme.ENCODE)
_to_postgresql: Final = partial(setting, group=Theme.TO_POSTGRESQL)


@dataclass(frozen=True)
class RecordShape:
    """The options of a topic that a comparison of both sides needs: `Records` has more, a layout has these."""

    topic: str | None = setting(
        None, "where rows go; a column named topic overrides it row by row", group=Theme.TO_KAFKA, parse=check_topic
    )
    _: KW_ONLY
    key: str | None = _to_kafka("SQL expression; None: the column key if there is one, else null")
    value: str | None = _to_kafka("SQL expression; None: the column value if there is one, else to_json(struct(*))")
    headers: str | None = _to_kafka("SQL expression; None: the column headers if there is one")
    partition: str | None = _to_kafka(
        "SQL expression; None: the column partition if there is one, else Java's default partitioner"
    )
    tombstone_when: str | None = _expression(
        "SQL condition; where it is true, the record has its key and no value, which removes the key from a compacted "
        "topic. None: every record has a value",
        sink=None,
    )
    key_format: Literal["raw", "avro", "protobuf"] = _encode(
        "raw",
        "'raw': the key is text or bytes, sent unchanged. 'avro', 'protobuf': the key is encoded with a schema of the "
        "schema_registry, in subject <topic>-key",
    )
    value_format: Literal["json", "avro", "protobuf"] = _encode(
        "json",
        "'json': the value is text or bytes, sent unchanged; without one, the row's JSON. 'avro', 'protobuf': the "
        "value is a struct, without one the whole row, and is encoded with a schema of the schema_registry",
    )


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """The options of a table with keys that a comparison of both sides needs."""

    delete_when: str | None = _expression(
        "SQL condition; with mode='upsert': a row for which it is true deletes the row of its key. Null is false",
        group=Theme.KEYED,
    )
    update_columns: Sequence[str] | None = _keyed(
        None,
        "the columns that an upsert changes in an existing row; others are written only with new rows. None: all "
        "columns that are written",
        given=f"{_LIST} | None",
        parse=_names,
    )
    upsert_where: str | None = _keyed(
        None,
        "PostgreSQL's SQL over EXCLUDED and the table's name, as in orders.version < EXCLUDED.version: an existing row "
        "changes only if it is true. Kafka gets all records. None: always",
    )
    unchanged_when: Mapping[str, str] | None = _keyed(
        None,
        "column -> SQL condition; with mode='upsert': a row for which it is true has no value for the column, and the "
        "column keeps its value. None: every row has every value",
        parse=_columns,
    )


def _keywords_checked(output: _Output) -> _Output:
    """Let an unknown keyword of an output raise the error of an unknown option."""
    output.__init__ = checks_keywords(output.__init__)  # type: ignore[misc]
    return output


@dataclass(frozen=True, kw_only=True)
class _Sourced:
    rows: str | None = _expression(
        "'explode(expression) AS name' makes each element of an array a row; None: the rows of the batch", sink=None
    )
    where: str | None = _expression("SQL condition; only rows where it is true go here. None: all", sink=None)

    @property
    def source(self) -> RowSource:
        return RowSource(self.rows, self.where)


@_keywords_checked
@dataclass(frozen=True, kw_only=True)
class Records(_Sourced, RecordShape):
    """A topic of a sink, and its records: one for each row of its source.

    Raises:
        ConfigurationError: a value is out of bounds, or two of them contradict each other.
    """

    value_schema: str | None = _encode(
        None,
        "the text of the value's Avro or Protobuf schema. None: derived from the type of the value, or with "
        "use.latest.version the newest of its subject",
    )
    value_schema_name: str | None = _encode(
        None,
        "'namespace.Name' of the derived record or message, or the message of value_schema. None: Value, or the first "
        "message",
    )
    value_subject_name_strategy: Literal["topic", "record", "topic_record"] = _encode(
        "topic", "the value's subject, by Confluent's strategies: <topic>-value, <name> or <topic>-<name>"
    )
    superseded: Literal["send_first", "leave_out"] = _keyed(
        "send_first",
        "if a table with {order_by} gets the same rows: records of rows that are not the greatest of their key in the "
        "batch are sent before the one that the table keeps, or are left out. With either the last record of a key is "
        "the table's row",
        sink="upsert_superseded",
    )

    def __post_init__(self) -> None:
        with named_as_in(self):
            _check_values(self)
            _check_schema(self)

    @property
    def formats(self) -> dict[Part, Format]:
        """The parts (key and value) that are encoded with a schema of the registry, each with its format."""
        found: dict[Part, Format] = {}
        if self.key_format != "raw":
            found["key"] = self.key_format
        if self.value_format != "json":
            found["value"] = self.value_format
        return found

    def __str__(self) -> str:
        return f"Records({'' if self.topic is None else repr(self.topic)})"


@_keywords_checked
@dataclass(frozen=True)
class Rows(_Sourced, RowShape):
    """A table of a sink, and the columns written to it for each row of its source.

    Raises:
        ConfigurationError: a value is out of bounds, or two of them contradict each other.
    """

    table: str = _to_postgresql(why="'table' or 'schema.table', quoted as in SQL")
    _: KW_ONLY
    columns: Mapping[str, str] | None = _to_postgresql(
        None,
        "column -> SQL expression; None: every column, except the record's if a topic gets the same rows",
        parse=_columns,
    )
    mode: Literal["append", "upsert", "insert_ignore"] = _keyed(
        "append",
        "'upsert' replaces rows with the same {keys}; 'insert_ignore' keeps them and leaves the new row out. Kafka "
        "gets its record in either mode",
    )
    keys: Sequence[str] = _keyed(
        (),
        "the columns of a unique key of the table; with mode='upsert' and mode='insert_ignore'",
        given=_LIST,
        parse=_names,
        sink="upsert_keys",
    )
    order_by: str | None = _expression(
        "SQL expression; among the rows of one key in a batch the greatest is kept. None: a batch with a duplicate key "
        "is refused",
        group=Theme.KEYED,
        sink="upsert_order_by",
    )
    late_rows: Literal["replace", "keep_newer"] = _keyed(
        "replace",
        "for a row that is older, by {order_by}, than the one that an earlier batch wrote to the table. 'replace': it "
        "replaces that one on both sides. 'keep_newer': the table keeps the newer one, and Kafka still gets the record",
        sink="upsert_late_rows",
    )
    create_table: bool = _to_postgresql(
        default=False, why="create the table from the first batch's schema if it is missing", operational=True
    )
    primary_key: Sequence[str] = _to_postgresql(
        (),
        "with create_table and mode='append': the columns of the primary key. In other modes it is {keys}",
        given=_LIST,
        parse=_names,
    )
    schema_evolution: Literal["strict", "add_columns"] = _to_postgresql(
        "strict",
        "'strict': a column that the table lacks ends the query. 'add_columns': it is added to the table, nullable, "
        "before the batch",
    )

    def __post_init__(self) -> None:
        with named_as_in(self):
            _check_values(self)
            TableName.parse(self.table)
            _check_mode(self)
            _check_late_rows(self)
            _check_unchanged(self)
            _check_primary_key(self)

    def __str__(self) -> str:
        return f"Rows({self.table!r})"


_LONG_NAMES: Final[dict[str, str]] = {
    about.sink: item.name
    for output in (Records, Rows)
    for item in fields(output)
    for about in [setting_of(item)]
    if about.sink
}
_LONG_NAME: Final = re.compile(rf"\b({'|'.join(_LONG_NAMES)})\b")
_PLACEHOLDER: Final = re.compile(rf"{{({'|'.join(_LONG_NAMES.values())})}}")


def with_names(why: str, *, long: bool) -> str:
    """A text of a declaration with the names of options as the sink has them, or as its outputs have them."""
    names = {short: name for name, short in _LONG_NAMES.items()}
    return _PLACEHOLDER.sub(lambda found: names[found[1]] if long else found[1], why)


@contextmanager
def named_as_in(*outputs: Records | Rows) -> Iterator[None]:
    """Let a `ConfigurationError` name options as outputs do, and name the outputs. Its cause has the sink's names."""
    try:
        yield
    except ConfigurationError as error:
        option, rule, remedy = (
            _LONG_NAME.sub(lambda found: _LONG_NAMES[found[1]], text)
            for text in (error.option, error.rule, error.remedy)
        )
        where = " and ".join(map(str, outputs))
        raise refused(f"{where}: {option}", error.value, rule, remedy) from error


def _check_values(output: Records | Rows) -> None:
    check_settings(output)
    given = {item.name: getattr(output, item.name) for item in fields(output)}
    for name, value in parsed(type(output), given).items():
        object.__setattr__(output, name, value)
    _ = output.source.explosion


def _check_schema(records: Records) -> None:
    for item in fields(Records):
        value = getattr(records, item.name)
        of_schema = item.name.startswith(("value_schema", "value_subject"))
        if of_schema and records.value_format == "json" and value != item.default:
            rule = "it has no effect with value_format='json'"
            raise refused(item.name, value, rule, "pass value_format='avro' or 'protobuf'")


def _check_mode(rows: Rows) -> None:
    if rows.mode != "append" and not rows.keys:
        raise refused("mode", rows.mode, "it requires upsert_keys", "pass upsert_keys=['order_id']")
    ignored = {"append": ("keys", "order_by"), "upsert": (), "insert_ignore": ()}[rows.mode]
    if rows.mode != "upsert":
        ignored = (*ignored, "delete_when", "update_columns", "upsert_where", "unchanged_when")
    for item in fields(Rows):
        if item.name in ignored and (value := getattr(rows, item.name)):
            rule = f"it has no effect with mode={rows.mode!r}"
            raise refused(shown_name(item), value, rule, "pass mode='upsert'")
    if rows.update_columns is not None and not rows.update_columns:
        rule = "without a column to update, an existing row never changes"
        raise refused("update_columns", [], rule, "pass mode='insert_ignore', or leave it out for all columns")
    unknown = [key for key in rows.keys if rows.columns is not None and key not in rows.columns]
    if unknown:
        raise refused("upsert_keys", unknown[0], "it must be one of columns", f"add {unknown[0]!r} to columns={{...}}")


def _check_late_rows(rows: Rows) -> None:
    given = rows.late_rows
    if given == "replace":
        return
    if rows.order_by is None:
        raise _needs_order("upsert_late_rows", given)
    if rows.mode == "insert_ignore":
        rule = "with mode='insert_ignore' the existing row is kept, newer or not"
        raise refused("upsert_late_rows", given, rule, "leave it out, or pass mode='upsert'")
    if rows.delete_when is not None:
        rule = (
            "the order of a deleted row is not kept, so with upsert_late_rows='keep_newer' a late row would bring back "
            "its key"
        )
        remedy = (
            "leave upsert_late_rows at 'replace' if the rows of a key arrive in order; or keep the row and mark it, "
            "with columns={..., 'deleted': \"op = 'd'\"}"
        )
        raise refused("delete_when", rows.delete_when, rule, remedy)


def _check_unchanged(rows: Rows) -> None:
    for name in rows.unchanged_when or ():
        if name in rows.keys or (rows.columns is not None and name not in rows.columns):
            rule = f"{name!r} must be one of columns, and not one of upsert_keys"
            raise refused("unchanged_when", rows.unchanged_when, rule, f"leave {name!r} out of it")
    if rows.unchanged_when and rows.late_rows == "keep_newer":
        rule = "a row without a value keeps that of the previous change, which may still arrive late"
        raise refused("unchanged_when", rows.unchanged_when, rule, "leave upsert_late_rows at 'replace'")
    if rows.unchanged_when and rows.upsert_where is not None:
        rule = "a row without a value always updates the row in the table, whatever upsert_where says"
        raise refused("unchanged_when", rows.unchanged_when, rule, "leave upsert_where out")


def _check_primary_key(rows: Rows) -> None:
    given = rows.primary_key
    if given and not rows.create_table:
        raise refused("primary_key", given, "it requires create_table", "pass create_table=True")
    if given and rows.keys:
        rule = "upsert_keys are already the primary key of a table that the sink creates"
        raise refused("primary_key", given, rule, "leave it out")


def _needs_order(name: str, given: str) -> ConfigurationError:
    rule = "it requires an order of the rows with one key"
    return refused(name, given, rule, f"pass upsert_order_by='event_time', or leave {name} out")


@dataclass(frozen=True)
class Lane:
    """The rows of one source, for a topic, for a table, or for both."""

    #: Its position among the lanes of the sink, from 0.
    index: int
    records: Records | None
    rows: Rows | None
    source: RowSource
    #: True if topic and table are the keywords of the sink itself.
    alone: bool = False

    def __post_init__(self) -> None:
        if self.records is not None and self.records.superseded != "send_first":
            with self.naming():
                self._check_superseded(self.records.superseded)

    def _check_superseded(self, given: str) -> None:
        rows = self.rows
        if rows is not None and rows.mode == "insert_ignore":
            rule = "with mode='insert_ignore' records are sent before it is known which rows the table leaves out"
            remedy = (
                "leave it out, and let readers keep the first record of each key; or drop the rows before the sink, "
                "with dropDuplicatesWithinWatermark"
            )
            raise refused("upsert_superseded", given, rule, remedy)
        if self.order_by is None and self.alone:
            raise _needs_order("upsert_superseded", given)
        if rows is None or self.order_by is None:
            rule = "it requires a table with upsert_order_by that gets the same rows"
            remedy = "give Records and Rows the same rows and where, or leave superseded out"
            raise refused("upsert_superseded", given, rule, remedy)
        if rows.unchanged_when:
            rule = "with unchanged_when the last record of a key may lack a value that only a superseded record has"
            raise refused("upsert_superseded", given, rule, "leave it at 'send_first'")

    @property
    def order_by(self) -> str | None:
        return None if self.rows is None else self.rows.order_by

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Let errors about options of this lane use the user's names, and name the output."""
        if self.alone:
            yield
            return
        with named_as_in(*(output for output in (self.records, self.rows) if output is not None)):
            yield


def lanes_of(outputs: Sequence[Records | Rows]) -> tuple[Lane, ...]:
    """Group outputs with the same rows: the first topic of a source with its first table, and so on."""
    _refuse_doubles(outputs)
    sources: dict[RowSource, tuple[list[Records], list[Rows]]] = {}
    for output in outputs:
        records, rows = sources.setdefault(output.source, ([], []))
        if isinstance(output, Records):
            records.append(output)
        else:
            rows.append(output)
    pairs = [(source, *pair) for source, (records, rows) in sources.items() for pair in zip_longest(records, rows)]
    # Tables in the user's order: a table that refers to another follows it.
    places = {id(output): place for place, output in enumerate(outputs)}
    pairs.sort(key=lambda pair: places[id(pair[2] or pair[1])])
    return tuple(Lane(index, records, rows, source) for index, (source, records, rows) in enumerate(pairs))


def _refuse_doubles(outputs: Sequence[Records | Rows]) -> None:
    def refuse(rule: str, remedy: str) -> ConfigurationError:
        return refused("writes", [str(output) for output in outputs], rule, remedy)

    if not outputs:
        raise refuse("there must be at least one output", "pass writes=[Records('orders'), Rows('orders')]")
    tables = Counter(TableName.parse(output.table) for output in outputs if isinstance(output, Rows))
    for table, number in tables.items():
        if number > 1:
            rule = f"each table must have one output, and {table} has {number}"
            raise refuse(rule, "merge them, with columns={...} and where='a OR b'")
    for place, output in enumerate(outputs):
        if output in outputs[:place]:
            rule = f"{output} is listed twice, so each row would be written twice"
            raise refuse(rule, "remove one of them, or give it another where, key or value")
