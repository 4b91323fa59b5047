"""The rows of a lane as a frame of their own, and packed into one column beside those of other lanes.

The first is what expressions are checked against, and what a job reads where it has one lane. With several, one pass
over the batch makes the rows of all: `spark_2pc_sink.sink.tasks.packed_rows` has the other end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.row_source import with_columns_for_star, with_fields_for_star
from spark_2pc_sink.sink.contract.record_expressions import type_of
from spark_2pc_sink.sink.table.spark_sql import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from spark_2pc_sink.options import RowSource
    from spark_2pc_sink.options.row_source import Explosion

_PACKED: Final = "_2pc_lane_"


def rows_of(batch: DataFrame, source: RowSource) -> DataFrame:
    """The rows of a source, with the columns of the batch, and beside them the element of an array.

    Args:
        batch: the batch.
        source: which rows.

    Raises:
        ConfigurationError: an expression of the source does not fit the batch.
    """
    frame, explosion = batch, source.explosion
    if explosion is not None:
        _check_array(batch, explosion.array)
        if explosion.name.casefold() in (name.casefold() for name in batch.columns):
            raise ConfigurationError(
                option="rows",
                value=source.rows,
                rule=f"the batch has a column {explosion.name!r}, and the element stands beside the batch's columns",
                remedy="choose another name behind AS",
            )
        frame = batch.selectExpr("*", f"explode({explosion.array}) AS {quoted(explosion.name)}")
    if source.where is not None:
        kind = type_of(frame, "where", source.where).simpleString()
        if kind != "boolean":
            raise ConfigurationError(
                option="where",
                value=source.where,
                rule=f"its type is {kind}, and a condition is boolean",
                remedy="compare it with something, as in where='amount > 0'",
            )
        frame = frame.where(source.where)
    return frame


def packed_name(lane: int) -> str:
    """The column that has the rows of a lane."""
    return f"{_PACKED}{lane}"


def packed(batch: DataFrame, source: RowSource, selected: Sequence[str], lane: int) -> str:
    """SQL over the batch for the rows of a lane, with the name of its column.

    Args:
        batch: the batch, for the names of its columns.
        source: which rows.
        selected: SQL over these rows for each of their columns, each with its name.
        lane: its index.
    """
    explosion, where = source.explosion, source.where
    if explosion is None:
        rows = f"struct({', '.join(selected)})"
        rows = rows if where is None else f"CASE WHEN ({where}) THEN {rows} END"
    else:
        # A name in a lambda is first one of its own, so the element is meant as it is in `rows_of`; a star is not.
        name = quoted(explosion.name)
        everything = ", ".join([*map(quoted, batch.columns), name])
        elements = f"({explosion.array})"
        if where is not None:
            elements = f"filter({elements}, {name} -> ({with_columns_for_star(where, everything)}))"
        columns = with_columns_for_star(", ".join(selected), everything)
        if "*" in columns:
            columns = with_fields_for_star(f"({columns})", explosion.name, _fields_of(batch, explosion))[1:-1]
        rows = f"transform({elements}, {name} -> struct({columns}))"
    return f"{rows} AS {packed_name(lane)}"


def _fields_of(batch: DataFrame, explosion: Explosion) -> str:
    """The fields of the element as a list; it itself where it has none, which Spark refuses with a star behind it."""
    from pyspark.sql.types import ArrayType, StructType  # noqa: PLC0415 - Spark is imported where it is needed

    kind, name = type_of(batch, "rows", explosion.array), quoted(explosion.name)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return f"{name}.*"
    return ", ".join(f"{name}.{quoted(field)}" for field in kind.elementType.names)


def _check_array(batch: DataFrame, array: str) -> None:
    from pyspark.sql.types import ArrayType, MapType  # noqa: PLC0415 - Spark is imported where it is needed

    kind = type_of(batch, "rows", array)
    if isinstance(kind, ArrayType):
        return
    remedy = "explode an array"
    if isinstance(kind, MapType):
        remedy = f"explode its entries: rows='explode(map_entries({array})) AS entry', with entry.key and entry.value"
    raise ConfigurationError(
        option="rows", value=array, rule=f"its type is {kind.simpleString()}, and explode takes an array", remedy=remedy
    )
