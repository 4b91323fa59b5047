"""The tree of the target table: kind and persistence of it and its partitions, their rules and triggers.

Asked when a batch is planned, and again in each batch under the table's lock: a table can be renamed and a view put in
its place, it can be made unlogged, get a rule, or a partition that is not its own, while the job runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg2 import sql

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.table.identifiers import TableName, quote_identifier

if TYPE_CHECKING:
    import psycopg2.extensions

# What INSERT and COPY take themselves, some statements earlier: between the look and the rows, nobody alters the table.
# ONLY, since the partitions' own definitions follow the parent's.
_LOCK = "LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE; "

# Most tables are plain ones of which there is no more to say.
_PLAIN = """
SELECT relkind = 'r' AND relpersistence = 'p' AND NOT relhasrules AND NOT relhastriggers
FROM pg_catalog.pg_class WHERE oid = {table}::regclass
"""

# Not pg_partition_tree, which locks every partition: whoever alters one of them would hold up each batch. Only a
# partitioned table hands rows on; what inherits from a plain one gets none of them.
# Rules of partitions do not concern rows that come by their parent. ev_type: 2 is UPDATE, 3 is INSERT, 4 is DELETE.
# tgtype: 1 is FOR EACH ROW, 2 is BEFORE. ev_enabled and tgenabled: D is DISABLE.
_TREE = """
WITH RECURSIVE tree AS (
  SELECT c.oid, c.relkind, c.relpersistence FROM pg_catalog.pg_class c WHERE c.oid = {table}::regclass
  UNION ALL
  SELECT c.oid, c.relkind, c.relpersistence
  FROM tree t
  JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
  JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
  WHERE t.relkind = 'p'
), triggers AS (
  SELECT tgtype & 3 = 3 AS skips FROM pg_catalog.pg_trigger
  WHERE tgrelid IN (SELECT oid FROM tree) AND NOT tgisinternal AND tgenabled <> 'D'
)
SELECT (SELECT relkind = 'p' FROM tree WHERE oid = {table}::regclass),
  (SELECT ARRAY[oid::regclass::text, relkind::text, relpersistence::text] FROM tree
   WHERE relkind NOT IN ('r', 'p') OR relpersistence <> 'p' ORDER BY oid LIMIT 1),
  (SELECT min(rulename) FROM pg_catalog.pg_rewrite
   WHERE ev_class = {table}::regclass AND ev_type IN ('2', '3') AND ev_enabled <> 'D'),
  (SELECT min(rulename) FROM pg_catalog.pg_rewrite
   WHERE ev_class = {table}::regclass AND ev_type = '4' AND ev_enabled <> 'D'),
  (SELECT count(*) > 0 FROM triggers), (SELECT coalesce(bool_or(skips), false) FROM triggers),
  (SELECT coalesce(sum(pg_catalog.pg_stat_get_xact_tuples_deleted(oid)), 0)::bigint FROM tree),
  pg_catalog.current_setting('track_counts')::boolean
"""

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
}
_TABLE_KINDS = ("r", "p")


@dataclass(frozen=True)
class Unfit:
    """A table, or what stands in its place, to which no rows may go.

    Attributes:
        name: as SQL spells it.
        kind: ``pg_class.relkind``.
        persistence: ``pg_class.relpersistence``.
    """

    name: str
    kind: str
    persistence: str


@dataclass(frozen=True)
class TableTree:
    """The table and its partitions at one moment.

    Attributes:
        partitioned: partitions take its rows; others may be attached while rows are written.
        unfit: the first of the table and its partitions that is no table, or none that outlives a crash.
        rule: the first rule for INSERT or UPDATE; '' without one. COPY passes by rules.
        delete_rule: the first rule for DELETE; '' without one.
        triggers: True where a trigger is enabled, whatever it does.
        skipping_triggers: True where one of them could leave a row out: FOR EACH ROW and BEFORE.
        deleted: rows that this transaction has deleted here, and perhaps what the session has deleted before: only the
            difference of two means something.
        counted: False where the server does not count them (track_counts).
    """

    partitioned: bool = False
    unfit: Unfit | None = None
    rule: str = ""
    delete_rule: str = ""
    triggers: bool = False
    skipping_triggers: bool = False
    deleted: int = 0
    counted: bool = True

    def may_have_lost(self, before: TableTree, deleted: int = 0) -> bool:
        """Whether somebody but us may have deleted rows here since an earlier look in the same transaction.

        Args:
            before: that look.
            deleted: how many rows we have deleted since.
        """
        return (self.triggers and not self.counted) or self.deleted != before.deleted + deleted


def read_tree(cursor: psycopg2.extensions.cursor, table: TableName, *, lock: bool) -> TableTree:
    """Ask the catalog.

    Args:
        cursor: in a transaction.
        table: it must exist.
        lock: take the lock of INSERT and COPY on the table first, in the same message.
    """
    name = sql.Literal(str(table))
    plain = sql.SQL(_PLAIN).format(table=name)
    cursor.execute(sql.SQL(_LOCK).format(table.identifier) + plain if lock else plain)
    if cursor.fetchall() == [(True,)]:
        return TableTree()
    cursor.execute(sql.SQL(_TREE).format(table=name))
    [(partitioned, unfit, rule, delete_rule, *others)] = cursor.fetchall()
    found = None if unfit is None else Unfit(*unfit)
    return TableTree(partitioned, found, rule or "", delete_rule or "", *others)


def refuse_unfit(tree: TableTree, table: TableName, *, upsert: bool, deletes: bool = False) -> None:
    """Refuse a target in which rows could be lost, or be there without the decision.

    Args:
        tree: of the table.
        table: for the message.
        upsert: rows are inserted; else they are copied.
        deletes: rows are deleted too.

    Raises:
        ConfigurationError: it, or one of its partitions, is a view, a foreign table or the like, or is unlogged; or it
            has a rule that an upsert, or a deletion, would obey.
    """
    if tree.unfit is not None:
        rule, remedy = _why_unfit(tree.unfit, str(table), partitioned=tree.partitioned)
        raise ConfigurationError(option="table", value=str(table), rule=rule, remedy=remedy)
    if tree.rule and upsert:
        raise ConfigurationError(
            option="table",
            value=str(table),
            rule=f"its rule {tree.rule!r} rewrites what is inserted or updated: rows of an upsert may be left out, or "
            "go elsewhere, and PostgreSQL does not tell how many",
            remedy=f"DROP RULE {quote_identifier(tree.rule)} ON {table}, and do its work in a trigger; or pass "
            "mode='append', whose COPY passes by rules",
        )
    if tree.delete_rule and deletes:
        raise ConfigurationError(
            option="table",
            value=str(table),
            rule=f"its rule {tree.delete_rule!r} rewrites what is deleted: rows that delete_when removes may stay, and "
            "PostgreSQL does not tell how many",
            remedy=f"DROP RULE {quote_identifier(tree.delete_rule)} ON {table}, and do its work in a trigger; or leave "
            "out delete_when, and mark deleted rows in a column",
        )


def _why_unfit(unfit: Unfit, table: str, *, partitioned: bool) -> tuple[str, str]:
    """The rule that it breaks, and the remedy."""
    if unfit.kind in _TABLE_KINDS and unfit.persistence == "t":
        return f"{unfit.name} is temporary: it is gone with its session", "name a table that stays"
    if unfit.kind in _TABLE_KINDS:
        reason = "a crash of the server would empty it, and no batch would come again"
        return f"{unfit.name} is unlogged: {reason}", f"ALTER TABLE {unfit.name} SET LOGGED"
    kind = _KINDS.get(unfit.kind, "no table")
    if not partitioned:
        return f"it is {kind}; rows are copied into a plain or partitioned table", "name the table behind it"
    rule = (
        f"its partition {unfit.name} is {kind}, whose server commits rows before this database decides about the "
        "batch: they would stay after an abort, and be there twice after a crash"
    )
    below = "put the other partitions below a partitioned table of their own, and name that one"
    return rule, f"ALTER TABLE {table} DETACH PARTITION {unfit.name}; or {below}"
