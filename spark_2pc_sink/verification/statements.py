"""SQL of the comparison: both sides as hashes of the compared columns, compared as multisets. Pure: texts.

A row and a record with the same content have the same 64-bit hash. First only fingerprints are compared: both sides are
divided into buckets, and the number of hashes in a bucket and their sum are its fingerprint. The hashes themselves are
compared only in buckets that differ. In an append table the hash chooses the bucket; with upserts the hash of the key
does, so that all records of a key are in one bucket.

Everything is kept in temporary tables, which end with their transaction: nothing is left, and no privilege is needed
but TEMPORARY on the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.names import TableName, quote_identifier
from spark_2pc_sink.verification.columns import (
    ComparedColumns,
    FieldFacts,
    RecordFacts,
    TableShape,
    compared_columns,
)
from spark_2pc_sink.verification.report import NotComparableError
from spark_2pc_sink.verification.target import MARK, OWN, RECORD_COLUMNS_REMEDY, Target

#: Why a side lacks it: only the other side has it, has it in another form, or has it once more.
Reason = Literal["missing", "differing", "twice"]

#: A power of two. Ten million rows leave some 600 in a bucket: few to compare, and the fingerprints are small.
BUCKETS: Final = 16_384
#: The parts of a record that a user's expressions can use.
RECORD_PARTS: Final = {
    "value": "jsonb",
    "key": "text",
    "key_bytes": "bytea",
    "value_text": "text",
    "value_bytes": "bytea",
    "headers": "jsonb",
    "topic": "text",
    "partition": "integer",
    "offset": "bigint",
}
_PLACE, _OFFSET, _KEY, _MARK = map(quote_identifier, (f"place {OWN}", f"offset {OWN}", f"key {OWN}", MARK))

#: Both sides are multisets: only the surplus of a duplicate is left (``twice``: the other side has one). A record and a
#: row of one key with different values are a pair: one of each, in their order.
_UNMATCHED: Final = """
WITH counts AS (
  SELECT h, coalesce(r.n, 0) AS records, coalesce(t.n, 0) AS rows
  FROM (SELECT h, count(*) AS n FROM pg_temp.verify_records GROUP BY h) AS r
  FULL JOIN (SELECT h, count(*) AS n FROM pg_temp.verify_rows GROUP BY h) AS t USING (h)
  WHERE r.n IS DISTINCT FROM t.n
), lone_records AS (
  SELECT place, at, rows > 0 AS twice, CASE WHEN rows = 0 AND {keyed} THEN k END AS pair
  FROM (SELECT s.*, c.rows, row_number() OVER (PARTITION BY h ORDER BY place, at) AS n
        FROM pg_temp.verify_records AS s JOIN counts AS c USING (h)) AS s WHERE n > rows
), lone_rows AS (
  SELECT part, at, records > 0 AS twice, CASE WHEN records = 0 AND {keyed} THEN k END AS pair
  FROM (SELECT s.*, c.records, row_number() OVER (PARTITION BY h ORDER BY part, at) AS n
        FROM pg_temp.verify_rows AS s JOIN counts AS c USING (h)) AS s WHERE n > records
)
SELECT r.place, r.at, t.part, t.at AS row_at, CASE WHEN coalesce(r.twice, t.twice) THEN 'twice'
         WHEN r.place IS NULL OR t.part IS NULL THEN 'missing' ELSE 'differing' END AS reason
FROM (SELECT *, row_number() OVER (PARTITION BY pair ORDER BY place, at) AS n FROM lone_records) AS r
FULL JOIN (SELECT *, row_number() OVER (PARTITION BY pair ORDER BY at) AS n FROM lone_rows) AS t USING (pair, n)
"""


@dataclass(frozen=True)
class Statements:
    """SQL statements of one comparison. Parameters that are records, places and offsets are SQL literals.

    Attributes:
        key: the columns that identify a row, perhaps a unique key of the table; () if there are none.
        partitions: partitions of the records, in order. A record's place is the number of its batch times their number,
            plus the index of its partition.
    """

    target: Target
    table: TableName
    compared: ComparedColumns
    key: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()

    def place(self, order: int, partition: TopicPartition) -> int:
        """The place of records of a partition; ``order`` is the index of their claim, or of the previous one."""
        return (order + 1) * len(self.partitions) + self.partitions.index(partition)

    def make_staged(self, name: str = "verify_staged") -> str:
        """An empty table for the hashes of records, with the place and offset of each."""
        nothing = self.staged("'[]'", "'{}'", "'{}'")
        return f"{_made(name, nothing)} WITH NO DATA"

    def stage_unreadable(self, place: int, offset: int) -> str:
        """Add a record that is not a row: its hash is that of its place, which no row has."""
        own = _hash(["'unreadable'::text", f"{place}::bigint", f"{offset}::bigint"])
        order = ", NULL" if self.target.order_by else ""
        return f"INSERT INTO pg_temp.verify_staged SELECT {own}, {own}, {place}, {offset}, false{order}"

    def typed_records(self, records: str) -> str:
        """Records as rows of the compared columns, each as text in COPY's form."""
        columns = ", ".join(f"({column.of_row})::text" for column in self.compared.columns)
        return f"SELECT {columns} FROM ({self._read(records)}) AS s"

    def staged(self, records: str, places: str, offsets: str) -> str:
        """The hashes of records, a JSON array of objects."""
        # A tombstone differs from every row: its hash is that of its place.
        gone = _hash(["'tombstone'::text", _PLACE, _OFFSET])
        hashed, key = self._hashed("of_record")
        order = f", ({self.target.order_by}) AS o" if self.target.order_by else ""
        return (
            f"SELECT CASE WHEN {_MARK} THEN {gone} ELSE {hashed} END AS h, {key} AS k, {_PLACE} AS place, "
            f"{_OFFSET} AS at, coalesce({_MARK}, false) AS gone{order} "
            f"FROM ({self._read(records, places, offsets)}) AS s"
        )

    def _read(self, records: str, places: str = "'{}'", offsets: str = "'{}'") -> str:
        # All columns of one field read it identically.
        fields = {column.field: column for column in self.compared.columns}
        kinds = RECORD_PARTS if self.compared.given else {name: each.field_type for name, each in fields.items()}
        typed = ", ".join(f"{quote_identifier(name)} {kind}" for name, kind in kinds.items())
        names = ", ".join(map(quote_identifier, [*kinds, MARK]))
        made = [f"{each.read} AS {quote_identifier(name)}" for name, each in fields.items()]
        return (
            f"SELECT {', '.join(made)}, {_MARK}, {_PLACE}, {_OFFSET} "
            f"FROM ROWS FROM (json_to_recordset({records}) AS ({typed}, {_MARK} boolean), "
            f"unnest({places}::bigint[]), unnest({offsets}::bigint[])) AS r ({names}, {_PLACE}, {_OFFSET})"
        )

    def keep_winners(self, table: str) -> str:
        """Keep, in a table of staged records, for each key the one whose row the table keeps."""
        order = ["o DESC NULLS LAST"] if self.target.order_by else []
        batch = [f"place / {len(self.partitions)} {'ASC' if self.target.mode == 'insert_ignore' else 'DESC'}"]
        winning = ", ".join([*(order + batch if self.target.order_first else batch + order), "at DESC"])
        winners = f"SELECT DISTINCT ON (k) * FROM pg_temp.{table} ORDER BY k, {winning}"
        return (
            f"{_made('verify_winners', winners)}; DROP TABLE pg_temp.{table}; "
            f"ALTER TABLE pg_temp.verify_winners RENAME TO {table}"
        )

    def of_batch(self, order: int) -> str:
        return f"place / {len(self.partitions)} = {order + 1}"

    def fingerprints(self, *, staged: bool) -> str:
        """Bucket, number of hashes and their sum, of staged records or of the table."""
        of = "pg_temp.verify_staged" if staged else f"({self._hashed_table()}) AS t"
        return f"SELECT {self._bucket} AS b, count(*), sum(h)::text FROM {of} GROUP BY 1"

    def in_buckets(self, buckets: Sequence[int]) -> str:
        if 2 * len(buckets) > BUCKETS:
            return "true"
        return f"{self._bucket} = ANY ('{{{','.join(map(str, buckets))}}}'::bigint[])"

    def make_rows(self, condition: str | None) -> str:
        """The table's rows with a condition; None: a record has the same key, or if there is no key, the same hash."""
        same, hashed = "k" if self.key else "h", self._hashed_table(", tableoid AS part, ctid AS at")
        condition = condition or f"{same} IN (SELECT {same} FROM pg_temp.verify_records)"
        return _made("verify_rows", f"SELECT h, k, part, at FROM ({hashed}) AS t WHERE {condition}")

    def drop_obeyed_tombstones(self) -> str:
        """Remove tombstones whose keys have no row, as expected; others differ from the table."""
        row = "SELECT FROM pg_temp.verify_rows AS t WHERE t.k = r.k"
        return f"DELETE FROM pg_temp.verify_records AS r WHERE gone AND NOT EXISTS ({row})"

    def drop_late_records(self) -> str:
        """Remove those whose key has a row with a greater order: records of earlier batches describe that row."""
        # By its type, as exactly as records can express it; the text of a column has another order.
        forms = {
            column.field: quote_identifier(column.name) if column.of_table.endswith("::text") else column.of_table
            for column in self.compared.columns
        }
        named = ", ".join(f"{form} AS {quote_identifier(name)}" for name, form in forms.items())
        _, key = self._hashed("of_table")
        forms_of_rows = f"SELECT {key} AS {_KEY}, {named} FROM {self.table}"
        rows = f"SELECT {_KEY} AS k, ({self.target.order_by}) AS o FROM ({forms_of_rows}) AS s"
        newer = "t.o > r.o OR (r.o IS NULL AND t.o IS NOT NULL)"
        return f"DELETE FROM pg_temp.verify_records AS r USING ({rows}) AS t WHERE t.k = r.k AND ({newer})"

    def make_unmatched(self) -> str:
        return _made("verify_unmatched", _UNMATCHED.format(keyed="true" if self.key else "false"))

    def compare_pair(self, records: str, row: str) -> str:
        """For each column: whether one record and the row of a condition differ in it, and both in their form."""
        named = [(column, f"c{number}") for number, column in enumerate(self.compared.columns)]
        of_record = ", ".join(f"{column.of_record} AS {name}" for column, name in named)
        of_table = ", ".join(f"{column.of_table} AS {name}" for column, name in named)
        asked = ", ".join(f"r.{name} IS DISTINCT FROM t.{name}, r.{name}::text, t.{name}::text" for _, name in named)
        return (
            f"SELECT {asked} FROM (SELECT {of_record} FROM ({self._read(records)}) AS s) AS r, "
            f"(SELECT {of_table} FROM {self.table} WHERE {row}) AS t"
        )

    def rows_at(self, places: str) -> str:
        """Rows as JSON and as COPY's texts, from a query of (part, at)."""
        names = [f"t.{quote_identifier(name)}" for name in self.compared.names]
        texts = ", ".join(f"{name}::text" for name in names)
        # j alone would be a column of that name; with a star it is the row.
        json = f"(SELECT to_jsonb(j.*) FROM (SELECT {', '.join(names)}) AS j)::text"
        joined = f"JOIN {self.table} AS t ON t.tableoid = p.part AND t.ctid = p.at"
        return f"SELECT {json}, {texts} FROM ({places}) AS p (part, at) {joined}"

    @property
    def _bucket(self) -> str:
        return f"({'h' if self.target.mode == 'append' else 'k'} & {BUCKETS - 1})"

    def _hashed_table(self, more: str = "") -> str:
        hashed, key = self._hashed("of_table")
        return f"SELECT {hashed} AS h, {key} AS k{more} FROM {self.table}"

    def _hashed(self, side: Literal["of_record", "of_table"]) -> tuple[str, str]:
        """The hashes of all compared columns and of the key."""
        key = [getattr(column, side) for column in self.compared.named(self.key)]
        hashed = _hash([getattr(column, side) for column in self.compared.columns])
        return hashed, _hash(key) if key else "0::bigint"


def _made(name: str, query: str) -> str:
    return f"CREATE TEMPORARY TABLE {name} ON COMMIT DROP AS {query}"


def _hash(parts: Sequence[str]) -> str:
    return f"hash_record_extended(ROW({', '.join(parts)}), 0)"


def planned(
    target: Target, shape: TableShape, facts: RecordFacts, partitions: Sequence[TopicPartition], *, whole: bool
) -> Statements:
    """Plan a comparison; raise NotComparableError if nothing can be compared.

    ``whole``: every row must have a record. Otherwise only records are searched for among the rows.
    """
    if target.refusal is not None:
        raise target.refusal
    if target.mode == "insert_ignore" and not whole:
        why = "with mode='insert_ignore' the first record of a key counts, so only all batches can be compared"
        raise NotComparableError(why, "leave out --since, --last and --batch")
    given = target.record_columns
    if not given and facts.others and not facts.records:
        given = target.sources.alone(shape)
        if not given:
            raise NotComparableError("the values of the records are not JSON objects", RECORD_COLUMNS_REMEDY)
    if not facts.records and not facts.others:
        # Without any record every row is unexpected.
        facts = RecordFacts({column.name: FieldFacts() for column in shape.columns})
    keys = () if target.mode == "append" else target.keys
    by_user = {} if target.record_columns else {"lacking": "no part of the records has the same expression"}
    compared = target.updated_only(
        compared_columns(shape, facts, given, paths=target.sources.paths, keys=keys, **by_user)
    )
    if not target.record_columns:
        if not compared.names:
            fields = ", ".join(facts.fields) or "none"
            raise NotComparableError(f"no column can be compared with the fields {fields}", RECORD_COLUMNS_REMEDY)
        if (lacking := target.lacking_columns(compared.names)) is not None:
            raise lacking
    key = target.key_of(shape, compared.names)
    return Statements(target, shape.table, compared, key, tuple(partitions))
