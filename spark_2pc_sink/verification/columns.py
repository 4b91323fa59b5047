"""The columns that are compared: the table's shape, the JSON form of its values, and the rule for each column.

Spark's to_json writes some types less exactly than the table stores them (timestamps with three fractional digits), and
some in another form (binary as base64). Both sides are converted to what the record can express, so equal means that
nothing in the record contradicts the table. The rules are pure: they build SQL texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

from psycopg2.extensions import cursor as Cursor

from spark_2pc_sink.options.names import IDENTIFIER_BYTES_MAX, TableName, quote_identifier
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.verification.report import NotChecked

#: For a column, the record's field that has its value, and the path inside it; () if no field has it.
Paths: TypeAlias = Callable[[str], tuple[str, ...]]

_FIND: Final = """
SELECT c.oid::bigint, n.nspname, c.relname,
       CASE WHEN pg_catalog.row_security_active(c.oid) THEN current_user::text ELSE '' END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass(%s) AND c.relkind IN ('r', 'p')
"""
# A domain's values are compared as its base type.
_COLUMNS: Final = """
WITH RECURSIVE layers AS (
  SELECT a.attnum, a.attname, a.atttypid AS type_id, a.atttypmod AS modifier, 0 AS depth, a.attgenerated <> '' AS made,
         a.attidentity AS identity, a.atthasdef AS preset, a.attcollation AS collation_id
  FROM pg_catalog.pg_attribute a WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT l.attnum, l.attname, t.typbasetype, t.typtypmod, l.depth + 1, l.made, l.identity, l.preset, l.collation_id
  FROM layers l JOIN pg_catalog.pg_type t ON t.oid = l.type_id WHERE t.typtype = 'd'
)
SELECT DISTINCT ON (l.attnum) l.attname, pg_catalog.format_type(l.type_id, l.modifier),
       CASE WHEN t.typnamespace = 'pg_catalog'::regnamespace THEN t.typname ELSE '' END,
       t.typelem <> 0 AND t.typlen = -1 AND t.typcategory = 'A', l.made, l.identity <> '' OR l.preset,
       coalesce(pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.collname), ''), l.identity = 'a'
FROM layers l JOIN pg_catalog.pg_type t ON t.oid = l.type_id
LEFT JOIN pg_catalog.pg_collation c ON c.oid = l.collation_id AND NOT c.collisdeterministic
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace
ORDER BY l.attnum, l.depth DESC
"""
_UNIQUE_KEYS: Final = """
SELECT ARRAY(SELECT a.attname::text
             FROM unnest(i.indkey::smallint[]) WITH ORDINALITY AS k(attnum, position)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.position <= i.indnkeyatts ORDER BY k.position)
FROM pg_catalog.pg_index i
WHERE i.indrelid = %(table)s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY i.indisprimary DESC, i.indexrelid
"""


@dataclass(frozen=True)
class Column:
    name: str
    #: Stored type as SQL, such as 'numeric(10,2)'; the base type for a domain.
    type_name: str
    #: ``pg_type.typname`` of the stored type; '' if it is not built in.
    base: str
    is_array: bool = False
    #: The table computes it.
    generated: bool = False
    #: The table sets it if a row omits it.
    filled: bool = False
    #: As SQL, a collation under which different texts are equal; '' for none.
    loose_collation: str = ""
    #: UPDATE cannot set it (GENERATED ALWAYS AS IDENTITY).
    identity: bool = False


@dataclass(frozen=True)
class TableShape:
    """A table as the catalogue describes it; the primary key is the first of the unique keys."""

    table: TableName
    columns: tuple[Column, ...]
    unique_keys: tuple[tuple[str, ...], ...] = ()
    #: The role for which row-level security may hide rows; '' if it hides none.
    hidden_from: str = ""


def read_shape(cursor: Cursor, table: str) -> TableShape:
    """Look up 'table' or 'schema.table', as quoted SQL."""
    cursor.execute(_FIND, (str(TableName.parse(table)),))
    found = cursor.fetchone()
    if found is None:
        rule = "there is no such table in the database"
        raise refused("table", table, rule, "name it with its schema: 'schema.table'")
    oid, schema, name, role = found
    cursor.execute(_COLUMNS, {"table": oid})
    columns = tuple(Column(*row) for row in cursor.fetchall())
    cursor.execute(_UNIQUE_KEYS, {"table": oid})
    return TableShape(TableName(name, schema), columns, tuple(tuple(key) for (key,) in cursor.fetchall()), role)


_FRACTION: Final = re.compile(r"T\d\d:\d\d:\d\d(?:\.(\d+))?")
_ZONED: Final = re.compile(r"T\d\d:\d\d:\d\d(?:\.\d+)?[+-]\d\d:\d\d")


class _Number(str):
    """A number as the record spells it."""

    __slots__ = ()


@dataclass
class FieldFacts:
    #: Fractional digits of the second in timestamps; -1 if there are none.
    fraction_digits: int = -1
    #: A number has a decimal point or an exponent.
    point: bool = False
    #: text, other: a value is a text, and an object or an array.
    text: bool = False
    other: bool = False
    #: Such a value contains a timestamp in a time zone other than UTC.
    zoned: bool = False

    def note(self, value: object) -> None:
        if isinstance(value, _Number):
            self.point |= any(mark in value for mark in ".eE")
        elif isinstance(value, (str, dict, list)):
            is_text = isinstance(value, str)
            spelt = value if isinstance(value, str) else json.dumps(value)
            self.text |= is_text
            self.other |= not is_text
            self.zoned |= not is_text and _ZONED.search(spelt) is not None
            self.fraction_digits = max([self.fraction_digits, *map(len, _FRACTION.findall(spelt))])


@dataclass
class RecordFacts:
    """Fields of a sample, including those that are always null; number of JSON objects, and of other values."""

    fields: dict[str, FieldFacts] = field(default_factory=dict)
    records: int = 0
    others: int = 0

    def note(self, values: Iterable[bytes | None]) -> None:
        for found in map(as_object, values):
            self.records += found is not None
            self.others += found is None
            for name, part in (found or {}).items():
                self.fields.setdefault(name, FieldFacts()).note(part)


def as_object(value: bytes | None) -> Mapping[str, Any] | None:
    """A value's JSON object, with its numbers as spelled; None for any other value."""
    try:
        found = json.loads(value or b"", parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


_TIMESTAMPS: Final = frozenset({"timestamp", "timestamptz"})
_INTEGERS: Final = frozenset({"int2", "int4", "int8"})
_OTHERS: Final = frozenset(
    {"numeric", "float4", "float8", "bool", "text", "varchar", "bpchar", "date", "time", "uuid", "jsonb"}
)
#: Types that PostgreSQL hashes with 64 bits. All others are compared as text.
_HASHED: Final = _TIMESTAMPS | _INTEGERS | _OTHERS | {"bytea"} | {f"_{base}" for base in _INTEGERS | _OTHERS}
#: Arrays whose elements have another JSON form.
_OTHER_ELEMENTS: Final = ("_bytea", "_timestamp", "_timestamptz", "_json", "_jsonb")
#: Digits of a timestamp's fraction that to_json writes by default.
_USUAL_DIGITS: Final = 3


@dataclass(frozen=True)
class ComparedColumn:
    name: str
    #: The record's field.
    field: str
    #: PostgreSQL type that the field is read as.
    field_type: str
    #: SQL that converts the raw field to what the next two see under its name.
    read: str
    #: of_record, of_table: SQL for the compared forms of the two sides.
    of_record: str
    of_table: str
    #: SQL for the column's value in a row that is made from the record.
    of_row: str


@dataclass(frozen=True)
class ComparedColumns:
    """The columns that are compared, in the order of the table."""

    columns: tuple[ComparedColumn, ...]
    #: Fields of columns that are in no record of the sample: records with one must be looked for.
    unseen: tuple[str, ...] = ()
    #: Columns and fields that are omitted, and why.
    not_checked: tuple[NotChecked, ...] = ()
    #: The user's expressions by column; empty if the value's fields are used.
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def compared_columns(
    shape: TableShape,
    facts: RecordFacts,
    given: Mapping[str, str] | None = None,
    *,
    lacking: str = "record_columns has no expression for it",
    paths: Paths | None = None,
    keys: Collection[str] = (),
) -> ComparedColumns:
    """Decide which columns of a table are compared with records, and how.

    ``given`` has expressions for columns, if the values' fields are not the columns, and ``lacking`` is why a column
    has none. Without ``paths`` the fields have the columns' names. ``keys`` identify a row in the table.
    """
    compared: list[ComparedColumn] = []
    unseen: list[str] = []
    left: list[NotChecked] = []
    types: dict[str, str] = {}
    for column in shape.columns:
        path: tuple[str, ...] = (column.name,)
        if given:
            found = FieldFacts(fraction_digits=_USUAL_DIGITS)
            why = "" if column.name in given else lacking
        else:
            path = path if paths is None else paths(column.name)
            seen = facts.fields.get(path[0]) if path else None
            unseen += path[:1] if seen is None else ()
            why, found = _why_left(column, seen, path), seen or FieldFacts()
            if len(path) > 1:
                found = FieldFacts(fraction_digits=_USUAL_DIGITS, zoned=found.zoned)
        rule = None if why else _rule(column, found, path, (given or {}).get(column.name))
        if rule is not None and types.setdefault(path[0], rule.field_type + rule.read) != rule.field_type + rule.read:
            why = f"another column of another type is compared with the same field {path[0]}"
        if rule is None or why:
            left.append(NotChecked(f"column {column.name}", why))
            continue
        compared.append(_collated(rule, column, keys))
        if column.base in _TIMESTAMPS and found.fraction_digits <= _USUAL_DIGITS:
            why = f"records have {max(found.fraction_digits, 0)} fractional digits of a second, and these are compared"
            why = "milliseconds are compared" if given else why
            left.append(NotChecked(f"finer parts of column {column.name}", why))
    known = {column.field for column in compared} | {column.name for column in shape.columns if paths is None}
    if unknown := [name for name in facts.fields if not given and name not in known]:
        why = "the table has no column of that name" if paths is None else "no column has the same expression"
        left.append(NotChecked(f"fields {', '.join(unknown)} of the records", why))
    return ComparedColumns(tuple(compared), tuple(unseen), tuple(left), given or {})


def _collated(rule: ComparedColumn, column: Column, keys: Collection[str]) -> ComparedColumn:
    """The rule, if a collation treats different texts as equal: keys are compared by it, other columns by bytes."""
    both = (rule.of_record, rule.of_table)
    if column.name in keys and column.type_name.rpartition(".")[2] == "citext":
        # By its own equality, which ignores case.
        of_record, of_table = (sql.removesuffix("::text") for sql in both)
    elif column.loose_collation:
        name = column.loose_collation if column.name in keys else 'pg_catalog."C"'
        of_record, of_table = (f"({sql}) COLLATE {name}" for sql in both)
    else:
        return rule
    return replace(rule, of_record=of_record, of_table=of_table)


def _why_left(column: Column, found: FieldFacts | None, path: Sequence[str]) -> str:
    """Why a column cannot be compared with its field; '' if it can."""
    nothing = "no record has a field of that name"
    if found is None:
        if path and path[0] != column.name:
            return f"no record has the field {path[0]}, from which it is made"
        does = "computes" if column.generated else "fills" if column.filled else ""
        return f"the table {does} it, and {nothing}" if does else nothing
    if len(path[0].encode()) > IDENTIFIER_BYTES_MAX:
        return f"the name of its field {path[0]} is longer than a name in PostgreSQL ({IDENTIFIER_BYTES_MAX} bytes)"
    if column.base == "_interval":
        return "to_json writes intervals in its own format"
    if column.is_array and (column.base in _OTHER_ELEMENTS or len(path) > 1):
        return "elements of such an array have another form in JSON"
    nested = found.other and len(path) == 1 and not column.is_array and column.base not in ("json", "jsonb")
    return f"records have an object or an array, and the column is {column.type_name}" if nested else ""


class _Form(NamedTuple):
    """Conversion of a type's values to the compared form."""

    #: PostgreSQL type that the field is read as.
    kind: str
    #: record, table: convert each side to the form.
    record: Callable[[str], str] = str
    table: Callable[[str], str] = str
    #: Gives the column's value; None if ``record`` does.
    row: Callable[[str], str] | None = None
    #: Makes a ``kind`` of the field's text; None if PostgreSQL reads the text directly.
    spell: Callable[[str], str] | None = None


def _rule(column: Column, found: FieldFacts, path: Sequence[str], expression: str | None) -> ComparedColumn:
    """The rule for a column whose value is in a field, or in a field inside a field, or the user's expression."""
    form, own = _form(column, found), quote_identifier(column.name)
    of_table = form.table(own)
    if expression is not None:
        # It already gives the column's value, so only the precision is adjusted. Length and precision of the type are
        # omitted, as a cast would truncate or round.
        kind = f'pg_catalog."{column.base}"' if column.base in _HASHED else column.type_name
        return ComparedColumn(column.name, column.name, "", f"({expression})::{kind}", of_table, of_table, own)
    spell = form.spell or str
    value = read = quote_identifier(path[0])
    if len(path) == 1:
        field_type, read = "text" if form.spell else form.kind, spell(value)
    else:
        name = path[1].replace("'", "''")
        inner = f"({value}{'->' if form.kind == 'jsonb' else '->>'}'{name}')"
        field_type, value = "json", f"({spell(inner)})::{form.kind}"
    of_row = (form.row or form.record)(value)
    return ComparedColumn(column.name, path[0], field_type, read, form.record(value), of_table, of_row)


def _form(column: Column, found: FieldFacts) -> _Form:
    kind = column.base
    if kind == "bytea":
        return _Form("text", lambda value: f"decode({value}, 'base64')")
    if kind in ("json", "jsonb"):
        return _json_form(found)
    if kind == "interval":
        return _Form('pg_catalog."interval"', _interval_parts, _interval_parts, spell=_interval_sql)
    if kind in _INTEGERS and found.point:
        # A Spark decimal is written with all digits of its scale, which an integer does not accept.
        return _Form("numeric", lambda value: f"{value}::{column.type_name}")
    if kind not in _HASHED:
        return _Form(column.type_name, lambda value: f"{value}::text", lambda value: f"{value}::text")
    rule: Callable[[str], str] = _shortest_float if kind == "float8" else str
    if kind in _TIMESTAMPS and found.fraction_digits <= _USUAL_DIGITS:
        unit = "second" if found.fraction_digits <= 0 else "milliseconds"
        rule = lambda value: f"date_trunc('{unit}', {value})"  # noqa: E731 - one of three
    spell = (lambda text: _dated_sql(text, kind)) if kind in {"date", *_TIMESTAMPS} else None
    # Without a length or a precision: a field that does not fit must differ, and not be truncated.
    return _Form(f'pg_catalog."{kind}"', rule, rule, str, spell)


def _shortest_float(value: str) -> str:
    """A Spark float is written as 0.1, and a double precision column has the real nearest to that."""
    # Within these bounds a double fits a real without an error.
    real = f"abs({value}) BETWEEN 1e-37 AND 1e38 AND {value}::real::float8 = {value}"
    return f"CASE WHEN {real} THEN {value}::real::text::float8 ELSE {value} END"


def _interval_parts(value: str) -> str:
    """An interval by its months and its seconds: PostgreSQL's equality has 30 days in a month, Spark's has not."""
    months = f"(extract(year FROM {value}) * 12 + extract(month FROM {value}))::integer"
    seconds = f"extract(epoch FROM {value} - make_interval(months => {months}))"
    return f"{months} || ' months ' || {seconds} || ' seconds'"


def _json_form(found: FieldFacts) -> _Form:
    """A text in the record is JSON in itself; nulls that a record omits, or that are its whole value, are ignored."""

    def row(value: str) -> str:
        parsed = f"CASE jsonb_typeof({value}) WHEN 'string' THEN ({value} #>> '{{}}')::jsonb ELSE {value} END"
        return parsed if found.text else value

    def form(value: str) -> str:
        if found.fraction_digits >= 0:
            # Timestamps with milliseconds at most, as to_json writes them.
            value = rf"regexp_replace(({value})::text, '(T\d\d:\d\d:\d\d\.\d\d\d)\d+', '\1', 'g')::jsonb"
        if found.zoned:
            # Spark's JSON of the table's values is in UTC, that of the record in the session's time zone.
            value = _instants_sql(value)
        return f"NULLIF(jsonb_strip_nulls({value}), 'null'::jsonb)"

    return _Form("jsonb", lambda value: form(row(value)), lambda value: form(f"{value}::jsonb"), row)


# --- dates, timestamps and intervals as Spark spells them, which PostgreSQL does not read, or not see to be equal ----

# Only existing days, from 4700 BC to 199999: PostgreSQL would refuse the whole record for any other text that looks
# like a timestamp.
_YEAR: Final = r"(\d{4}|\+[1-9]\d{4}|\+1\d{5}|-[0-3]\d{3}|-4[0-6]\d\d)"
_DAY: Final = r"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_LEAP_DAY: Final = r"(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29"
_TIME: Final = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+|)"
_OFFSET: Final = r"(Z|[+-](0\d|1[0-5]):[0-5]\d(:[0-5]\d|))"
_INSTANT: Final = f"({_YEAR}-{_DAY}|{_LEAP_DAY})T{_TIME}{_OFFSET}"


def _dated_sql(spelt: str, kind: str) -> str:
    """A date or a timestamp, including years that PostgreSQL spells differently from Java: +10000, 0000, -0100."""
    year = rf"substring(ltrim({spelt}, '-') from '^\d+')"
    rest = rf"substring(ltrim({spelt}, '-') from '^\d+(.*)$')"
    before_christ = f"lpad((1 + {year}::bigint)::text, 4, '0') || {rest} || ' BC'"
    return (
        # The first check is cheap, and decides nearly all.
        f"(CASE WHEN left({spelt}, 1) NOT IN ('+', '-', '0') THEN {spelt} "
        rf"WHEN {spelt} ~ '^\+\d' THEN substr({spelt}, 2) "
        rf"WHEN {spelt} ~ '^(-\d+|0000)-\d\d-\d\d' THEN {before_christ} "
        f'ELSE {spelt} END)::pg_catalog."{kind}"'
    )


def _interval_sql(spelt: str) -> str:
    """An interval in PostgreSQL's form, or in Spark's: ``INTERVAL '-1 02:03' DAY TO MINUTE``."""
    sign = f"CASE WHEN {spelt} ~ '^INTERVAL ''-' THEN -1 ELSE 1 END"
    hours = f"CASE WHEN {spelt} ~ 'MINUTE TO SECOND$' THEN '00:' END"
    rest = (
        f"CASE WHEN {spelt} ~ 'DAY TO HOUR$' THEN ':00' "
        f"WHEN {spelt} !~ ' TO ' THEN substring({spelt} from ' [A-Z]+$') END"
    )
    of_spark = f"({sign}) * concat({hours}, substring({spelt} from '''-*([^'']*)'''), {rest})::interval"
    return f"(CASE WHEN {spelt} ~ '^INTERVAL ' THEN {of_spark} ELSE {spelt}::interval END)"


def _instants_sql(json_sql: str) -> str:
    """JSON with the seconds since 1970 in place of each timestamp that has a time zone."""
    # A timestamp is between two quotes; a quote inside a text only adds pieces, identically on both sides.
    seconds = f"extract(epoch FROM {_dated_sql('piece', 'timestamptz')})::text"
    made = f"CASE WHEN piece ~ '^{_INSTANT}$' THEN {seconds} ELSE piece END"
    return (
        f"(SELECT string_agg({made}, '\"' ORDER BY n)::jsonb "
        f"FROM string_to_table(({json_sql})::text, '\"') WITH ORDINALITY AS p (piece, n))"
    )
