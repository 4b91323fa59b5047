"""The plan of a batch's columns: made once on the driver, carried out in every task.

The driver compares the batch's schema with the table (`plan_columns`), applies each column's ``expression`` in the JVM,
and sends the plan to the tasks, which apply it with a `CopyEncoder`. A column that cannot be stored is refused here,
before any write, by name and with both types.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType
from sqlalchemy import Connection

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.names import TableName, quote_identifier
from spark_2pc_sink.options.outputs import Rows
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.rows.catalog import TargetColumn, TargetTable, utf8_connection
from spark_2pc_sink.sink.rows.copy_encoder import (
    DELETE_COLUMN,
    ORDER_COLUMN,
    UNCHANGED_COLUMN,
    CopyColumn,
    CopyPlan,
    Storage,
)
from spark_2pc_sink.sink.rows.row_sql import TEXTS, parts_of, with_text_keys
from spark_2pc_sink.sink.rows.table_copy import refused_rows
from spark_2pc_sink.sink.rows.type_mapping import (
    COMPLEX_TYPES,
    INTEGERS,
    SCALAR_TYPES,
    arrow_type,
    columns_with,
    conversion,
    in_arrow,
    is_json,
    retyped,
    storage_of,
)
from spark_2pc_sink.sink.spark_sql import quoted

#: pg_type.oid of text.
_TEXT_OID = 25
# to_json writes other keys in Java's internal representation: days of a date, '[B@29eacb95' of binary.
_JSON_KEY_TYPES = (*TEXTS, *INTEGERS, "DecimalType", "BooleanType")
#: Spark orders texts of any other collation by its own rules, which no other program implements.
_BYTE_COLLATION: Final = "UTF8_BINARY"
#: pg_type.typname of texts that PostgreSQL orders by their bytes with collation "C".
BYTE_ORDERED: Final = ("text", "varchar")
#: pg_type.typname of the types that PostgreSQL orders as Spark orders their stored values. Excluded: char(n), which
#: ignores blanks, and uuid, jsonb and interval, with equal values that are spelled in several ways.
_ORDERED: Final = frozenset(
    {"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "bytea", "date", "time", "timestamp", "timestamptz"}
    | set(BYTE_ORDERED)
)


@dataclass(frozen=True)
class PlannedColumn:
    """How one column of the batch is stored in one column of the table; see `CopyColumn`."""

    name: str
    #: Spark SQL, over a column of this name, for what tasks encode: the column itself, or its JSON.
    expression: str
    arrow_type: Any
    nullable: bool
    storage: Storage
    target: TargetColumn

    @property
    def element_oid(self) -> int:
        """For an array, the type that its elements must name; 0 for a scalar."""
        of_column = _TEXT_OID if self.storage.cast else self.target.element_oid
        return of_column if pa.types.is_list(self.arrow_type) else 0

    @property
    def copied_type(self) -> str:
        """The SQL type with which the column is copied if some of the plan's columns are cast."""
        if self.storage.cast:
            return "text[]" if self.element_oid else "text"
        return self.target.stored_type or self.target.type_name


@dataclass(frozen=True)
class ColumnPlan:
    """The columns that a batch writes. Holds no connection and can be pickled."""

    table: TableName
    columns: tuple[PlannedColumn, ...]
    #: The user's options for rows whose key is in the table.
    rows: Rows
    #: In the order of the unique index; empty for append.
    upsert_keys: tuple[str, ...] = ()
    #: With upsert_order_by, the column that carries it; it is copied last and never stored.
    order: PlannedColumn | None = None
    #: The table's column by which rows older than the existing one are skipped; None if they replace it.
    late_by: TargetColumn | None = None
    #: Set if several go into one transaction.
    lane: int = 0

    @property
    def deletes(self) -> bool:
        return self.rows.delete_when is not None

    @property
    def unchanged(self) -> tuple[str, ...]:
        """Columns for which a row may carry no value; the existing row keeps its own."""
        return tuple(self.rows.unchanged_when or ())

    @property
    def own_columns(self) -> tuple[PlannedColumn, ...]:
        """The columns that are copied after all others and not stored."""
        own = (self.order, _DELETE if self.deletes else None, _UNCHANGED if self.unchanged else None)
        return tuple(column for column in own if column is not None)

    @property
    def casts(self) -> bool:
        """Whether some columns are copied as text and converted to values by the database."""
        return any(column.storage.cast for column in self.columns)

    @property
    def copied(self) -> tuple[PlannedColumn, ...]:
        """All that a task encodes, in order."""
        return (*self.columns, *self.own_columns)

    @property
    def updated(self) -> tuple[str, ...]:
        """The columns that change in a row whose key is in the table."""
        if self.rows.mode == "insert_ignore":
            return ()
        chosen = self.names if self.rows.update_columns is None else self.rows.update_columns
        return tuple(name for name in self.names if name in chosen and name not in self.upsert_keys)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def copied_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.copied)

    @property
    def copy_plan(self) -> CopyPlan:
        columns = (
            CopyColumn(each.name, each.arrow_type, each.nullable, each.storage, each.element_oid, each.target.type_name)
            for each in self.copied
        )
        return CopyPlan(tuple(columns), self.upsert_keys)


def plan_columns(
    fields: Iterable[tuple[str, DataType]],
    target: TargetTable,
    rows: Rows,
    *,
    order: DataType | None = None,
    expressions: Mapping[str, str] | None = None,
) -> ColumnPlan:
    """Match the columns of a batch with those of the table; the first column, or key, that does not match is refused.

    ``fields`` are names, compared exactly, and Spark types; ``order`` is the type of `ORDER_COLUMN`, if the batch has
    one. ``expressions`` are Spark SQL by field, for remedies; a field without one is a column of the batch.
    """
    types = dict(fields)
    names = list(types)
    source_sql = {name: quoted(name) for name in names} | dict(expressions or {})
    targets = _target_columns(types, source_sql, target, rows.keys)
    keys = _unique_key(rows.keys, names, target)
    columns = []
    for name, column in targets.items():
        spark_type = types[name]
        storage, (expression, arrow) = storage_of(spark_type, column), in_arrow(quoted(name), spark_type, column)
        if storage is None or arrow is None:
            rule = f"the batch has {spark_type.simpleString()}, the table has {column.type_name}"
            raise refused("columns", name, rule, conversion(name, spark_type, target, column, source_sql[name]))
        if is_json(spark_type, column):
            _check_json(name, spark_type, source_sql[name])
        # A row may carry no value for an unchanged column; PostgreSQL rejects an actual null.
        nullable = name in (rows.unchanged_when or ()) or (column.nullable and name not in keys)
        columns.append(PlannedColumn(name, expression, arrow, nullable, storage, column))
    plan = ColumnPlan(
        table=target.table,
        columns=tuple(columns),
        rows=rows,
        upsert_keys=keys,
        order=None if order is None else _planned_own(ORDER_COLUMN, *order_column(order), nullable=True),
        late_by=_late_by(rows, order, target, source_sql) if rows.late_rows == "keep_newer" else None,
    )
    if keys:
        _check_updated(plan, target)
    return plan


def _target_columns(
    types: Mapping[str, DataType], source_sql: Mapping[str, str], target: TargetTable, upsert_keys: Sequence[str]
) -> dict[str, TargetColumn]:
    found = {}
    for name, spark_type in types.items():
        column = target.column(name)
        if column is None:
            rule = f"table {target.table} has no column of this name (names are compared exactly)"
            raise refused("columns", name, rule, _nearest_column(name, spark_type, source_sql[name], target))
        if column.unwritable:
            rule = f"in table {target.table} it is {column.unwritable}, which only the database writes"
            remedy = "leave it out of columns={...}" + (" and of upsert_keys" if name in upsert_keys else "")
            raise refused("columns", name, rule, remedy)
        found[name] = column
    for column in target.columns:
        if column.name not in types and not (column.nullable or column.has_default or column.unwritable):
            rule = f"column {column.name!r} ({column.type_name}) of {target.table} is NOT NULL without a default"
            remedy = f"write it too, with columns={{..., {column.name!r}: 'expression'}}, or give it a default"
            raise refused("columns", list(types), rule, remedy)
    return found


def _check_updated(plan: ColumnPlan, target: TargetTable) -> None:
    """Refuse options by which a column would be updated that cannot be, or never the one of late rows."""
    names, keys, chosen = plan.names, plan.upsert_keys, plan.rows.update_columns or ()
    for option, given in (("update_columns", chosen), ("unchanged_when", plan.unchanged)):
        for name in given:
            if name not in names or name in keys:
                why = "an upsert key, which never changes" if name in keys else "not among the columns that are written"
                others = ", ".join(other for other in names if other not in keys)
                raise refused(option, list(given), f"{name!r} is {why}", f"the columns are {others}")
    if plan.late_by is not None and plan.late_by.name not in plan.updated:
        late_by = plan.late_by.name
        rule = f"late rows are detected by column {late_by!r}, which would never be updated"
        remedy = f"add {late_by!r}, or leave late rows at 'replace'"
        raise refused("update_columns", list(chosen), rule, remedy)
    fixed = [column.name for column in target.columns if column.always_identity and column.name in plan.updated]
    if fixed:
        free = [name for name in plan.updated if name not in fixed]
        by_default = f"ALTER TABLE {target.altered} ALTER COLUMN {quote_identifier(fixed[0])} SET GENERATED BY DEFAULT"
        rule = (
            f"in table {target.table} it is GENERATED ALWAYS AS IDENTITY and not an upsert key: PostgreSQL can insert "
            "a value there, but not update it"
        )
        keep = f"keep the existing value, with update_columns={free}, or " if free else ""
        raise refused("columns", fixed[0], rule, f"{keep}have the owner run: {by_default}")


def _nearest_column(name: str, spark_type: DataType, source_sql: str, target: TargetTable) -> str:
    known = {column.name.lower(): column.name for column in target.columns}
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    if close:
        nearest = known[close[0]]
        return f"did you mean {nearest!r}? Select it with {columns_with(nearest, source_sql)}"
    there = ", ".join(known.values())
    definition = f"{quote_identifier(name)} {sql_type(name, spark_type)}"
    return (
        f"add it, ALTER TABLE {target.altered} ADD COLUMN {definition}, or let the sink add it, with "
        f"schema_evolution='add_columns'; or choose the columns to write, with columns={{...}}; the table has {there}"
    )


def _unique_key(upsert_keys: Sequence[str], names: list[str], target: TargetTable) -> tuple[str, ...]:
    """The upsert keys in the order of their index."""
    if not upsert_keys:
        return ()
    for key in upsert_keys:
        if key not in names:
            rule = f"{key!r} is not among the columns that are written"
            raise refused("upsert_keys", list(upsert_keys), rule, f"the columns are {', '.join(names)}")
    for unique_key in target.unique_keys:
        if sorted(unique_key) == sorted(upsert_keys):
            return unique_key
    there = "; ".join(f"({', '.join(key)})" for key in target.unique_keys) or "none"
    rule = (
        f"table {target.table} has no primary key or unique index on exactly these columns (it has: {there}); "
        "deferrable, partial and expression indexes do not count, nor do those with another collation than the column"
    )
    raise refused("upsert_keys", list(upsert_keys), rule, _unique_index(upsert_keys, target))


def _unique_index(upsert_keys: Sequence[str], target: TargetTable) -> str:
    """The statement that creates one; or the reason why PostgreSQL cannot create it."""
    if not all(target.partition_key):
        return "PostgreSQL has no unique index for a partition key with an expression: pass mode='append'"
    absent = [name for name in target.partition_key if name not in upsert_keys]
    if absent:
        return (
            "a unique index of a partitioned table must include the partition key: pass "
            f"upsert_keys={[*upsert_keys, *absent]}"
        )
    for column in target.columns:
        if column.name in upsert_keys and not column.ordered:
            to = "jsonb" if column.base_type == "json" else "text"
            kept = f"PostgreSQL cannot change the column's type ({column.retype_blocker}): choose other upsert_keys"
            change = kept if column.retype_blocker else retyped(target, column, to, quoted(column.name))
            return f"an index cannot order {column.type_name}: {change}"
    return f"create one: CREATE UNIQUE INDEX ON {target.table} ({', '.join(map(quote_identifier, upsert_keys))})"


def _late_by(rows: Rows, order: DataType | None, target: TargetTable, source_sql: Mapping[str, str]) -> TargetColumn:
    """The column that holds upsert_order_by, which the database has to order as Spark does."""
    order_by = str(rows.order_by)
    spellings = (order_by.strip(), quoted(order_by))
    names = [name for name, text in source_sql.items() if name not in rows.keys and text.strip() in spellings]
    holding = [column for column in map(target.column, names) if column is not None]
    if not holding:
        raise _refused_order(
            f"the table's rows are compared by upsert_order_by={order_by!r}, and no column of {target.table} other "
            "than an upsert key holds it",
            f"write it to a column too, with columns={{..., 'updated': {order_by!r}}}",
        )
    column = next((each for each in holding if not each.is_array and each.base_type in _ORDERED), None)
    if column is None:
        column = holding[0]
        as_text = f"{retyped(target, column, 'text', order_by)}; or " if type(order).__name__ in TEXTS else ""
        raise _refused_order(
            f"column {column.name!r} of {target.table} holds upsert_order_by, and PostgreSQL does not order "
            f"{column.type_name} as Spark does",
            f"{as_text}order by a number or a timestamp",
        )
    return column


def _refused_order(rule: str, remedy: str) -> ConfigurationError:
    return refused("upsert_late_rows", "keep_newer", rule, f"{remedy}; or leave it at upsert_late_rows='replace'")


def order_column(spark_type: DataType) -> tuple[Any, str]:
    """The Arrow type of order keys, and their type in the database, by the type of upsert_order_by."""
    kind = type(spark_type).__name__
    arrives = arrow_type(spark_type)
    if arrives is None or pa.types.is_list(arrives):
        rule = "it must be a number, a text, a date or a timestamp, whose order is the same everywhere"
        raise refused("upsert_order_by", spark_type.simpleString(), rule, "order by a field of it")
    # Spark has text collations from 4.0 on.
    collation = getattr(spark_type, "collation", _BYTE_COLLATION)
    if kind in TEXTS and collation != _BYTE_COLLATION:
        rule = f"texts are ordered by their bytes, and Spark orders these by the collation {collation}"
        remedy = f"order by bytes, with upsert_order_by='expression COLLATE {_BYTE_COLLATION}'"
        raise refused("upsert_order_by", spark_type.simpleString(), rule, remedy)
    if kind in (*TEXTS, "BinaryType"):
        return pa.binary(), "bytea"
    if isinstance(spark_type, DecimalType):
        return arrives, "numeric"
    return pa.int64(), "bigint"


def _planned_own(name: str, arrow_type: Any, type_name: str, *, nullable: bool = False) -> PlannedColumn:
    """A column of the sink's own, which the table does not have."""
    target = TargetColumn(name, type_name, base_type="")
    return PlannedColumn(name, quoted(name), arrow_type, nullable, Storage(), target)


#: Never null: Spark has converted null to false.
_DELETE = _planned_own(DELETE_COLUMN, pa.bool_(), "boolean")
_UNCHANGED = _planned_own(UNCHANGED_COLUMN, pa.string(), "text")


def _check_json(name: str, spark_type: DataType, source_sql: str) -> None:
    """Refuse types that to_json would write with loss."""
    for part in parts_of(spark_type):
        if isinstance(part, MapType) and type(part.keyType).__name__ not in _JSON_KEY_TYPES:
            rule = (
                f"it is {spark_type.simpleString()}; keys in JSON are text, and Spark would write a key of type "
                f"{part.keyType.simpleString()} in its internal form"
            )
            converted = columns_with(name, f"cast({source_sql} as {with_text_keys(spark_type)})")
            raise refused("columns", name, rule, f"convert the keys with {converted}")
        if isinstance(part, StructType) and len(set(part.names)) < len(part.names):
            rule = f"it is {spark_type.simpleString()}: a field's name occurs twice, and jsonb would keep the last"
            raise refused("columns", name, rule, "rename the fields")


#: Columns that every table has (PostgreSQL's manual, 5.6).
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_COLUMNS_MAX = 1_600


def create_table_ddl(
    fields: Iterable[StructField], table: str, *, upsert_keys: Sequence[str] = (), primary_key: Sequence[str] = ()
) -> str:
    """``CREATE TABLE IF NOT EXISTS`` for the columns of a batch.

    The upsert keys become the primary key, or else the given one. A column is NOT NULL if the batch's schema says so,
    and if it is a key. Maps, structs, variants and arrays of these become jsonb, other arrays arrays.
    """
    fields = list(fields)
    names = [field.name for field in fields]
    own = next((name for name in names if name in _SYSTEM_COLUMNS), None)
    if own is not None:
        remedy = f"give it another name in the table, as with columns={{'source_{own}': '{own}', …}}"
        raise refused("columns", own, "every PostgreSQL table has a system column of this name", remedy)
    if len(names) > _COLUMNS_MAX:
        remedy = "choose some with columns=…, or combine several into a struct, which becomes jsonb"
        raise refused("columns", len(names), f"a PostgreSQL table can have at most {_COLUMNS_MAX} columns", remedy)
    keys = upsert_keys or primary_key
    missing = set(keys) - set(names)
    if missing:
        rule = f"{min(missing)!r} is not among the columns that are written"
        remedy = f"the columns are {', '.join(names)}"
        raise refused("upsert_keys" if upsert_keys else "primary_key", list(keys), rule, remedy)
    lines = []
    for field in fields:
        null = "" if field.nullable and field.name not in keys else " NOT NULL"
        lines.append(f"{quote_identifier(field.name)} {sql_type(field.name, field.dataType)}{null}")
    if keys:
        lines.append(f"PRIMARY KEY ({', '.join(map(quote_identifier, keys))})")
    return f"CREATE TABLE IF NOT EXISTS {TableName.parse(table)} (\n  " + ",\n  ".join(lines) + "\n)"


def sql_type(name: str, spark_type: DataType) -> str:
    """The PostgreSQL type that holds each value of a Spark type; ``name`` is the column in an error."""
    if isinstance(spark_type, DecimalType):
        return f"numeric({spark_type.precision},{spark_type.scale})"
    if isinstance(spark_type, ArrayType) and type(spark_type.elementType).__name__ in SCALAR_TYPES:
        return f"{sql_type(name, spark_type.elementType)}[]"
    if type(spark_type).__name__ in COMPLEX_TYPES:
        return "jsonb"
    if type(spark_type).__name__ not in SCALAR_TYPES:
        converted = columns_with(name, f"cast({quoted(name)} as string)")
        rule = f"PostgreSQL has no type for {spark_type.simpleString()}"
        raise refused("columns", name, rule, f"convert it, for example with {converted}, or leave it out")
    return SCALAR_TYPES[type(spark_type).__name__][0]


def missing_columns(fields: Iterable[StructField], target: TargetTable) -> list[StructField]:
    """The columns of a batch that the table lacks, except those that differ from one only in case.

    These are presumably spelling mistakes, and a second column would get the values of the first.
    """
    known = {column.name.casefold() for column in target.columns}
    return [field for field in fields if field.name.casefold() not in known]


def add_columns(connection: Connection, fields: Sequence[StructField], target: TargetTable) -> None:
    """Add columns, with the types of `create_table_ddl`; each is nullable, because earlier rows lack it.

    ALTER TABLE blocks all others from the table until the transaction ends, and waits up to lock_timeout for those that
    use it. Columns added concurrently by another sink are accepted. The role must own the table.
    """
    added = (
        f"ADD COLUMN IF NOT EXISTS {quote_identifier(field.name)} {sql_type(field.name, field.dataType)}"
        for field in fields
    )
    with utf8_connection(connection).cursor() as cursor, refused_rows(target.table):
        cursor.execute(f"ALTER TABLE {target.table} {', '.join(added)}")
