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
from pyspark.sql.types import DataType, DecimalType, MapType, StructType

from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.rows.catalog import SqlTableName, TargetColumn, TargetTable
from spark_2pc_sink.sink.rows.conflict_rule import REPLACE, ConflictRule, LateRows
from spark_2pc_sink.sink.rows.copy_encoder import (
    DELETE_COLUMN,
    ORDER_COLUMN,
    UNCHANGED_COLUMN,
    CopyColumn,
    CopyPlan,
    Storage,
)
from spark_2pc_sink.sink.rows.create_table import sql_type
from spark_2pc_sink.sink.rows.text_guards import json_sql, parts_of, with_text_keys
from spark_2pc_sink.sink.rows.type_mapping import (
    COMPLEX_TYPES,
    INTEGERS,
    JSON_STORAGE,
    TEXTS,
    arrow_type,
    columns_with,
    conversion,
    in_arrow,
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


@dataclass(frozen=True)
class PlannedColumn:
    """How one column of the batch is stored in one column of the table; see `CopyColumn`.

    Attributes:
        expression: Spark SQL, over a column of this name, of what tasks encode: the column itself, or its JSON.
    """

    name: str
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
    """The columns that a batch writes. Holds no connection and can be pickled.

    Attributes:
        upsert_keys: in the order of the unique index; empty for append.
        order: with upsert_order_by, the column that carries it; it is copied last and never stored.
        late_rows: how rows older than those of the table are detected and skipped; None if they replace them.
        delete: with delete_when, the column that carries it; it is copied after all others and never stored.
        conflict: treatment of a row whose key is in the table.
        lane: lane of the rows, if several go into one transaction.
    """

    table: SqlTableName
    columns: tuple[PlannedColumn, ...]
    upsert_keys: tuple[str, ...] = ()
    order: PlannedColumn | None = None
    late_rows: LateRows | None = None
    delete: PlannedColumn | None = None
    conflict: ConflictRule = REPLACE
    lane: int = 0

    @property
    def mode(self) -> str:
        return "insert_ignore" if self.conflict.ignore else "upsert" if self.upsert_keys else "append"

    @property
    def own_columns(self) -> tuple[PlannedColumn, ...]:
        """The columns that are copied and not stored."""
        unchanged = _PLANNED_UNCHANGED if self.conflict.unchanged else None
        return tuple(column for column in (self.order, self.delete, unchanged) if column is not None)

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
        return self.conflict.updated(self.names, self.upsert_keys)

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
    *,
    upsert_keys: Sequence[str] = (),
    order: DataType | None = None,
    deletes: bool = False,
    conflict: ConflictRule = REPLACE,
    expressions: Mapping[str, str] | None = None,
) -> ColumnPlan:
    """Match the columns of a batch with those of the table.

    Args:
        fields: name and Spark type of each column to write. Names are compared exactly.
        target: the table.
        upsert_keys: columns that identify a row; empty for append.
        order: Spark type of the column `ORDER_COLUMN`, if the batch has one (upsert_order_by).
        deletes: the batch has the column `DELETE_COLUMN` (delete_when).
        conflict: treatment of a row whose key is in the table.
        expressions: Spark SQL by field, for remedies; a field without one is a column of the batch.

    Raises:
        ConfigurationError: the first column, or key, that does not match; no data was written.
    """
    types = dict(fields)
    names = list(types)
    source_sql = {name: quoted(name) for name in names} | dict(expressions or {})
    targets = _target_columns(types, source_sql, target, upsert_keys)
    keys = _unique_key(upsert_keys, names, target)
    columns = []
    for name, column in targets.items():
        # A row may carry no value for an unchanged column; PostgreSQL rejects an actual null.
        nullable = name in conflict.unchanged or (column.nullable and name not in keys)
        columns.append(_planned(name, types[name], target, column, nullable=nullable, source_sql=source_sql[name]))
    conflict.check(names, keys)
    _check_updated(conflict.updated(names, keys) if keys else (), target)
    return ColumnPlan(
        table=target.table,
        columns=tuple(columns),
        upsert_keys=keys,
        order=None if order is None else _planned_own(ORDER_COLUMN, *order_column(order), nullable=True),
        delete=_PLANNED_DELETE if deletes else None,
        conflict=conflict,
    )


# --- names and keys ----------------------------------------------------------------------------------------------


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


def _check_updated(updated: Sequence[str], target: TargetTable) -> None:
    fixed = [column.name for column in target.columns if column.always_identity and column.name in updated]
    if fixed:
        others = [name for name in updated if name not in fixed]
        by_default = f"ALTER TABLE {target.altered} ALTER COLUMN {quote_identifier(fixed[0])} SET GENERATED BY DEFAULT"
        rule = (
            f"in table {target.table} it is GENERATED ALWAYS AS IDENTITY and not an upsert key: PostgreSQL can insert "
            "a value there, but not update it"
        )
        keep = f"keep the existing value, with update_columns={others}, or " if others else ""
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


# --- types -------------------------------------------------------------------------------------------------------


def _planned(
    name: str, spark_type: DataType, target: TargetTable, column: TargetColumn, *, nullable: bool, source_sql: str
) -> PlannedColumn:
    if _is_json(spark_type, column):
        storage, arrow = JSON_STORAGE.get(column.base_type), pa.string()
    else:
        storage, arrow = storage_of(spark_type, column), in_arrow("", spark_type)[1]
    if storage is None or arrow is None:
        rule = f"the batch has {spark_type.simpleString()}, the table has {column.type_name}"
        raise refused("columns", name, rule, conversion(name, spark_type, target, column, source_sql))
    if _is_json(spark_type, column):
        _check_json(name, spark_type, source_sql)
    expression = encoded_sql(quoted(name), spark_type, column)
    return PlannedColumn(name, expression, arrow, nullable, storage, column)


def _is_json(spark_type: DataType, column: TargetColumn) -> bool:
    return type(spark_type).__name__ in COMPLEX_TYPES and not column.is_array


def encoded_sql(source: str, spark_type: DataType, column: TargetColumn) -> str:
    """Spark SQL of a value, in the form in which tasks encode it for a column."""
    return json_sql(source, spark_type) if _is_json(spark_type, column) else in_arrow(source, spark_type)[0]


def order_column(spark_type: DataType) -> tuple[Any, str]:
    """The Arrow type of order keys, and their type in the database, by the type of upsert_order_by.

    Raises:
        ConfigurationError: values of this type have no order that both sides could follow.
    """
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
_PLANNED_DELETE = _planned_own(DELETE_COLUMN, pa.bool_(), "boolean")
_PLANNED_UNCHANGED = _planned_own(UNCHANGED_COLUMN, pa.string(), "text")


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
