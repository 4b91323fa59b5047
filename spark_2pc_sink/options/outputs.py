"""Outputs of a sink: the topics and tables of one decision, and the lanes that carry their rows.

A lane is at most one topic and at most one table that get the same rows. A sink with one topic and one table has one
lane; its options are the keywords of the sink itself (`SinkOptions`), with longer names for some of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from functools import wraps
from itertools import zip_longest
from typing import Any, Final, Literal, TypeAlias, TypeVar

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.conflict_options import ConflictOptions, check_superseded
from spark_2pc_sink.options.keywords import check_keywords
from spark_2pc_sink.options.names import TableName, check_topic
from spark_2pc_sink.options.row_source import RowSource
from spark_2pc_sink.options.settings import check_settings, setting

_Output = TypeVar("_Output", bound=type)
#: The parts of a record that can have a schema, and the formats that need one.
Part: TypeAlias = Literal["key", "value"]
Format: TypeAlias = Literal["avro", "protobuf"]

#: Sink options that have a shorter name in an output.
SHORTER: Final = {
    "upsert_keys": "keys",
    "upsert_order_by": "order_by",
    "upsert_superseded": "superseded",
    "upsert_late_rows": "late_rows",
}
_LONG_NAME: Final = re.compile(rf"\b({'|'.join(SHORTER)})\b")


def _checks_keywords(output: _Output) -> _Output:
    """Let an unknown keyword of an output raise the error of an unknown option."""
    made = output.__init__  # type: ignore[misc]
    known = {item.name: item.default is MISSING for item in fields(output)}

    @wraps(made)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        check_keywords({**dict(zip(known, args, strict=False)), **given}, known)
        made(self, *args, **given)

    output.__init__ = checked  # type: ignore[misc]
    return output


@_checks_keywords
@dataclass(frozen=True)
class Records:
    """A topic of a sink, and its records: one for each row of its source.

    Raises:
        ConfigurationError: a value is out of bounds, or two of them contradict each other.
    """

    topic: str | None = setting(None, why="where rows go; a column named topic overrides it row by row")
    _: KW_ONLY
    rows: str | None = setting(
        None, why="'explode(expression) AS name' makes a row of each element of an array; None: the rows of the batch"
    )
    where: str | None = setting(None, why="SQL condition; only rows where it is true go here. None: all")
    key: str | None = setting(None, why="SQL expression; None: the column key if there is one, else null")
    value: str | None = setting(
        None, why="SQL expression; None: the column value if there is one, else to_json(struct(*))"
    )
    headers: str | None = setting(None, why="SQL expression; None: the column headers if there is one")
    partition: str | None = setting(
        None, why="SQL expression; None: the column partition if there is one, else as Java's producer partitions"
    )
    tombstone_when: str | None = setting(
        None,
        why="SQL condition; where it is true, the record has its key and no value, which removes the key from a "
        "compacted topic. None: every record has its value",
    )
    key_format: Literal["raw", "avro", "protobuf"] = setting(
        "raw",
        why="'raw': the key is text or bytes, and goes out as it is. 'avro', 'protobuf': the key is encoded with a "
        "schema of the schema_registry, in subject <topic>-key",
    )
    value_format: Literal["json", "avro", "protobuf"] = setting(
        "json",
        why="'json': the value is text or bytes, and goes out as it is; without one, the row's JSON. 'avro', "
        "'protobuf': the value is a struct, without one the whole row, and is encoded with a schema of the "
        "schema_registry",
    )
    value_schema: str | None = setting(
        None,
        why="the text of the value's Avro or Protobuf schema. None: derived from the type of the value, or with "
        "use.latest.version the newest of its subject",
    )
    value_schema_name: str | None = setting(
        None,
        why="'namespace.Name' of the derived record or message, or the message of value_schema. None: Value, or the "
        "first message",
    )
    value_subject_name_strategy: Literal["topic", "record", "topic_record"] = setting(
        "topic", why="the value's subject, as Confluent's strategies name it: <topic>-value, <name> or <topic>-<name>"
    )
    superseded: Literal["send_first", "leave_out"] = setting(
        "send_first",
        why="where a table with order_by gets the same rows: the records of rows that order_by passed over in their "
        "batch are sent before the one that the table keeps, or not at all",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_topic(self.topic)
        _end_expressions(self, ("rows", "where", "key", "value", "headers", "partition", "tombstone_when"))
        check_formats(self.value_format, self.value_schema, self.value_schema_name, self.value_subject_name_strategy)
        _ = self.source.explosion

    @property
    def source(self) -> RowSource:
        """The rows that it gets."""
        return RowSource(self.rows, self.where)

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


@_checks_keywords
@dataclass(frozen=True)
class Rows:
    """A table of a sink, and the columns written to it for each row of its source.

    Raises:
        ConfigurationError: a value is out of bounds, or two of them contradict each other.
    """

    table: str = setting(why="'table' or 'schema.table', quoted as in SQL")
    _: KW_ONLY
    rows: str | None = setting(
        None, why="'explode(expression) AS name' makes a row of each element of an array; None: the rows of the batch"
    )
    where: str | None = setting(None, why="SQL condition; only rows where it is true go here. None: all")
    columns: Mapping[str, str] | None = setting(
        None,
        why="column -> SQL expression; None: every column, but not one of Kafka's where a topic gets the same rows",
    )
    mode: Literal["append", "upsert", "insert_ignore"] = setting(
        "append",
        why="'upsert' replaces rows with the same keys; 'insert_ignore' leaves them as they are, and the new row out",
    )
    keys: Sequence[str] = setting(
        (),
        given="list[str] | tuple[str, ...]",
        why="the columns of a unique key of the table; with mode='upsert' and mode='insert_ignore'",
    )
    order_by: str | None = setting(
        None,
        why="SQL expression; of rows with one key in a batch the greatest wins. None: a batch that has one key twice "
        "is refused",
    )
    late_rows: Literal["replace", "keep_newer"] = setting(
        "replace",
        why="a row may be older, by order_by, than the one that an earlier batch has left in the table. It replaces "
        "that one; or the table keeps the newer one, and Kafka gets the late record all the same",
    )
    delete_when: str | None = setting(
        None,
        why="SQL condition; with mode='upsert': a row for which it is true deletes the row of its key. Null is false",
    )
    update_columns: Sequence[str] | None = setting(
        None,
        given="list[str] | tuple[str, ...] | None",
        why="the columns that an upsert changes in a row that is there; others are written with new rows only. None: "
        "all columns that are written",
    )
    upsert_where: str | None = setting(
        None,
        why="PostgreSQL's SQL over EXCLUDED and the table's name, as in orders.version < EXCLUDED.version: a row that "
        "is there changes only where it is true. None: always",
    )
    unchanged_when: Mapping[str, str] | None = setting(
        None,
        why="column -> SQL condition; with mode='upsert': a row for which it is true carries no value for the column, "
        "and the column keeps the value that it has. None: every row carries every value",
    )
    create_table: bool = setting(default=False, why="create the table from the first batch's schema when it is missing")
    primary_key: Sequence[str] = setting(
        (),
        given="list[str] | tuple[str, ...]",
        why="with create_table: the columns of the primary key of a table to which rows are appended; else the keys "
        "are it",
    )
    schema_evolution: Literal["strict", "add_columns"] = setting(
        "strict",
        why="a column that the table lacks ends the query; or it is added to the table, nullable, before the batch",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        TableName.parse(self.table)
        for name in ("columns", "unchanged_when"):
            object.__setattr__(self, name, checked_columns(getattr(self, name), option=name))
        for name in ("keys", "primary_key"):
            object.__setattr__(self, name, checked_names(name, getattr(self, name)))
        if self.update_columns is not None:
            object.__setattr__(self, "update_columns", checked_names("update_columns", self.update_columns))
        _end_expressions(self, ("rows", "where", "order_by", "delete_when"))
        _ = self.source.explosion
        with named_as_in(self):
            self.conflicts.check()
            check_primary_key(self.primary_key, create_table=self.create_table, keys=self.keys)

    @property
    def conflicts(self) -> ConflictOptions:
        """What happens to rows by their keys."""
        return ConflictOptions(
            mode=self.mode,
            keys=self.keys,
            order_by=self.order_by,
            late_rows=self.late_rows,
            delete_when=self.delete_when,
            update_columns=self.update_columns,
            upsert_where=self.upsert_where,
            unchanged_when=self.unchanged_when,
            columns=self.columns,
        )

    @property
    def source(self) -> RowSource:
        """The rows that it gets."""
        return RowSource(self.rows, self.where)

    def __str__(self) -> str:
        return f"Rows({self.table!r})"


@dataclass(frozen=True)
class Lane:
    """The rows of one source, for a topic, for a table, or for both.

    Attributes:
        index: its position among the lanes of the sink, from 0.
        records: the topic; None if no records are made from the rows.
        rows: the table; None if the rows go to no table.
        source: the source of its rows.
        alone: True if topic and table are the keywords of the sink itself.
    """

    index: int
    records: Records | None
    rows: Rows | None
    source: RowSource
    alone: bool = False

    @property
    def order_by(self) -> str | None:
        """The order of rows with one key; None without."""
        return None if self.rows is None else self.rows.order_by

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Let errors about options of this lane use the user's names, and name the output."""
        if self.alone:
            yield
            return
        with named_as_in(*(output for output in (self.records, self.rows) if output is not None)):
            yield


@contextmanager
def named_as_in(*outputs: Records | Rows) -> Iterator[None]:
    """Let a `ConfigurationError` name options as outputs do, and name the outputs."""
    try:
        yield
    except ConfigurationError as error:
        spelled = [_LONG_NAME.sub(lambda found: SHORTER[found[1]], text) for text in (error.option, error.rule)]
        remedy = _LONG_NAME.sub(lambda found: SHORTER[found[1]], error.remedy)
        where = " and ".join(map(str, outputs))
        raise ConfigurationError(
            option=f"{where}: {spelled[0]}", value=error.value, rule=spelled[1], remedy=remedy
        ) from error


def lanes_of(outputs: Sequence[Records | Rows]) -> tuple[Lane, ...]:
    """Group outputs with the same rows: the first topic of a source with its first table, and so on.

    Args:
        outputs: in the order in which tables are written.

    Raises:
        ConfigurationError: there are none, two are the same, or one needs an option that its lane does not have.
    """
    if not outputs:
        raise _refused_writes((), "there is no output", "pass writes=[Records('orders'), Rows('orders')]")
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
    lanes = tuple(Lane(index, records, rows, source) for index, (source, records, rows) in enumerate(pairs))
    for lane in lanes:
        _check_superseded(lane)
    return lanes


def _refuse_doubles(outputs: Sequence[Records | Rows]) -> None:
    tables = Counter(TableName.parse(output.table) for output in outputs if isinstance(output, Rows))
    for table, number in tables.items():
        if number > 1:
            rule = f"each table is written by one output, and {table} by {number}"
            raise _refused_writes(outputs, rule, "put both into one, with columns={...} and where='a OR b'")
    for place, output in enumerate(outputs):
        if output in outputs[:place]:
            rule = f"{output} stands there twice, so each row would go there twice"
            raise _refused_writes(outputs, rule, "remove one of the two, or give it another where, key or value")


def _check_superseded(lane: Lane) -> None:
    if lane.records is None or lane.records.superseded == "send_first":
        return
    if lane.rows is not None and lane.order_by is not None:
        with lane.naming():
            unchanged = bool(lane.rows.unchanged_when)
            check_superseded(lane.rows.mode, lane.order_by, lane.records.superseded, unchanged=unchanged)
        return
    with lane.naming():
        raise ConfigurationError(
            option="superseded",
            value=lane.records.superseded,
            rule="it needs a table with order_by that gets the same rows",
            remedy="give Records and Rows the same rows and where, or leave superseded out",
        )


def _refused_writes(outputs: Sequence[Records | Rows], rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option="writes", value=[str(output) for output in outputs], rule=rule, remedy=remedy)


def check_formats(value_format: str, schema: str | None, name: str | None, strategy: str) -> None:
    """Refuse schema options if the value has no schema.

    Raises:
        ConfigurationError: the value is neither Avro nor Protobuf.
    """
    given = {"value_schema": schema, "value_schema_name": name}
    given["value_subject_name_strategy"] = None if strategy == "topic" else strategy
    for option, value in given.items():
        if value_format == "json" and value is not None:
            rule = "it has no meaning with value_format='json'"
            raise _contradiction(option, value, rule, "pass value_format='avro' or 'protobuf'")


def _contradiction(option: str, value: object, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option=option, value=value, rule=rule, remedy=remedy)


def check_primary_key(given: Sequence[str], *, create_table: bool, keys: Sequence[str]) -> None:
    """Refuse a primary key that no table would get.

    Raises:
        ConfigurationError: the sink creates no table, or the primary key is that of the keys.
    """
    if given and not create_table:
        raise _contradiction("primary_key", given, "it is of a table that the sink creates", "pass create_table=True")
    if given and keys:
        rule = "the upsert_keys are the primary key of a table that the sink creates"
        raise _contradiction("primary_key", given, rule, "leave it out")


def checked_columns(given: object, *, option: str = "columns") -> dict[str, str] | None:
    """A copy of a mapping of target columns, or None."""
    if given is None:
        return None
    texts = isinstance(given, Mapping) and all(
        isinstance(text, str) and text.strip() for item in given.items() for text in item
    )
    if not isinstance(given, Mapping) or not given or not texts:
        example = "columns={'order_id': 'order_id', 'total': 'price * quantity'}, or leave it out for all columns"
        if option != "columns":
            example = f"{option}={{'description': \"description = '__debezium_unavailable_value'\"}}"
        rule = "it is a mapping of table columns to SQL expressions, neither of them empty"
        raise _contradiction(option, given, rule, f"pass {example}")
    return {name: ended(expression) for name, expression in given.items()}


def checked_names(option: str, given: object) -> tuple[str, ...]:
    """A list of distinct column names; a single text is a common mistake that would be read letter by letter."""
    listed = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    names = tuple(given) if isinstance(given, Sequence) and listed else ()
    good = listed and all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)
    if not good:
        raise _contradiction(option, given, "it is a list of distinct column names", f"pass {option}=['order_id']")
    return names


def ended(expression: str) -> str:
    """An expression that can be followed by more SQL: a comment at its end would swallow it."""
    return f"{expression}\n" if "--" in expression else expression


def _end_expressions(output: Records | Rows, names: Sequence[str]) -> None:
    for name in names:
        given = getattr(output, name)
        if given is not None:
            object.__setattr__(output, name, ended(given))
