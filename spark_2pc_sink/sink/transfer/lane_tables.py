"""The tables of a sink's lanes: each planned by its loader, and their order among each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import text

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.transfer.table_copy import CopyTarget
from spark_2pc_sink.sink.transfer.table_loader import TableLoader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

    from jdbc_state.connections import Database
    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.contract.record_expressions import RecordExpressions
    from spark_2pc_sink.sink.table.column_plan import ColumnPlan
    from spark_2pc_sink.sink.table.identifiers import TableName

#: Which of some tables refers to which, by a constraint that is checked with each row.
_REFERENCES: Final = text(
    "SELECT DISTINCT conrelid, confrelid FROM pg_catalog.pg_constraint WHERE contype = 'f' AND NOT condeferred "
    "AND conrelid = ANY(:tables) AND confrelid = ANY(:tables) AND conrelid <> confrelid"
)
_OIDS: Final = text("SELECT CAST(CAST(name AS pg_catalog.regclass) AS pg_catalog.oid) FROM unnest(:names) AS name")


class LaneTables:
    """The loaders of all lanes with a table.

    Args:
        options: of the sink.
        database: opens connections for everything that is not part of a decision.
    """

    def __init__(self, options: SinkOptions, database: Database) -> None:
        self._options = options
        self._database = database
        self.loaders: dict[int, TableLoader] = {
            lane.index: TableLoader(options, lane, database) for lane in options.lanes if lane.rows is not None
        }
        self._ordered: tuple[ColumnPlan, ...] = ()
        self._waiting: frozenset[int] = frozenset()

    def prepare(self, batch: DataFrame, expressions: Mapping[int, RecordExpressions], *, create: bool) -> None:
        """Match rows and tables; see `TableLoader.prepare`.

        Args:
            batch: for its schema.
            expressions: of each lane.
            create: make tables that are missing and that may be made.

        Raises:
            ConfigurationError: see `TableLoader.prepare`; or one table is meant twice, or stands before another one
                to which it refers.
        """
        for index, loader in self.loaders.items():
            with loader.lane.naming():
                loader.prepare(batch, expressions[index], create=create)
        plans = tuple(loader.plan for loader in self.loaders.values() if loader.plan is not None)
        if len(plans) > 1 and plans != self._ordered:
            with self._database.transaction(
                "looking how tables refer to each other",
                lock_timeout_ms=self._options.lock_timeout_ms,
                statement_timeout_ms=self._options.statement_timeout_ms,
            ) as connection:
                self._waiting = waiting_lanes(plans, references_of(connection, [plan.table for plan in plans]))
            self._ordered = plans

    def targets(self) -> list[CopyTarget]:
        """Where the rows of an attempt go, in the order in which tables are written."""
        return [CopyTarget(index, loader.table, waits=index in self._waiting) for index, loader in self.loaders.items()]

    def forget(self) -> None:
        """Match rows and tables anew before the next attempt."""
        for loader in self.loaders.values():
            loader.forget()


def references_of(connection: Connection, tables: Sequence[TableName]) -> set[tuple[int, int]]:
    """Which of some tables refers to which, by their places: (1, 0) where the second refers to the first.

    Args:
        connection: inside a transaction; nothing is changed.
        tables: with their schemas.
    """
    oids = list(connection.execute(_OIDS, {"names": [str(table) for table in tables]}).scalars())
    found = connection.execute(_REFERENCES, {"tables": oids})
    return {(oids.index(row.conrelid), oids.index(row.confrelid)) for row in found}


def waiting_lanes(plans: Sequence[ColumnPlan], references: set[tuple[int, int]]) -> frozenset[int]:
    """The lanes whose rows may be written only behind those of the tables before theirs.

    Args:
        plans: in the order in which tables are written.
        references: from `references_of`.

    Raises:
        ConfigurationError: a table stands twice, or before one to which it refers.
    """
    for place, plan in enumerate(plans):
        if plan.table in [other.table for other in plans[:place]]:
            raise _refused(f"each table is written by one output, and {plan.table} by several", "put them into one")
    for place, referred in references:
        if place < referred:
            table, other = plans[place].table, plans[referred].table
            raise _refused(
                f"{table} refers to {other} by a foreign key, and stands before it",
                f"put {other} before it, or make the key DEFERRABLE INITIALLY DEFERRED",
            )
    # Rows of an upsert gather in a table of their own first.
    return frozenset(plans[place].lane for place, _ in references if not plans[place].upsert_keys)


def _refused(rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option="writes", value=None, rule=rule, remedy=remedy)
