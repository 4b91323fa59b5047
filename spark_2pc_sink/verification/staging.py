"""The SQL of a comparison, and staging: loading records into the database, where they become hashes.

A row and a record with the same content have the same 64-bit hash. First only fingerprints are compared: both sides are
divided into buckets, and the number of hashes in a bucket and their sum are its fingerprint. The hashes themselves are
compared only in buckets that differ. In an append table the hash chooses the bucket; with upserts the hash of the key
does, so that all records of a key are in one bucket.

Everything is kept in temporary tables, which end with their transaction: nothing is left, and no privilege is needed
but TEMPORARY on the database. Several sessions take chunks of records in turn, each from its own thread, so that
PostgreSQL reads one chunk while the next is made. A chunk is one statement: the records' JSON texts become one array,
without parsing any of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import psycopg2
import psycopg2.errors
from psycopg2.extensions import QuotedString, connection as DriverConnection, cursor as Cursor, encodings

from jdbc_state.connections import UNTIMED
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError, StateStoreError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.names import TableName, quote_identifier
from spark_2pc_sink.verification.columns import ComparedColumns, FieldFacts, RecordFacts, as_object, compared_columns
from spark_2pc_sink.verification.history import Stretch, headers_of
from spark_2pc_sink.verification.report import NotComparableError
from spark_2pc_sink.verification.target import MARK, OWN, RECORD_COLUMNS_REMEDY, Target
from spark_2pc_sink.verification.values import ValueReader, unchanged

if TYPE_CHECKING:
    from confluent_kafka import Message

    from spark_2pc_sink.verification.columns import TableShape
    from spark_2pc_sink.verification.verification import Evidence

_log = sink_log(__name__)

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
    """SQL statements of one comparison. Parameters that are records, places and offsets are SQL literals."""

    target: Target
    table: TableName
    compared: ComparedColumns
    #: The columns that identify a row, perhaps a unique key of the table; () if there are none.
    key: tuple[str, ...] = ()
    #: Partitions of the records, in order. A record's place is the number of its batch times their number, plus the
    #: index of its partition.
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

    def fingerprints(self, *, staged: bool) -> str:
        """Bucket, number of hashes and their sum, of staged records or of the table."""
        of = "pg_temp.verify_staged" if staged else f"({self._hashed_table}) AS t"
        return f"SELECT {self._bucket} AS b, count(*), sum(h)::text FROM {of} GROUP BY 1"

    def in_buckets(self, buckets: Sequence[int]) -> str:
        if 2 * len(buckets) > BUCKETS:
            return "true"
        return f"{self._bucket} = ANY ('{{{','.join(map(str, buckets))}}}'::bigint[])"

    def make_rows(self, condition: str | None) -> str:
        """The table's rows with a condition; None: a record has the same key, or if there is no key, the same hash."""
        same = "k" if self.key else "h"
        condition = condition or f"{same} IN (SELECT {same} FROM pg_temp.verify_records)"
        return _made("verify_rows", f"SELECT * FROM ({self._hashed_table}) AS t WHERE {condition}")

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

    @property
    def _hashed_table(self) -> str:
        hashed, key = self._hashed("of_table")
        return f"SELECT {hashed} AS h, {key} AS k, tableoid AS part, ctid AS at FROM {self.table}"

    def _hashed(self, side: Literal["of_record", "of_table"]) -> tuple[str, str]:
        """The hashes of all compared columns and of the key."""
        key = [getattr(column, side) for column in self.compared.columns if column.name in self.key]
        hashed = _hash([getattr(column, side) for column in self.compared.columns])
        return hashed, _hash(key) if key else "0::bigint"


def _made(name: str, query: str) -> str:
    return f"CREATE TEMPORARY TABLE {name} ON COMMIT DROP AS {query}"


def _hash(parts: Sequence[str]) -> str:
    return f"hash_record_extended(ROW({', '.join(parts)}), 0)"


def planned(
    target: Target, shape: TableShape, facts: RecordFacts, partitions: Sequence[TopicPartition], *, whole: bool
) -> Statements:
    """Plan a comparison, if ``whole`` of all rows; NotComparableError if nothing can be compared."""
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
    return Statements(target, shape.table, compared, target.key_of(shape, compared.names), tuple(partitions))


SESSIONS: Final = 2
CHUNK_RECORDS_MAX: Final = 4_000
CHUNK_BYTES_MAX: Final = 2 * 1024 * 1024
#: With more records that are not rows than this, and more than half of all, a comparison is pointless.
UNREADABLE_MAX: Final = 1_000
#: The escape of U+0000 (after an even number of backslashes), and its replacement. PostgreSQL refuses a whole record
#: that contains it, even in a field without a column.
_ESCAPED_NUL: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
_INSTEAD_OF_NUL: Final = rb"\1\\u001a"
#: Settings of each of our transactions, which may last as long as a verification.
SETTINGS: Final = (
    f"{UNTIMED}SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL TimeZone = 'UTC'; "
    # The database, or the role, may have set fewer digits: numbers that differ would be one text.
    "SET LOCAL extra_float_digits = 1; SET LOCAL work_mem = '128MB'; SET LOCAL jit = off"
)
_BYTE_ORDER: Final = (
    "SELECT attcollation <> 0 FROM pg_catalog.pg_attribute "
    "WHERE attrelid = 'pg_temp.verify_staged'::regclass AND attname = 'o'"
)
#: Records for one statement, in three columns: JSON objects, offsets and places.
Chunk: TypeAlias = tuple[Sequence[bytes], Sequence[int], Sequence[int]]


@dataclass
class NewFieldsError(Exception):
    """Records have a field for a column that was in no record of the sample; ``values`` are some of them."""

    values: Sequence[bytes]


class RecordTexts:
    """Makes a record's JSON text for PostgreSQL: its value, or the parts that the user's ``expressions`` need.

    ``tombstone`` makes the text of a record without a value, by its key; None if it is treated like any other.
    """

    def __init__(
        self,
        expressions: Iterable[str],
        read: ValueReader = unchanged,
        tombstone: Callable[[bytes | None], bytes] | None = None,
    ) -> None:
        self._tombstone = tombstone
        text = " ".join(expressions)
        self._parts = [part for part in RECORD_PARTS if re.search(rf'(?<![\w"]){part}(?![\w])|"{part}"', text)]
        self.plain: bool = not text
        self.read = read

    def make(self, at: TopicPartition, message: Message) -> bytes:
        """The text of one record. Raises NotComparableError for a tombstone without a known row."""
        key, value = message.key(), message.value()
        if self.plain:
            if value is None and self._tombstone is not None:
                return self._tombstone(key)
            return self.read(at.topic, value) or b"null"
        # Bytes are PostgreSQL's input of a bytea.
        parts: dict[str, Callable[[], Any]] = {
            "key": lambda: _text(key),
            "key_bytes": lambda: None if key is None else f"\\x{key.hex()}",
            "value_text": lambda: _text(value),
            "value_bytes": lambda: None if value is None else f"\\x{value.hex()}",
            "headers": lambda: [[name, _text(part)] for name, part in headers_of(message) or ()],
            "topic": lambda: at.topic,
            "partition": lambda: at.partition,
            "offset": message.offset,
        }
        named: dict[str, Any] = {part: parts[part]() for part in self._parts if part != "value"}
        if value is None and self._tombstone is not None:
            named[MARK] = True
        encoded = json.dumps(named).encode()
        if "value" not in self._parts:
            return encoded
        # The value is JSON already, and is inserted unchanged.
        return encoded[:-1] + (b"," if named else b"") + b'"value":' + (self.read(at.topic, value) or b"null") + b"}"


def without_nul(json_text: bytes) -> bytes:
    """JSON with U+001A (substitute) in place of U+0000, which no column can hold."""
    return _ESCAPED_NUL.sub(_INSTEAD_OF_NUL, json_text) if rb"\u0000" in json_text else json_text


def literal(texts: Iterable[bytes], connection: DriverConnection) -> str:
    """JSON texts as the SQL literal of an array, see `without_nul`. UnicodeDecodeError if a text is not valid."""
    quoted = QuotedString(without_nul(b"[" + b",".join(texts) + b"]").decode())
    quoted.prepare(connection)
    return quoted.getquoted().decode()


def spelled_in(text: bytes, encoding: str) -> bytes:
    """A JSON text with the characters that the encoding lacks as code points: then it differs from every table text."""
    content = text.decode(errors="replace")
    lacking = {each for each in set(content) if each.encode(encoding, "ignore") != each.encode(encoding, "replace")}
    made = content.translate({ord(each): f"\\u001aU+{ord(each):X}\\u001a" for each in lacking})
    return made.encode() if lacking else text


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace")


def utf8_client(connection: DriverConnection) -> str:
    """Set a connection's encoding to UTF-8, overriding role and database; return the database's, by Python's name."""
    connection.set_client_encoding("UTF8")
    return encodings.get(connection.get_parameter_status("server_encoding") or "UTF8", "utf_8")


def execute(connection: DriverConnection, statement: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description is not None else []


@contextmanager
def cancelled_on_error(connections: Iterable[DriverConnection]) -> Iterator[None]:
    """Errors in the block, and Ctrl-C, do not wait for the statements that threads run in the database."""
    try:
        yield
    except BaseException:
        # Unless the database has ended the session, or itself.
        for connection in (each for each in connections if not each.closed):
            try:
                connection.cancel()
            except psycopg2.OperationalError as error:
                _log.info("a statement of verify was not cancelled, as its session has ended: %s", error)
        raise


class StagingSession:
    """One session with its staged records, in one transaction that is never committed, and its thread."""

    def __init__(self, stack: ExitStack, evidence: Evidence, sql: Statements) -> None:
        self.thread: ThreadPoolExecutor = stack.enter_context(ThreadPoolExecutor(1, "verify-staging"))
        self.connection: DriverConnection = stack.enter_context(closing(evidence.database.session("verify")))
        self.sql: Statements = sql
        self._unreadable = self._staged = 0
        self._reason = ""
        self._unseen = {name: json.dumps(name, ensure_ascii=False).encode() for name in sql.compared.unseen}
        self._encoding = utf8_client(self.connection)
        timeout_ms = evidence.request.options.statement_timeout_ms
        self.run(f"BEGIN; {SETTINGS}; SET LOCAL statement_timeout = {timeout_ms:d}")
        try:
            self.run(sql.make_staged())
        except psycopg2.ProgrammingError as error:
            raise _refused(sql, error) from error
        if sql.target.order_by is not None and self.run(_BYTE_ORDER) == [(True,)]:
            # Spark orders texts bytewise.
            self.sql = replace(sql, target=replace(sql.target, order_by=f'({sql.target.order_by}) COLLATE "C"'))

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return execute(self.connection, statement)

    def take(self, chunk: Chunk) -> None:
        """Stage records; those that are not rows are staged as such."""
        if self._unseen:
            texts = chunk[0]
            joined = b"".join(texts)
            names = {name: spelt for name, spelt in self._unseen.items() if spelt in joined}
            likely = (text for text in texts if any(spelt in text for spelt in names.values()))
            new = [text for text in likely if any((as_object(text) or {}).get(name) is not None for name in names)]
            if new:
                raise NewFieldsError(new[:1_000])
        with self.connection.cursor() as cursor:
            self._take(cursor, chunk)

    def _take(self, cursor: Cursor, chunk: Chunk) -> None:
        texts, offsets, places = chunk
        cursor.execute("SAVEPOINT chunk")
        try:
            numbers = (f"'{{{','.join(map(str, each))}}}'" for each in (places, offsets))
            staged = self.sql.staged(literal(texts, self.connection), *numbers)
            cursor.execute(f"INSERT INTO pg_temp.verify_staged {staged}")
            if cursor.rowcount == len(texts):
                self._staged += len(texts)
                cursor.execute("RELEASE SAVEPOINT chunk")
                return
            reason, spelled = "a value contains several JSON objects, separated by commas", texts
        except (psycopg2.DataError, UnicodeDecodeError) as error:
            reason, spelled = str(error).splitlines()[0], texts
            if isinstance(error, psycopg2.errors.UntranslatableCharacter):
                spelled = [spelled_in(text, self._encoding) for text in texts]
        cursor.execute("ROLLBACK TO SAVEPOINT chunk")
        if spelled != texts:
            self._take(cursor, (spelled, offsets, places))
            return
        self._reason = self._reason or reason
        if len(texts) > 1:
            for half in (slice(len(texts) // 2), slice(len(texts) // 2, None)):
                self._take(cursor, (texts[half], offsets[half], places[half]))
            return
        cursor.execute(self.sql.stage_unreadable(places[0], offsets[0]))
        self._staged += 1
        self._unreadable += 1
        if self._unreadable > UNREADABLE_MAX and 2 * self._unreadable > self._staged:
            raise NotComparableError(f"most records cannot be read as its rows: {self._reason}", RECORD_COLUMNS_REMEDY)


class Staging:
    def __init__(self, stack: ExitStack, evidence: Evidence, sql: Statements, texts: RecordTexts) -> None:
        self._sql = sql
        self._texts = texts
        self._chunk: tuple[list[bytes], list[int], list[int]] = ([], [], [])
        self._chunk_bytes = 0
        self._waiting: list[Future[None]] = []
        self.sessions: list[StagingSession] = [StagingSession(stack, evidence, sql) for _ in range(SESSIONS)]
        busy = [evidence.snapshot.driver, *(session.connection for session in self.sessions)]
        stack.enter_context(cancelled_on_error(busy))
        self._turns = cycle(self.sessions)

    def take(self, at: TopicPartition, messages: Sequence[Message], offsets: Sequence[int], part: Stretch) -> None:
        """Stage one partition's records from one stretch; waits while all sessions are busy."""
        chosen, make = messages[part.start : part.stop], self._texts.make
        if self._texts.plain and self._texts.read is unchanged:
            texts = [message.value() or make(at, message) for message in chosen]
        else:
            texts = [make(at, message) for message in chosen]
        collected, their_offsets, their_places = self._chunk
        collected += texts
        their_offsets += offsets[part.start : part.stop]
        their_places += [self._sql.place(part.order, at)] * len(texts)
        self._chunk_bytes += sum(map(len, texts))
        if len(self._chunk[0]) >= CHUNK_RECORDS_MAX or self._chunk_bytes >= CHUNK_BYTES_MAX:
            self._put()

    def finish(self) -> None:
        self._put()
        while self._waiting:
            self._waiting.pop(0).result()

    def each(self, statement: str) -> list[list[tuple[Any, ...]]]:
        """The rows of a statement in every session; they run at the same time."""
        return [done.result() for done in [each.thread.submit(each.run, statement) for each in self.sessions]]

    def _put(self) -> None:
        while len(self._waiting) >= SESSIONS:
            self._waiting.pop(0).result()
        if self._chunk[0]:
            session = next(self._turns)
            self._waiting.append(session.thread.submit(session.take, self._chunk))
            self._chunk, self._chunk_bytes = ([], [], []), 0


def _refused(sql: Statements, error: psycopg2.Error) -> ConfigurationError | StateStoreError:
    text = str(error).splitlines()[0]
    denied, given = isinstance(error, psycopg2.errors.InsufficientPrivilege), sql.compared.given
    if (given or sql.target.order_by) and not denied:
        return ConfigurationError(
            option="record_columns" if given else "order_by",
            value=", ".join(given.values()) or sql.target.order_by,
            rule=f"must be SQL expressions that PostgreSQL accepts; it reported: {text}",
            remedy='use value, value_text, value_bytes, key, key_bytes, headers, topic, partition and "offset" of a '
            "record; in order_by, the columns that are compared",
        )
    if denied:
        text += "; verify compares in temporary tables: ask the database's owner to grant this role TEMPORARY on it"
    return StateStoreError(operation="verify", detail=text, sqlstate=error.pgcode or "", retriable=False)
