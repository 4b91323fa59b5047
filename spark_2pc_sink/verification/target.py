"""The target of a comparison: table, mode and key, and which part of a record holds each column of the table.

As given, or as the sink has noted them in its layout. Pure.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final, Literal

from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import check_topic, parse_identifier, quote_identifier
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.options.sql_text import unquoted
from spark_2pc_sink.verification.columns import ComparedColumns, Paths, TableShape, as_object
from spark_2pc_sink.verification.report import NotChecked, NotComparableError

# --- the sink's expressions ----------------------------------------------------------------------------------------
# A record and a table row are made from the same batch row by Spark expressions, which only Spark can compute. But if
# both sides have the same expression, they have the same value, and that can be compared. So only those forms are
# parsed that show the expressions of a value: ``to_json(struct(…))``, ``to_json(named_struct(…))``, a whole row, and a
# column alone.

_NAME: Final = r"(?:`[^`]+`|[A-Za-z_]\w*)"
_PATH: Final = re.compile(rf"{_NAME}(?:\s*\.\s*{_NAME})*")
_PART: Final = re.compile(_NAME)
_CALL: Final = re.compile(r"(?P<function>[A-Za-z_]\w*)\s*\((?P<arguments>.*)\)", re.DOTALL)
_SPREAD: Final = re.compile(rf"(?P<struct>{_NAME})\s*\.\s*\*")
_NAMED: Final = re.compile(rf"(?P<expression>.+)\s+AS\s+(?P<name>{_NAME})", re.IGNORECASE | re.DOTALL)
_TEXT: Final = re.compile(r"(?P<quote>['\"])(?P<text>(?:(?!(?P=quote))[^\\])*)(?P=quote)")
_CAST: Final = re.compile(rf"CAST\s*\(\s*(?P<path>{_PATH.pattern})\s+AS\s+STRING\s*\)", re.IGNORECASE)
#: A path of two parts is a column and a field of it.
_TWO: Final = 2
#: The batch column that is the record's value if the sink has no expression for it.
_VALUE_COLUMN: Final = re.compile(r"(?<!\w)value(?!\w)", re.IGNORECASE)
#: Types with the same texts in Spark and in PostgreSQL.
_SAME_TEXT: Final = frozenset(
    {"text", "varchar", "bpchar", "json", "jsonb", "uuid", "int2", "int4", "int8", "bool", "date"}
)


def path_parts(expression: str) -> tuple[str, ...] | None:
    """The parts of ``a.b``, without their quotes; None if it is not a path."""
    text = expression.strip()
    return tuple(part.strip("`") for part in _PART.findall(text)) if _PATH.fullmatch(text) else None


def _plain(expression: str) -> str:
    """An expression without surrounding blanks, and without the quotes and blanks of a plain path."""
    path = path_parts(expression)
    return expression.strip() if path is None else ".".join(path)


def only_column(expression: str | None) -> str | None:
    """The plain form of a column, if the expression is the column or its text; else None."""
    cast = _CAST.fullmatch((expression or "").strip())
    path = path_parts(cast["path"] if cast is not None else expression or "")
    return None if path is None else ".".join(path)


def split_list(text: str, outside: Iterable[tuple[int, str]]) -> list[str] | None:
    """The parts between commas; None if parentheses do not match. ``outside`` are the characters not in quotes."""
    parts, start, depth = [], 0, 0
    for place, character in outside:
        depth += (character in "([") - (character in ")]")
        if depth < 0:
            return None
        if character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()] if depth == 0 else None


@dataclass(frozen=True)
class ValueFields:
    #: Each column of the row is a field of its name.
    every_column: bool = False
    #: The expression of a field, in its plain form, to the field's name.
    named: Mapping[str, str] = field(default_factory=dict)
    #: Structs whose fields are fields of the value.
    spread: tuple[str, ...] = ()

    def path_of(self, expression: str) -> tuple[str, ...]:
        """The field that has an expression's value, or the field and the field inside it; () if none has."""
        plain, path = _plain(expression), path_parts(expression) or ()
        if plain in self.named:
            return (self.named[plain],)
        if len(path) == _TWO and path[0] in self.spread:
            return path[1:]
        if len(path) == _TWO and path[0] in self.named:
            return (self.named[path[0]], path[1])
        return path if self.every_column and len(path) <= _TWO else ()


def value_fields(value: str | None) -> ValueFields | None:
    """The fields of the value that a sink's expression makes, without one the row's; None if it does not show them."""
    if value is None:
        return ValueFields(every_column=True)
    call = _CALL.fullmatch(value.strip())
    arguments = None if call is None else split_list(call["arguments"], unquoted(call["arguments"]))
    if call is None or arguments is None or not all(arguments):
        return None
    function = call["function"].lower()
    if function == "to_json":
        inner = _CALL.fullmatch(arguments[0])
        is_struct = inner is not None and inner["function"].lower() in ("struct", "named_struct")
        return value_fields(arguments[0]) if is_struct else None
    if function == "struct":
        return _of_struct(arguments)
    names = [_TEXT.fullmatch(name) for name in arguments[::2]]
    if function != "named_struct" or None in names:
        return None
    pairs = zip(names, arguments[1::2], strict=False)
    return ValueFields(named={_plain(expression): name["text"] for name, expression in pairs if name is not None})


def _of_struct(arguments: Sequence[str]) -> ValueFields:
    named: dict[str, str] = {}
    spread: list[str] = []
    for argument in arguments:
        stars, alias, path = _SPREAD.fullmatch(argument), _NAMED.fullmatch(argument), path_parts(argument)
        if stars is not None:
            spread.append(stars["struct"].strip("`"))
        elif alias is not None:
            named[_plain(alias["expression"])] = alias["name"].strip("`")
        elif path is not None:
            named[_plain(argument)] = path[-1]
        # A name generated by Spark, such as col1, is not the field of a column.
    return ValueFields("*" in arguments, named, tuple(spread))


@dataclass(frozen=True)
class RecordSources:
    """Maps the columns of one table to fields, from the layout of a lane with its table and its records."""

    layout: SinkLayout

    @cached_property
    def _fields(self) -> ValueFields | None:
        return value_fields(self.layout.value)

    @property
    def paths(self) -> Paths | None:
        """The fields that hold columns; None if they have the names of the columns, as far as is known."""
        by_name = self._fields is None or (self.layout.value is None and self.layout.columns is None)
        return None if by_name else self.path_of

    @property
    def breadth(self) -> int:
        """The number of columns found, as a rank among topics with the same rows."""
        columns, fields = self.layout.columns, self._fields
        every = len(columns) if columns is not None else 1_000
        if fields is None:
            alone = only_column(self.layout.value) is not None
            return sum(self._part_of(name) is not None for name in columns or ()) if alone else every
        if columns is None:
            return every if fields.every_column else len(fields.named)
        return sum(bool(self.path_of(name)) for name in columns)

    def path_of(self, column: str) -> tuple[str, ...]:
        """The field of the value that holds a column, and the path inside it; () for none."""
        expression = self._expression(column)
        if expression is None:
            return ()
        path = (self._fields or ValueFields(every_column=True)).path_of(expression)
        # The batch may have a JSON column, with the table's columns extracted from it.
        ready = self.layout.value is None and not path and _VALUE_COLUMN.search(expression)
        return (column,) if ready else path

    def alone(self, shape: TableShape) -> dict[str, str]:
        """The columns of a table that are a record's key or its unchanged value, if their text is the same there."""
        found = {}
        for column in shape.columns:
            part = self._part_of(column.name)
            if part is not None and column.base == "bytea":
                found[column.name] = f"{part}_bytes"
            elif part is not None and column.base in _SAME_TEXT:
                found[column.name] = "value_text" if part == "value" else part
        return found

    def _expression(self, column: str) -> str | None:
        return f"`{column}`" if self.layout.columns is None else self.layout.columns.get(column)

    def _part_of(self, column: str) -> str | None:
        expression = self._expression(column)
        if expression is None:
            return None
        written = {"value": self.layout.value, "key": self.layout.key}
        return next((part for part, of_part in written.items() if _plain(expression) == only_column(of_part)), None)


Mode = Literal["append", "upsert", "insert_ignore"]

#: Suffix of our names among fields of records or columns of tables. Those may have any name, but not one that
#: is drawn later.
OWN: Final = secrets.token_hex(8)
#: The field that marks a tombstone among a record's fields.
MARK: Final = f"tombstone {OWN}"
RECORD_COLUMNS_REMEDY: Final = "pass --record-columns (record_columns): SQL expressions that make a row of a record"
#: A literal or a quoted name of PostgreSQL, in which a doubled quote ends the text and starts it again; or a character.
_TOKEN: Final = re.compile(r"""'[^']*'|"[^"]*"|(?P<character>.)""", re.DOTALL)


def parse_record_columns(text: str | None) -> dict[str, str]:
    """Split ``column = expression, …`` at the commas outside of parentheses and quotes."""
    if text is None:
        return {}
    remedy = "pass \"order_id = (value->>'id')::bigint, total = (value->>'total')::numeric\""
    wrong = partial(refused, "record_columns", text, remedy=remedy)
    outside = [(found.start(), found["character"]) for found in _TOKEN.finditer(text) if found["character"]]
    parts = None if any(character in "'\"" for _, character in outside) else split_list(text, outside)
    if parts is None:
        raise wrong("every quote and parenthesis must be closed")
    columns: dict[str, str] = {}
    for part in parts:
        name, equals, expression = part.partition("=")
        if not equals or not expression.strip() or expression.lstrip().startswith("="):
            raise wrong("must be parts of the form column = SQL expression, separated by commas")
        columns[parse_identifier(name.strip(), option="record_columns")] = expression.strip()
    if len(columns) < len(parts):
        raise wrong("each column must occur once")
    return columns


@dataclass(frozen=True, kw_only=True)
class Target:
    table: str | None = None
    #: append: all records count; upsert: the last one of each key; insert_ignore: the first one.
    mode: Mode = "append"
    #: The columns that identify a row; () if none were given.
    keys: tuple[str, ...] = ()
    #: SQL over compared columns whose greatest value wins among records of one key; None for none.
    order_by: str | None = None
    #: Whether that order takes precedence over the order of batches.
    order_first: bool = False
    #: Expressions by column, if the value of a record is not the row.
    record_columns: Mapping[str, str] = field(default_factory=dict)
    #: Key and order columns that the sink has noted and the caller has not named.
    noted: tuple[str, ...] = ()
    #: The part of a record that a column is made from, as the sink has noted it.
    sources: RecordSources = RecordSources(SinkLayout())
    #: Why records do not describe the rows of the table; None if they do.
    refusal: NotComparableError | None = None

    def __post_init__(self) -> None:
        if self.mode != "append" and not self.keys:
            remedy = "pass the sink's upsert_keys: keys=['order_id'], --keys order_id"
            raise refused("keys", None, f"required with mode={self.mode!r}", remedy)
        if self.order_by is not None and self.mode != "upsert":
            raise refused("order_by", self.order_by, "requires mode='upsert'", "pass mode='upsert', or leave it out")

    @property
    def has_tombstones(self) -> bool:
        """Whether records without a value mean that their key has no row; else they are like any others."""
        return self.mode == "upsert"

    @property
    def key_column(self) -> str | None:
        """The column whose text is the key of a record, as far as the sink's expressions show it."""
        layout, column = self.sources.layout, self.keys[0] if len(self.keys) == 1 else None
        if column is None or layout.key is None:
            return column
        written = (layout.columns or {}).get(column, column).strip()
        forms = (form.format(sql) for sql in (column, f"`{column}`", written) for form in ("{}", "CAST({} AS STRING)"))
        return column if layout.key.strip() in forms else None

    def tombstone(self, key: bytes | None) -> bytes:
        """The JSON text of a tombstone, by a key that is the key column's text, or the JSON of all key columns."""
        fields = as_object(key)
        if fields is not None and all(name in fields for name in self.keys):
            named = {name: fields[name] for name in self.keys}
        elif key is not None and self.key_column is not None:
            named = {self.key_column: key.decode(errors="replace")}
        else:
            why = f"the key {key!r} of a tombstone does not contain {', '.join(self.keys)}"
            raise NotComparableError(why, "pass record_columns with expressions over key for these columns")
        return json.dumps({**named, MARK: True}).encode()

    def lacking_columns(self, compared: Sequence[str] | None = None) -> NotComparableError | None:
        """Refuse if records are known to lack a noted column of key or order; ``compared`` is None before any."""
        paths = self.sources.paths
        found = [name for name in self.noted if paths is None or paths(name)] if compared is None else compared
        lacking = [name for name in self.noted if name not in found]
        if not lacking:
            return None
        names = ", ".join(lacking)
        why = f"records do not contain {names}, by which rows are identified or ordered"
        return NotComparableError(why, f"write {names} into the record's value, or pass --record-columns")

    def key_of(self, shape: TableShape, compared: Sequence[str]) -> tuple[str, ...]:
        """The columns that identify a row, among those that are compared."""
        for name in self.keys:
            if name not in compared:
                rule = f"must be columns that can be compared, and {name!r} is not"
                remedy = f"choose from {', '.join(compared) or 'none'}, or pass record_columns"
                raise refused("keys", list(self.keys), rule, remedy)
        return self.keys or next((key for key in shape.unique_keys if set(key) <= set(compared)), ())

    def updated_only(self, compared: ComparedColumns) -> ComparedColumns:
        """Without columns that keep the values of an earlier record of their key."""
        layout = self.sources.layout if self.mode == "upsert" else SinkLayout()
        lacks = "with unchanged_when the last record of a row may lack its value"
        why = dict.fromkeys(layout.unchanged_when or (), lacks)
        if layout.update_columns is not None:
            others = (name for name in compared.names if name not in {*self.keys, *layout.update_columns})
            why |= dict.fromkeys(others, "update_columns keeps the value that the row was inserted with")
        left = tuple(NotChecked(f"column {name}", why[name]) for name in compared.names if name in why)
        columns = tuple(column for column in compared.columns if column.name not in why)
        return replace(compared, columns=columns, not_checked=(*compared.not_checked, *left))


@dataclass(frozen=True, kw_only=True)
class GivenTarget:
    """The keywords of `verify` that describe the table; None for those that the sink has noted."""

    table: str | None = None
    topic: str | None = None
    mode: Mode | None = None
    keys: Sequence[str] | None = None
    order_by: str | None = None
    late_rows: Literal["replace", "keep_newer"] | None = None
    record_columns: str | None = None

    def __post_init__(self) -> None:
        check_topic(self.topic)
        parse_record_columns(self.record_columns)

    def completed(self, layout: SinkLayout | None, *, unordered: bool = False) -> Target:
        """Fill in what the sink has noted; ``unordered``: records of one key have no order within a batch."""
        noted = SinkLayout() if layout is None else layout
        mode = self.mode or ("upsert" if layout is None and self.keys and self.order_by else noted.mode)
        keys = noted.upsert_keys if self.keys is None else tuple(self.keys)
        order = _order_by(noted, unordered=unordered) if mode == "upsert" and self.order_by is None else None
        order_by = self.order_by if order is None else quote_identifier(order)
        noted_keys = keys if self.keys is None and mode != "append" else ()
        return Target(
            table=self.table or noted.table,
            mode=mode,
            keys=keys,
            order_by=order_by,
            order_first=order_by is not None and (self.late_rows or noted.upsert_late_rows) == "keep_newer",
            record_columns=parse_record_columns(self.record_columns),
            noted=noted_keys if order is None else (*noted_keys, order),
            sources=RecordSources(noted),
            refusal=_refusal(noted, order_lost=unordered and self.order_by is None),
        )


def _refusal(layout: SinkLayout, *, order_lost: bool) -> NotComparableError | None:
    if layout.upsert_where is not None:
        return NotComparableError(
            "upsert_where depends on the row in the table, and records do not show its outcome",
            "if an order is enough, use upsert_order_by with upsert_late_rows='keep_newer' instead",
        )
    if layout.delete_when is not None and layout.tombstone_when is None:
        why = "rows were deleted without tombstones, and records do not show which"
        return NotComparableError(why, "pass tombstones=True to the sink")
    order = layout.upsert_order_by
    if order_lost and order is not None and (layout.mode == "insert_ignore" or path_parts(order) is None):
        return NotComparableError(
            f"{order} decides among rows of one key in a batch, and records do not contain it",
            f"write {order} to a column of the table and to a field of the record's value",
        )
    return None


def _order_by(layout: SinkLayout, *, unordered: bool) -> str | None:
    """The column that decides among records of a key; None if the last of them is the table's row.

    It decides if rows of several batches compete, and within a batch whose records have no order.
    """
    order, late = layout.upsert_order_by, layout.upsert_late_rows == "keep_newer"
    path = None if order is None else path_parts(order)
    if path is not None:
        return ".".join(path) if late or unordered else None
    # With late rows it is a column of the table, in Spark's quotes.
    return order.strip().strip("`") if order is not None and late else None
