"""The target table according to PostgreSQL's catalog; a batch is planned against it.

Kind, rules and triggers of the table and its partitions are read again in each batch, under the table's lock: while the
job runs, a table can be renamed and replaced by a view, become unlogged, or get a rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import psycopg2.extensions
from sqlalchemy import Connection

from jdbc_state.connections import Database
from spark_2pc_sink.options import Rows, SinkOptions
from spark_2pc_sink.options.names import TableName, quote_identifier
from spark_2pc_sink.options.settings import refused


def identifiers(columns: Iterable[str]) -> str:
    return ", ".join(map(quote_identifier, columns))


# Most tables are plain ones without further details.
_PLAIN = """
SELECT relkind = 'r' AND relpersistence = 'p' AND NOT relhasrules AND NOT relhastriggers
FROM pg_catalog.pg_class WHERE oid = %(table)s::regclass
"""

# Not pg_partition_tree, which locks every partition: altering one of them would block each batch. Only a partitioned
# table routes rows; tables that inherit from a plain one get none of them.
# Partition rules do not apply to rows inserted through the parent. ev_type: 2 is UPDATE, 3 is INSERT, 4 is DELETE.
# tgtype: 1 is FOR EACH ROW, 2 is BEFORE. ev_enabled and tgenabled: D is DISABLE.
_TREE = """
WITH RECURSIVE tree AS (
  SELECT c.oid, c.relkind, c.relpersistence FROM pg_catalog.pg_class c WHERE c.oid = %(table)s::regclass
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
SELECT (SELECT relkind = 'p' FROM tree WHERE oid = %(table)s::regclass),
  (SELECT ARRAY[oid::regclass::text, relkind::text, relpersistence::text] FROM tree
   WHERE relkind NOT IN ('r', 'p') OR relpersistence = 't' OR (relkind = 'r' AND relpersistence = 'u')
   ORDER BY oid LIMIT 1),
  (SELECT min(rulename) FROM pg_catalog.pg_rewrite
   WHERE ev_class = %(table)s::regclass AND ev_type IN ('2', '3') AND ev_enabled <> 'D'),
  (SELECT min(rulename) FROM pg_catalog.pg_rewrite
   WHERE ev_class = %(table)s::regclass AND ev_type = '4' AND ev_enabled <> 'D'),
  (SELECT count(*) > 0 FROM triggers), (SELECT coalesce(bool_or(skips), false) FROM triggers),
  (SELECT coalesce(sum(pg_catalog.pg_stat_get_xact_tuples_deleted(oid)), 0)::bigint FROM tree),
  pg_catalog.current_setting('track_counts')::boolean
"""

# For an unfit table: its parent, and the unlogged tables that it refers to, the most distant first, because a logged
# table must not refer to them.
_AROUND = """
WITH RECURSIVE referred AS (
  SELECT %(table)s::regclass AS at, ARRAY[%(table)s::regclass] AS path
  UNION ALL
  SELECT k.confrelid::regclass, r.path || k.confrelid::regclass
  FROM referred r
  JOIN pg_catalog.pg_constraint k ON k.conrelid = r.at AND k.contype = 'f' AND k.confrelid <> ALL (r.path)
  JOIN pg_catalog.pg_class c ON c.oid = k.confrelid AND c.relpersistence = 'u'
)
SELECT (SELECT inhparent::regclass::text FROM pg_catalog.pg_inherits WHERE inhrelid = %(table)s::regclass LIMIT 1),
  ARRAY(SELECT at::text FROM referred GROUP BY at ORDER BY max(cardinality(path)) DESC)
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


@dataclass(frozen=True)
class TableTree:
    """The table and its partitions at one point in time."""

    #: Rows go to partitions; more may be attached while rows are written.
    partitioned: bool = False
    #: Rule and remedy for the first of the table and its partitions that is not a table, or not a crash-safe one.
    unfit: tuple[str, str] | None = None
    #: First rule for INSERT or UPDATE. COPY bypasses rules.
    rule: str = ""
    #: First rule for DELETE.
    delete_rule: str = ""
    #: Any trigger is enabled.
    triggers: bool = False
    #: One of them could leave a row out: FOR EACH ROW and BEFORE.
    skipping_triggers: bool = False
    #: Rows that this transaction has deleted here, perhaps with earlier ones of the session: only differences count.
    deleted: int = 0
    #: False if the server does not count them (track_counts).
    counted: bool = True

    def may_have_lost(self, before: TableTree, deleted: int = 0) -> bool:
        """Whether more rows may have been deleted since ``before``, in the same transaction, than our ``deleted``."""
        return (self.triggers and not self.counted) or self.deleted != before.deleted + deleted


def read_tree(cursor: psycopg2.extensions.cursor, table: TableName, *, lock: bool) -> TableTree:
    """Read the catalog; with ``lock``, after locking as INSERT does, in one message: the table then stays unaltered."""
    # ONLY, since the partitions' own definitions follow the parent's.
    locking = f"LOCK TABLE ONLY {table} IN ROW EXCLUSIVE MODE; ".replace("%", "%%") if lock else ""
    named = {"table": str(table)}
    cursor.execute(locking + _PLAIN, named)
    if cursor.fetchall() == [(True,)]:
        return TableTree()
    cursor.execute(_TREE, named)
    [(partitioned, unfit, rule, delete_rule, *others)] = cursor.fetchall()
    why_unfit = None if unfit is None else _why_unfit(cursor, *unfit, partitioned=partitioned)
    return TableTree(partitioned, why_unfit, rule or "", delete_rule or "", *others)


_APPEND = "pass mode='append': COPY bypasses rules"
_MARK_DELETED = "leave out delete_when, and mark deleted rows in a column"


def refuse_unfit(tree: TableTree, table: TableName, rows: Rows) -> None:
    """Refuse a target in which rows could be lost, or exist without the decision."""
    if tree.unfit is not None:
        raise refused("table", str(table), *tree.unfit)
    for name, applies, effect, otherwise in (
        (tree.rule, bool(rows.keys), "inserts and updates: upserted rows may be dropped or diverted", _APPEND),
        (tree.delete_rule, bool(rows.delete_when), "deletions: rows that delete_when removes may stay", _MARK_DELETED),
    ):
        if name and applies:
            rule = f"its rule {name!r} rewrites {effect}, and PostgreSQL does not report how many"
            remedy = f"DROP RULE {quote_identifier(name)} ON {table}, and replace it with a trigger; or {otherwise}"
            raise refused("table", str(table), rule, remedy)


def _why_unfit(
    cursor: psycopg2.extensions.cursor, name: str, kind: str, persistence: str, *, partitioned: bool
) -> tuple[str, str]:
    """The violated rule, and the remedy; ``kind`` and ``persistence`` are those of ``pg_class``."""
    cursor.execute(_AROUND, {"table": name})
    [(parent, unlogged)] = cursor.fetchall()
    if kind in ("r", "p"):
        if persistence == "t":
            return f"{name} is a temporary table, which ends with its session", "name a permanent table"
        logged = "; ".join(f"ALTER TABLE {each} SET LOGGED" for each in unlogged)
        return f"{name} is unlogged: a crash of the server would empty it, and batches are not repeated", logged
    shown = _KINDS.get(kind, "not a table")
    if not partitioned:
        return f"it is {shown}; it must be a plain or partitioned table", "name the table itself"
    rule = (
        f"its partition {name} is {shown}, whose server commits rows before this database decides the batch: they "
        "would remain after an abort, and be duplicated after a crash"
    )
    below = "put the other partitions under a partitioned table of their own, and name that one"
    return rule, f"ALTER TABLE {parent} DETACH PARTITION {name}; or {below}"


# The header of the varlena types that encode a length, or precision and scale, in their type modifier (VARHDRSZ).
_TYPE_MODIFIER_OFFSET = 4

# Columns of a partition are altered in the root table of its tree. An empty name in a partition key is an
# expression.
_FIND = """
SELECT n.nspname, c.relname, r.oid, root_schema.nspname, r.relname, ARRAY(
  SELECT coalesce(a.attname::text, '')
  FROM pg_catalog.pg_partitioned_table p CROSS JOIN unnest(p.partattrs::smallint[]) AS k(attnum)
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
  WHERE p.partrelid = c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class r ON r.oid = coalesce(pg_catalog.pg_partition_root(c.oid), c.oid)
JOIN pg_catalog.pg_namespace root_schema ON root_schema.oid = r.relnamespace
WHERE c.oid = %s
"""

# In a schema that the role may not use, to_regclass raises an error that ends the transaction.
_OID = """
SELECT schema_exists, closed, CASE WHEN NOT closed THEN pg_catalog.to_regclass(%(table)s)::oid::bigint END, current_user
FROM (
  SELECT count(*) > 0 OR %(schema)s IS NULL AS schema_exists,
    coalesce(bool_or(NOT has_schema_privilege(oid, 'USAGE')), false) AS closed
  FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s
) AS named
"""

# What prevents a type change of columns that PostgreSQL would not convert by itself. A plain index is rebuilt, and
# a default, a key or the sequence of a serial column is carried over.
_HELD = """
SELECT name, why FROM (
  SELECT a.attname::text AS name, CASE
    WHEN a.attidentity <> '' THEN 'it is an identity column'
    WHEN a.attinhcount > 0 THEN 'it is inherited'
    WHEN bool_or(d.objid = a.attrelid OR a.attnum = ANY (p.partattrs::smallint[])) THEN 'it is in the partition key'
    WHEN count(d.objid) > 0
      THEN 'it is used by ' || min(pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)) END AS why
  FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = a.attrelid
  LEFT JOIN pg_catalog.pg_depend d
    ON d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
    AND CASE d.classid
      WHEN 'pg_catalog.pg_class'::regclass THEN NOT EXISTS (
        SELECT FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
        WHERE c.oid = d.objid AND (c.relkind = 'S' OR i.indclass IS NOT NULL
          AND i.indexprs IS NULL AND i.indpred IS NULL AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_opclass o JOIN pg_catalog.pg_am m ON m.oid = o.opcmethod
            WHERE o.oid = ANY (i.indclass::oid[]) AND NOT (o.opcdefault AND m.amname = 'btree'))))
      WHEN 'pg_catalog.pg_constraint'::regclass THEN NOT EXISTS (
        SELECT FROM pg_catalog.pg_constraint k WHERE k.oid = d.objid AND k.contype IN ('p', 'u', 'n'))
      WHEN 'pg_catalog.pg_attrdef'::regclass THEN NOT EXISTS (
        SELECT FROM pg_catalog.pg_attrdef e
        WHERE e.oid = d.objid AND e.adrelid = d.refobjid AND e.adnum = d.refobjsubid)
      ELSE true END
  WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
  GROUP BY a.attname, a.attidentity, a.attinhcount
) AS held WHERE why IS NOT NULL
"""

# In the order of the fields of `TargetColumn`.
# A domain is a type on top of a type, with its own constraints: `layers` walks down to the stored type.
# The binary form of xml is text too, but xml_recv converts it from the encoding that the text declares.
_COLUMNS = """
WITH RECURSIVE layers AS (
  SELECT a.attnum, a.atttypid AS type_id, a.atttypmod AS type_modifier, a.attnotnull AS not_null,
         a.atthasdef OR a.attidentity <> '' AS has_default, 0 AS depth
  FROM pg_catalog.pg_attribute a
  WHERE a.attrelid = %(table)s::regclass AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT l.attnum, t.typbasetype, t.typtypmod, l.not_null OR t.typnotnull,
         l.has_default OR t.typdefault IS NOT NULL, l.depth + 1
  FROM layers l JOIN pg_catalog.pg_type t ON t.oid = l.type_id
  WHERE t.typtype = 'd'
), stored AS (
  SELECT DISTINCT ON (attnum) * FROM layers ORDER BY attnum, depth DESC
)
SELECT a.attname,
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       CASE
         WHEN element.oid IS NULL AND base.typnamespace = 'pg_catalog'::regnamespace THEN base.typname
         WHEN element.typnamespace = 'pg_catalog'::regnamespace AND element.typtype = 'b' THEN element.typname
         ELSE '' END,
       element.oid IS NOT NULL,
       s.type_modifier,
       coalesce(element.oid, 0)::bigint,
       NOT s.not_null,
       s.has_default,
       CASE WHEN a.attgenerated <> '' THEN 'a generated column' ELSE '' END,
       a.attidentity = 'a',
       pg_catalog.format('%%I.%%I', base_schema.nspname, base.typname),
       base.typtype <> 'b' OR element.oid IS NOT NULL OR EXISTS (
         SELECT FROM pg_catalog.pg_opclass o JOIN pg_catalog.pg_am m ON m.oid = o.opcmethod
         LEFT JOIN pg_catalog.pg_cast c
           ON c.castsource = base.oid AND c.casttarget = o.opcintype AND c.castmethod = 'b'
         WHERE m.amname = 'btree' AND o.opcdefault AND (o.opcintype = base.oid OR c.oid IS NOT NULL)),
       EXISTS (
         SELECT FROM pg_catalog.pg_proc r JOIN pg_catalog.pg_language l ON l.oid = r.prolang
         WHERE r.oid = coalesce(element.typreceive, base.typreceive) AND l.lanname = 'internal'
           AND r.prosrc IN ('textrecv', 'enum_recv', 'namerecv'))
FROM stored s
JOIN pg_catalog.pg_attribute a ON a.attrelid = %(table)s::regclass AND a.attnum = s.attnum
JOIN pg_catalog.pg_type base ON base.oid = s.type_id
JOIN pg_catalog.pg_namespace base_schema ON base_schema.oid = base.typnamespace
LEFT JOIN pg_catalog.pg_type element ON element.oid = base.typelem AND element.typarray = base.oid
ORDER BY a.attnum
"""

# Those that ON CONFLICT (columns) can infer: whole rows, plain columns, checked immediately. If index and column differ
# on whether two texts are equal, keys within a batch would not be distinguished as the index does.
_UNIQUE_KEYS = """
SELECT ARRAY(
  SELECT a.attname::text
  FROM unnest(i.indkey::smallint[]) WITH ORDINALITY AS k(attnum, position)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
  WHERE k.position <= i.indnkeyatts ORDER BY k.position)
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid
  AND i.indpred IS NULL AND i.indexprs IS NULL
  AND NOT EXISTS (
    SELECT FROM unnest(i.indkey::smallint[], i.indcollation::oid[]) AS k(attnum, collation_id)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    JOIN pg_catalog.pg_collation c ON c.oid IN (k.collation_id, a.attcollation)
    WHERE k.collation_id <> a.attcollation AND NOT c.collisdeterministic)
ORDER BY i.indisprimary DESC, c.relname
"""


@dataclass(frozen=True)
class TargetColumn:
    """One column of the target table."""

    name: str
    #: Result of ``format_type``, such as 'numeric(10,2)' or 'text[]'.
    type_name: str
    #: ``pg_type.typname`` of the stored type, of the element for an array, with domains resolved; '' for a type that is
    #: not built in.
    base_type: str
    is_array: bool = False
    #: Length or precision in the catalog's encoding; -1 for none.
    type_modifier: int = -1
    #: For an array, the type that its binary form must name; else 0.
    element_oid: int = 0
    #: False if column or domain is NOT NULL.
    nullable: bool = True
    #: A row may omit the column.
    has_default: bool = False
    #: Why rows must not provide a value, such as 'a generated column'.
    unwritable: str = ""
    #: GENERATED ALWAYS AS IDENTITY: COPY writes it, as does an INSERT that overrides the system's value. PostgreSQL
    #: does not update it.
    always_identity: bool = False
    #: The stored type in SQL, for a domain its base type: with its schema, without length and precision.
    stored_type: str = ""
    #: An index can order its values.
    ordered: bool = True
    #: A value's binary form is its text, as for an enum; for an array, an element's.
    reads_text: bool = False
    #: Why PostgreSQL would not change its type, such as 'it is an identity column'.
    retype_blocker: str = ""

    @property
    def stored_as(self) -> tuple[str, int, int]:
        """What determines the binary form of a value, and its checks."""
        return self.stored_type, self.type_modifier, self.element_oid

    @property
    def characters_max(self) -> int | None:
        """The n of varchar(n) or char(n); None without one."""
        return None if self.type_modifier < 0 else self.type_modifier - _TYPE_MODIFIER_OFFSET

    @property
    def precision_and_scale(self) -> tuple[int, int] | None:
        """The (p, s) of numeric(p,s); None if unconstrained. The scale may be negative from PostgreSQL 15 on."""
        if self.type_modifier < 0:
            return None
        packed = self.type_modifier - _TYPE_MODIFIER_OFFSET
        scale = packed & 0x7FF
        return packed >> 16 & 0xFFFF, scale - 0x800 if scale & 0x400 else scale


@dataclass(frozen=True)
class TargetTable:
    """The target table. Can be pickled."""

    table: TableName
    columns: tuple[TargetColumn, ...]
    #: The columns of each key that ``ON CONFLICT`` can use, those of the primary key first.
    unique_keys: tuple[tuple[str, ...], ...] = ()
    #: For a partition, the root table; None if it is not a partition.
    root: TableName | None = None
    #: Columns that determine a row's partition, '' for an expression; () if there are none.
    partition_key: tuple[str, ...] = ()

    @property
    def altered(self) -> TableName:
        """The table named by a statement about its columns."""
        return self.root or self.table

    def column(self, name: str) -> TargetColumn | None:
        return next((column for column in self.columns if column.name == name), None)


def table_transaction(database: Database, options: SinkOptions, operation: str) -> AbstractContextManager[Connection]:
    return database.transaction(
        operation, lock_timeout_ms=options.lock_timeout_ms, statement_timeout_ms=options.statement_timeout_ms
    )


def table_oid(connection: Connection, table: str) -> int | None:
    """The catalog's oid of a table; None if it does not exist. Its schema must exist, and be open to the role."""
    wanted = TableName.parse(table)
    with utf8_connection(connection).cursor() as cursor:
        cursor.execute(_OID, {"table": str(wanted), "schema": wanted.schema})
        [(schema_exists, closed, oid, role)] = cursor.fetchall()
    schema = "" if wanted.schema is None else quote_identifier(wanted.schema)
    if not schema_exists:
        rule = f"the database has no schema {schema}"
        raise refused("table", table, rule, f"correct the name, or create the schema: CREATE SCHEMA {schema}")
    if closed:
        remedy = f"have its owner run: GRANT USAGE ON SCHEMA {schema} TO {quote_identifier(role)}"
        raise refused("table", table, f"role {role!r} lacks USAGE on schema {schema}", remedy)
    return None if oid is None else int(oid)


def read_target(connection: Connection, rows: Rows) -> TargetTable:
    """Read columns and unique keys of the table of ``rows``, which is found along search_path if it has no schema.

    A ConfigurationError if there is none, or as `table_oid`, `refuse_unfit` and `utf8_connection`.
    """
    wanted, oid = TableName.parse(rows.table), table_oid(connection, rows.table)
    if oid is None:
        remedy = "create it, pass create_table=True to create it from the batch's schema, or name its schema"
        raise refused("table", rows.table, "there is no such table in the database", remedy)
    with utf8_connection(connection).cursor() as cursor:
        cursor.execute(_FIND, (oid,))
        [(schema, relation, root_oid, root_schema, root_relation, partition_key)] = cursor.fetchall()
        name = TableName(relation, schema)
        refuse_unfit(read_tree(cursor, name, lock=False), wanted, rows)
        cursor.execute(_HELD, (root_oid,))
        blockers = dict(cursor.fetchall())
        columns = (replace(each, retype_blocker=blockers.get(each.name, "")) for each in _columns(cursor, oid))
        cursor.execute(_UNIQUE_KEYS, (oid,))
        unique_keys = tuple(tuple(names) for (names,) in cursor.fetchall())
        root = None if root_oid == oid else TableName(root_relation, root_schema)
        return TargetTable(name, tuple(columns), unique_keys, root, tuple(partition_key))


def changed_column(cursor: psycopg2.extensions.cursor, table: TableName, columns: Iterable[TargetColumn]) -> str | None:
    """Describe which of ``columns`` is no longer stored as it was read, or writable by rows; None if all are.

    COPY BINARY has no types: eight bytes encoded for a bigint are accepted unchanged by a column that has become double
    precision since. The caller holds a lock on the table, so the answer stays true.
    """
    now = {column.name: column for column in _columns(cursor, str(table))}
    for column in columns:
        found = now.get(column.name)
        if found is None or found.stored_as != column.stored_as:
            return f"{column.name!r} of {table} was {column.type_name} and is {found.type_name if found else 'gone'}"
        if found.unwritable or found.always_identity > column.always_identity:
            return f"{column.name!r} of {table} has become {found.unwritable or 'GENERATED ALWAYS AS IDENTITY'}"
    return None


def utf8_connection(connection: Connection) -> psycopg2.extensions.connection:
    """The psycopg2 connection below a SQLAlchemy one, in the same transaction.

    COPY BINARY transfers text unchanged, and the server assumes the client's encoding. psycopg2 adopts the server's
    encoding, so with a LATIN1 database 'ü' would silently arrive as two letters: any but UTF-8 is refused.
    """
    driver: psycopg2.extensions.connection = connection.connection.driver_connection  # type: ignore[assignment]
    if driver.encoding != "UTF8":
        rule = f"its connections must use UTF-8, and this one uses {driver.encoding}"
        remedy = "add client_encoding=utf8 to the URL's query; the server then converts text"
        raise refused("database", connection.engine.url.render_as_string(hide_password=True), rule, remedy)
    return driver


def _columns(cursor: psycopg2.extensions.cursor, table: int | str) -> tuple[TargetColumn, ...]:
    cursor.execute(_COLUMNS, {"table": table})
    return tuple(TargetColumn(*row) for row in cursor.fetchall())
