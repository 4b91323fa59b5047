"""The rules by which a column of the table is compared with the field of a record that it was made with.

Pure: SQL texts. Spark's to_json spells some types less exactly than the table keeps them (timestamps with three digits
of their fraction), and some in another way (binary as base64). Both sides are brought to what the record can tell, so
that equal means: nothing that the record says is different in the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.verification.record_columns import RecordColumn
from spark_2pc_sink.verification.record_facts import FieldFacts, RecordFacts
from spark_2pc_sink.verification.report import NotChecked
from spark_2pc_sink.verification.table_shape import Column, TableShape

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
#: Within these bounds a double fits a real without an error.
_REAL_BOUNDS: Final = ("1e-37", "1e38")


@dataclass(frozen=True)
class ComparedColumn:
    """How one column is compared.

    Attributes:
        name: of the column, and of the record's field.
        field_type: into which PostgreSQL reads the field.
        of_record: SQL over the field, ``?``, that brings it to the compared form.
        of_table: SQL over the column, ``?``, that does the same.
    """

    name: str
    field_type: str
    of_record: str = "?"
    of_table: str = "?"

    def record_sql(self, source: str = "") -> str:
        """The compared form of the record's field."""
        return self.of_record.replace("?", f"{source}{quote_identifier(self.name)}")

    def table_sql(self, source: str = "") -> str:
        """The compared form of the table's column."""
        return self.of_table.replace("?", f"{source}{quote_identifier(self.name)}")


@dataclass(frozen=True)
class ComparedColumns:
    """The columns that are compared.

    Attributes:
        columns: in the order of the table.
        unseen: columns that no record of the sample has a field for: one that has must be looked for.
        not_checked: columns and fields that are left out, and why.
        given: columns that the user has given expressions for, by name; empty where the value's fields are taken.
    """

    columns: tuple[ComparedColumn, ...]
    unseen: tuple[str, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(column.name for column in self.columns)

    def named(self, names: Sequence[str]) -> tuple[ComparedColumn, ...]:
        """Those of these names, in this order."""
        found = {column.name: column for column in self.columns}
        return tuple(found[name] for name in names)


def compared_columns(shape: TableShape, facts: RecordFacts, given: Sequence[RecordColumn] = ()) -> ComparedColumns:
    """Which columns of a table are compared with records, and how.

    Args:
        shape: of the table.
        facts: of a sample of the records.
        given: the user's expressions, where the fields of the values are not the columns.
    """
    if given:
        return _given_columns(shape, given)
    compared: list[ComparedColumn] = []
    unseen: list[str] = []
    left: list[NotChecked] = []
    for column in shape.columns:
        found = facts.fields.get(column.name)
        if found is None:
            unseen.append(column.name)
            left.append(NotChecked(f"column {column.name}", _why_unseen(column)))
            continue
        why = _why_left(column, found)
        if why:
            left.append(NotChecked(f"column {column.name}", why))
            continue
        compared.append(_compared(column, found))
        if column.base in _TIMESTAMPS and _kept_unit(found) is not None:
            why = f"records tell {max(found.fraction_digits, 0)} digits of a second, and so many are compared"
            left.append(NotChecked(f"finer parts of column {column.name}", why))
    unknown = [name for name in facts.fields if shape.column(name) is None]
    if unknown:
        left.append(NotChecked(f"fields {', '.join(unknown)} of the records", "the table has no column of that name"))
    return ComparedColumns(tuple(compared), tuple(unseen), tuple(left))


def _given_columns(shape: TableShape, given: Sequence[RecordColumn]) -> ComparedColumns:
    expressions = {column.name: column.expression for column in given}
    usual = FieldFacts(fraction_digits=_USUAL_DIGITS)
    compared, left = [], []
    for column in shape.columns:
        if column.name not in expressions:
            left.append(NotChecked(f"column {column.name}", "record_columns has no expression for it"))
            continue
        if column.base in _TIMESTAMPS:
            left.append(NotChecked(f"finer parts of column {column.name}", "milliseconds are compared"))
        rule = _compared(column, usual)
        # The expression makes what the column holds, so nothing but the precision needs to be brought together.
        compared.append(ComparedColumn(column.name, _bare_type(column), rule.of_table, rule.of_table))
    return ComparedColumns(tuple(compared), not_checked=tuple(left), given=expressions)


def _bare_type(column: Column) -> str:
    """The column's type without length or precision, into which a cast would cut or round."""
    return (
        f'pg_catalog."{column.base}"' if column.base in _HASHED or column.base in _HASHED_ELEMENTS else column.type_name
    )


def _why_unseen(column: Column) -> str:
    if column.generated:
        return "the table computes it, and no record has a field of that name"
    return (
        "the table fills it, and no record has a field of that name"
        if column.filled
        else ("no record has a field of that name")
    )


def _why_left(column: Column, found: FieldFacts) -> str:
    """Why a column cannot be compared with its field; '' where it can."""
    if column.base in ("interval", "_interval"):
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
    if kind in _INTEGERS and found.point:
        # A decimal of Spark is written with all digits of its scale, which an integer does not take.
        return ComparedColumn(column.name, "numeric", f"?::{column.type_name}")
    if kind not in _HASHED and kind not in _HASHED_ELEMENTS:
        return ComparedColumn(column.name, column.type_name, "?::text", "?::text")
    rule = "?"
    if kind in _TIMESTAMPS and (unit := _kept_unit(found)) is not None:
        rule = f"date_trunc('{unit}', ?)"
    elif kind == "float8":
        # A float of Spark is written as 0.1, and a double precision column holds the real nearest to that.
        low, high = _REAL_BOUNDS
        real = f"abs(?) BETWEEN {low} AND {high} AND ?::real::float8 = ?"
        rule = f"CASE WHEN {real} THEN ?::real::text::float8 ELSE ? END"
    # Without a length or a precision: a field that does not fit differs, and is not cut to fit.
    return ComparedColumn(column.name, f'pg_catalog."{kind}"', rule, rule)


def _compared_json(column: Column, found: FieldFacts) -> ComparedColumn:
    """A text in the record is JSON in itself; nulls that a record leaves out say nothing."""
    record, table = "?", "?::jsonb"
    if found.text:
        record = "CASE jsonb_typeof(?) WHEN 'string' THEN (? #>> '{}')::jsonb ELSE ? END"
    if found.fraction_digits >= 0:
        record, table = _without_finer_parts(record), _without_finer_parts("?")
    return ComparedColumn(column.name, "jsonb", f"jsonb_strip_nulls({record})", f"jsonb_strip_nulls({table})")


def _without_finer_parts(json: str) -> str:
    """JSON whose timestamps have milliseconds at most, as to_json writes them."""
    return rf"regexp_replace(({json})::text, '(T\d\d:\d\d:\d\d\.\d\d\d)\d+', '\1', 'g')::jsonb"


def _kept_unit(found: FieldFacts) -> str | None:
    """The unit to which both sides are cut; None where a record tells more than milliseconds."""
    return next((unit for digits, unit in _UNITS if found.fraction_digits <= digits), None)
