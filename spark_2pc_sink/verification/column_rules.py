"""The rules by which a column of the table is compared with the field of a record that it was made with.

Pure: SQL texts. Spark's to_json spells some types less exactly than the table keeps them (timestamps with three digits
of their fraction), and some in another way (binary as base64). Both sides are brought to what the record can tell, so
that equal means: nothing that the record says is different in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from spark_2pc_sink.options.names import IDENTIFIER_BYTES_MAX, quote_identifier
from spark_2pc_sink.verification.record_columns import RecordColumn
from spark_2pc_sink.verification.record_facts import FieldFacts, RecordFacts
from spark_2pc_sink.verification.report import NotChecked
from spark_2pc_sink.verification.spelt_times import DATED, dated_sql, instants_sql, interval_sql
from spark_2pc_sink.verification.table_shape import Column, TableShape

#: Of a column, the record's field that tells it, and what inside of that; () where no field does.
Paths: TypeAlias = Callable[[str], tuple[str, ...]]

_TIMESTAMPS: Final = frozenset({"timestamp", "timestamptz"})
_INTEGERS: Final = frozenset({"int2", "int4", "int8"})
#: Types that PostgreSQL hashes with 64 bits. Of any other the text is compared.
_HASHED: Final = frozenset(
    {
        *_TIMESTAMPS,
        *_INTEGERS,
        *("numeric", "float4", "float8", "bool", "text", "varchar", "bpchar", "date", "time", "uuid", "bytea", "jsonb"),
    }
)
_HASHED_ELEMENTS: Final = frozenset({f"_{base}" for base in _HASHED - {"bytea", *_TIMESTAMPS}})
#: Digits of a timestamp's fraction that to_json writes by default.
_USUAL_DIGITS: Final = 3
#: What `date_trunc` calls a precision, by the number of digits that it keeps.
_UNITS: Final = ((0, "second"), (3, "milliseconds"))
#: In SQL with a ``?`` for a value, a question mark of a name; no SQL has this character.
_QUESTION_MARK: Final = "\0"
#: An interval by its months and its seconds, of which a day has 86400, as in Spark: by its own equality, a month has 30
#: days.
_MONTHS: Final = "(extract(year FROM ?) * 12 + extract(month FROM ?))::integer"
_INTERVAL: Final = (
    f"{_MONTHS} || ' months ' || extract(epoch FROM ? - make_interval(months => {_MONTHS})) || ' seconds'"
)
#: Within these bounds a double fits a real without an error.
_REAL_BOUNDS: Final = ("1e-37", "1e38")


@dataclass(frozen=True)
class ComparedColumn:
    """How one column is compared.

    Attributes:
        name: of the column.
        field_type: into which PostgreSQL reads the field.
        of_record: SQL over the field, ``?``, that brings it to the compared form.
        of_table: SQL over the column, ``?``, that does the same.
        other_field: the record's field where it has another name than the column; '' where it has the same.
        spelt_type: into which PostgreSQL reads the field before it makes a ``field_type`` of it; '' where it reads
            that at once.
        of_spelt: SQL over the field as it is spelt, ``?``, that makes a ``field_type`` of it.
        of_row: SQL over the field, ``?``, that makes what the column holds; '' where `of_record` does.
    """

    name: str
    field_type: str
    of_record: str = "?"
    of_table: str = "?"
    other_field: str = ""
    spelt_type: str = ""
    of_spelt: str = "?"
    of_row: str = ""

    @property
    def field(self) -> str:
        """The record's field."""
        return self.other_field or self.name

    def typed_sql(self) -> str:
        """The record's field, as it is read, as a value of its type."""
        return _filled(self.of_spelt, quote_identifier(self.field))

    def record_sql(self, source: str = "") -> str:
        """The compared form of the record's field."""
        return _filled(self.of_record, f"{source}{quote_identifier(self.field)}")

    def row_sql(self, source: str = "") -> str:
        """What a row that is made of the record has."""
        return _filled(self.of_row or self.of_record, f"{source}{quote_identifier(self.field)}")

    def table_sql(self, source: str = "") -> str:
        """The compared form of the table's column."""
        return _filled(self.of_table, f"{source}{quote_identifier(self.name)}")


@dataclass(frozen=True)
class ComparedColumns:
    """The columns that are compared.

    Attributes:
        columns: in the order of the table.
        unseen: fields of columns that no record of the sample has: one that has must be looked for.
        not_checked: columns and fields that are left out, and why.
        given: columns that the user has given expressions for, by name; empty where the value's fields are taken.
    """

    columns: tuple[ComparedColumn, ...]
    unseen: tuple[str, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def record_unknown(self) -> str:
        """Why no record can be made of a row; '' where the row has the fields of the record."""
        other = [column.name for column in self.columns if column.other_field]
        return f"the fields of the record have other names than the columns {', '.join(other)}" if other else ""

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(column.name for column in self.columns)

    def named(self, names: Sequence[str]) -> tuple[ComparedColumn, ...]:
        """Those of these names, in this order."""
        found = {column.name: column for column in self.columns}
        return tuple(found[name] for name in names)


def compared_columns(
    shape: TableShape,
    facts: RecordFacts,
    given: Sequence[RecordColumn] = (),
    *,
    lacking: str = "record_columns has no expression for it",
    paths: Paths | None = None,
    keys: Collection[str] = (),
) -> ComparedColumns:
    """Which columns of a table are compared with records, and how.

    Args:
        shape: of the table.
        facts: of a sample of the records.
        given: the user's expressions, where the fields of the values are not the columns.
        lacking: why a column has no expression among those given.
        paths: of columns; None where the fields have their names.
        keys: columns by which the table knows two rows as one.
    """
    if given:
        return _given_columns(shape, given, lacking, keys)
    compared: list[ComparedColumn] = []
    unseen: list[str] = []
    left: list[NotChecked] = []
    types: dict[str, str] = {}
    for column in shape.columns:
        path = (column.name,) if paths is None else paths(column.name)
        found = facts.fields.get(path[0]) if path else None
        if found is None:
            unseen += path[:1]
            left.append(NotChecked(f"column {column.name}", _why_unseen(column, path)))
            continue
        inner = len(path) > 1
        facts_of_column = FieldFacts(fraction_digits=_USUAL_DIGITS, zoned=found.zoned) if inner else found
        rule = _compared(column, facts_of_column)
        rule = _inside(rule, path) if inner else replace(rule, other_field="" if path[0] == column.name else path[0])
        why = _why_left(column, facts_of_column) or (_why_not_inside(column) if inner else "")
        if len(path[0].encode()) > IDENTIFIER_BYTES_MAX:
            why = f"the name of its field {path[0]} is longer than a name in PostgreSQL ({IDENTIFIER_BYTES_MAX} bytes)"
        if not why and types.setdefault(path[0], rule.field_type) != rule.field_type:
            why = f"another column of another type is compared with the same field {path[0]}"
        if why:
            left.append(NotChecked(f"column {column.name}", why))
            continue
        compared.append(_collated(rule, column, keys))
        if column.base in _TIMESTAMPS and _kept_unit(facts_of_column) is not None:
            why = f"records tell {max(facts_of_column.fraction_digits, 0)} digits of a second, and so many are compared"
            left.append(NotChecked(f"finer parts of column {column.name}", why))
    told = {column.field for column in compared}
    unknown = [name for name in facts.fields if name not in told and (paths is not None or shape.column(name) is None)]
    if unknown:
        why = (
            "the table has no column of that name" if paths is None else "no column of the table is made of that alone"
        )
        left.append(NotChecked(f"fields {', '.join(unknown)} of the records", why))
    return ComparedColumns(tuple(compared), tuple(unseen), tuple(left))


def _filled(sql: str, value: str) -> str:
    return sql.replace("?", value).replace(_QUESTION_MARK, "?")


def _verbatim(text: str) -> str:
    return text.replace("?", _QUESTION_MARK)


def _inside(rule: ComparedColumn, path: Sequence[str]) -> ComparedColumn:
    """The rule of a column that a field inside of a record's field tells."""
    outer, inner = path
    arrow = "->" if rule.field_type == "jsonb" else "->>"
    name = _verbatim(inner.replace("'", "''"))
    spelt = rule.of_spelt.replace("?", f"(?{arrow}'{name}')")
    typed = f"({spelt})::{_verbatim(rule.field_type)}"
    of_record, of_row = (sql.replace("?", typed) for sql in (rule.of_record, rule.of_row))
    return ComparedColumn(rule.name, "json", of_record, rule.of_table, outer, of_row=of_row)


def _why_not_inside(column: Column) -> str:
    return "the elements of an array inside of a field are spelt in another way in JSON" if column.is_array else ""


def _collated(rule: ComparedColumn, column: Column, keys: Collection[str]) -> ComparedColumn:
    """The rule for a column in whose collation other texts are equal too: both sides have one collation.

    A key is the same one in each of its spellings. Of any other column the bytes are compared.
    """
    if column.name in keys and column.type_name.rpartition(".")[2] == "citext":
        # By its own equality, which ignores case.
        of_record, of_table = (sql.removesuffix("::text") for sql in (rule.of_record, rule.of_table))
        return replace(rule, of_record=of_record, of_table=of_table)
    if not column.loose_collation:
        return rule
    name = column.loose_collation if column.name in keys else 'pg_catalog."C"'
    of_record, of_table = (f"({sql}) COLLATE {_verbatim(name)}" for sql in (rule.of_record, rule.of_table))
    return replace(rule, of_record=of_record, of_table=of_table)


def _given_columns(
    shape: TableShape, given: Sequence[RecordColumn], lacking: str, keys: Collection[str]
) -> ComparedColumns:
    expressions = {column.name: column.expression for column in given}
    usual = FieldFacts(fraction_digits=_USUAL_DIGITS)
    compared, left = [], []
    for column in shape.columns:
        if column.name not in expressions:
            left.append(NotChecked(f"column {column.name}", lacking))
            continue
        if column.base in _TIMESTAMPS:
            left.append(NotChecked(f"finer parts of column {column.name}", "milliseconds are compared"))
        rule = _compared(column, usual)
        # The expression makes what the column holds, so nothing but the precision needs to be brought together.
        same = ComparedColumn(column.name, _bare_type(column), rule.of_table, rule.of_table, of_row="?")
        compared.append(_collated(same, column, keys))
    return ComparedColumns(tuple(compared), not_checked=tuple(left), given=expressions)


def _bare_type(column: Column) -> str:
    """The column's type without length or precision, into which a cast would cut or round."""
    return (
        f'pg_catalog."{column.base}"' if column.base in _HASHED or column.base in _HASHED_ELEMENTS else column.type_name
    )


def _why_unseen(column: Column, path: Sequence[str]) -> str:
    if path and path[0] != column.name:
        return f"no record has the field {path[0]} that it is made of"
    if column.generated:
        return "the table computes it, and no record has a field of that name"
    return (
        "the table fills it, and no record has a field of that name"
        if column.filled
        else ("no record has a field of that name")
    )


def _why_left(column: Column, found: FieldFacts) -> str:
    """Why a column cannot be compared with its field; '' where it can."""
    if column.base == "_interval":
        return "to_json writes intervals in a form of its own"
    if column.is_array and column.base in ("_bytea", "_timestamp", "_timestamptz", "_json", "_jsonb"):
        return "the elements of such an array are spelt in another way in JSON"
    if found.other and not column.is_array and column.base not in ("json", "jsonb"):
        return f"records have an object or an array, and the column is {column.type_name}"
    return ""


def _compared(column: Column, found: FieldFacts) -> ComparedColumn:
    kind = column.base
    if kind == "bytea":
        return ComparedColumn(column.name, "text", "decode(?, 'base64')")
    if kind in ("json", "jsonb"):
        return _compared_json(column, found)
    if kind == "interval":
        spelt = interval_sql("?")
        return ComparedColumn(
            column.name, 'pg_catalog."interval"', _INTERVAL, _INTERVAL, spelt_type="text", of_spelt=spelt
        )
    if kind in _INTEGERS and found.point:
        # A decimal of Spark is written with all digits of its scale, which an integer does not take.
        return ComparedColumn(column.name, "numeric", f"?::{column.type_name}")
    if kind not in _HASHED and kind not in _HASHED_ELEMENTS:
        return ComparedColumn(column.name, column.type_name, "?::text", "?::text")
    rule = "?"
    spelt_type, of_spelt = ("text", dated_sql("?", kind)) if kind in DATED else ("", "?")
    if kind in _TIMESTAMPS and (unit := _kept_unit(found)) is not None:
        rule = f"date_trunc('{unit}', ?)"
    elif kind == "float8":
        # A float of Spark is written as 0.1, and a double precision column holds the real nearest to that.
        low, high = _REAL_BOUNDS
        real = f"abs(?) BETWEEN {low} AND {high} AND ?::real::float8 = ?"
        rule = f"CASE WHEN {real} THEN ?::real::text::float8 ELSE ? END"
    # Without a length or a precision: a field that does not fit differs, and is not cut to fit.
    read = {"spelt_type": spelt_type, "of_spelt": of_spelt, "of_row": "?"}
    return ComparedColumn(column.name, f'pg_catalog."{kind}"', rule, rule, **read)


def _compared_json(column: Column, found: FieldFacts) -> ComparedColumn:
    """A text in the record is JSON in itself; nulls that a record leaves out say nothing, nor does one that is all."""
    record, table = "?", "?::jsonb"
    if found.text:
        record = "CASE jsonb_typeof(?) WHEN 'string' THEN (? #>> '{}')::jsonb ELSE ? END"
    row = record
    if found.fraction_digits >= 0:
        record, table = _without_finer_parts(record), _without_finer_parts("?")
    if found.zoned:
        # Spark's JSON for the table is in UTC, and that of the record in the time zone of the session.
        record, table = instants_sql(record), instants_sql(table)
    return ComparedColumn(column.name, "jsonb", _without_nulls(record), _without_nulls(table), of_row=row)


def _without_nulls(json: str) -> str:
    return f"NULLIF(jsonb_strip_nulls({json}), 'null'::jsonb)"


def _without_finer_parts(json: str) -> str:
    """JSON whose timestamps have milliseconds at most, as to_json writes them."""
    return rf"regexp_replace(({json})::text, '(T\d\d:\d\d:\d\d\.\d\d\d)\d+', '\1', 'g')::jsonb"


def _kept_unit(found: FieldFacts) -> str | None:
    """The unit to which both sides are cut; None where a record tells more than milliseconds."""
    return next((unit for digits, unit in _UNITS if found.fraction_digits <= digits), None)
