"""Staging: records on their way into the database, where they become hashes.

Several sessions take chunks of records in turn, each from a thread of its own, so that PostgreSQL reads one chunk while
the next is made. A chunk is one statement: the records' JSON texts become one array, without a look at any of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import psycopg2
import psycopg2.errors
from psycopg2.extensions import QuotedString, encodings

from jdbc_state.connections import UNTIMED, Database
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError, StateStoreError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.record_facts import as_object
from spark_2pc_sink.verification.schema_values import ValueReader, as_it_is
from spark_2pc_sink.verification.side_sql import RECORD_PARTS, SideSql
from spark_2pc_sink.verification.tombstones import MARK, Tombstones, UnknownKeyError

if TYPE_CHECKING:
    from psycopg2.extensions import connection as DriverConnection
    from psycopg2.extensions import cursor as Cursor

    from spark_2pc_sink.verification.record_digest import Headers

_log = sink_log(__name__)

SESSIONS: Final = 2
CHUNK_RECORDS_MAX: Final = 4_000
CHUNK_BYTES_MAX: Final = 2 * 1024 * 1024
#: With more records that are no rows than this, and than half of all, nothing sensible is compared.
UNREADABLE_MAX: Final = 1_000
#: The escape of U+0000 itself, that is behind an even number of backslashes; and what it is read as. PostgreSQL refuses
#: a whole record for it, also where it is in a field that no column has.
_ESCAPED_NUL: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
_INSTEAD_OF_NUL: Final = rb"\1\\u001a"


@dataclass
class Chunk:
    """Records for one statement.

    Attributes:
        texts: a JSON object for each record.
        offsets: of each.
        places: number of the place, and how many records one behind the other have it.
        size: bytes of the texts.
    """

    texts: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    size: int = 0

    @property
    def full(self) -> bool:
        """Whether it is time for the next one."""
        return len(self.texts) >= CHUNK_RECORDS_MAX or self.size >= CHUNK_BYTES_MAX

    def add(self, place: int, offsets: Sequence[int], texts: Sequence[bytes]) -> None:
        """Take records of one place."""
        self.texts += texts
        self.offsets += offsets
        self.places.append((place, len(texts)))
        self.size += sum(map(len, texts))

    def halves(self) -> Iterator[Chunk]:
        """Two chunks with the same records."""
        middle = len(self.texts) // 2
        numbers = self.place_numbers
        for part in (slice(None, middle), slice(middle, None)):
            yield Chunk(self.texts[part], self.offsets[part], [(number, 1) for number in numbers[part]])

    def spelled_in(self, encoding: str) -> Chunk:
        """The same records, in which characters that an encoding lacks stand as their code points.

        The table has none of them, so that a text with one is like no text there. What of a record no column is of may
        have any.

        Args:
            encoding: as Python names it.
        """
        return replace(self, texts=[_spelled_in(text, encoding) for text in self.texts])

    @property
    def place_numbers(self) -> list[int]:
        """The place of each record."""
        return [number for number, count in self.places for _ in range(count)]


class NewFieldsError(Exception):
    """A record has a field for a column that no record of the sample had one for.

    Attributes:
        values: such records.
    """

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(f"{len(values)} records have fields that the sample lacks")
        self.values = values


class NotRowsError(Exception):
    """Too many records are no rows; the text has PostgreSQL's reason for one of them."""


class RecordTexts:
    """Makes the JSON text of a record that PostgreSQL reads.

    Args:
        expressions: the user's; where there are none, the value is the text.
        read: makes JSON of a value.
        tombstones: how records without a value are read; None where they are records as any.
    """

    def __init__(
        self, expressions: Sequence[str], read: ValueReader = as_it_is, tombstones: Tombstones | None = None
    ) -> None:
        self._tombstones = tombstones
        text = " ".join(expressions)
        self._parts = [part for part in RECORD_PARTS if re.search(rf'(?<![\w"]){part}(?![\w])|"{part}"', text)]
        self.plain: bool = not expressions
        self.read = read

    @classmethod
    def of(cls, sql: SideSql, read: ValueReader) -> RecordTexts:
        """Those of a comparison."""
        return cls(tuple(sql.compared.given.values()), read, sql.tombstones)

    def without_value(self, key: bytes | None) -> bytes:
        """The text of a record whose value is absent or empty, where the value is the text.

        Raises:
            NotRowsError: nobody can tell whose tombstone it is.
        """
        if self._tombstones is None:
            return b"null"
        try:
            return self._tombstones.text(key)
        except UnknownKeyError as error:
            raise NotRowsError(str(error)) from error

    def make(
        self, place: TopicPartition, offset: int, key: bytes | None, value: bytes | None, headers: Headers | None
    ) -> bytes:
        """The text of one record, of those parts that some expression names."""
        if self.plain:
            return self.read(place.topic, value) or self.without_value(key)
        values: dict[str, Any] = {
            "key": _text(key),
            "key_bytes": _hexadecimal(key),
            "value_text": _text(value) if "value_text" in self._parts else None,
            "value_bytes": _hexadecimal(value) if "value_bytes" in self._parts else None,
            "headers": [[name, _text(part)] for name, part in headers or ()],
            "topic": place.topic,
            "partition": place.partition,
            "offset": offset,
        }
        gone = {MARK: True} if value is None and self._tombstones is not None else {}
        named = json.dumps({part: values[part] for part in self._parts if part != "value"} | gone).encode()
        if "value" not in self._parts:
            return named
        # The value is JSON by itself, and goes in as it is.
        content = self.read(place.topic, value) or b"null"
        return named[:-1] + (b"" if named == b"{}" else b",") + b'"value":' + content + b"}"


def utf8_client(connection: DriverConnection) -> str:
    """Let a connection speak UTF-8, whatever role and database say; the encoding of the database, as Python names it.

    Args:
        connection: of psycopg2, in no transaction.
    """
    connection.set_client_encoding("UTF8")
    return encodings.get(connection.get_parameter_status("server_encoding") or "UTF8", "utf_8")


def _spelled_in(text: bytes, encoding: str) -> bytes:
    content = text.decode(errors="replace")
    try:
        content.encode(encoding)
    except UnicodeEncodeError:
        spelled = (each if _is_in(each, encoding) else f"\\u001aU+{ord(each):X}\\u001a" for each in content)
        return "".join(spelled).encode()
    return text


def _is_in(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace")


def _hexadecimal(content: bytes | None) -> str | None:
    """As PostgreSQL reads bytea."""
    return None if content is None else f"\\x{content.hex()}"


class StagingSession:
    """One session with its staged records, in one transaction that is never committed.

    Args:
        connection: of psycopg2; the caller closes it.
        sql: of the comparison.
        statement_timeout_ms: longest single statement.
    """

    def __init__(self, connection: DriverConnection, sql: SideSql, *, statement_timeout_ms: int) -> None:
        self.connection = connection
        self.sql: SideSql = sql
        self.unreadable: int = 0
        self.staged: int = 0
        self.reason: str = ""
        self._unseen = {name: json.dumps(name, ensure_ascii=False).encode() for name in sql.compared.unseen}
        self._encoding = utf8_client(connection)
        with connection.cursor() as cursor:
            cursor.execute(f"BEGIN; {SETTINGS}; SET LOCAL statement_timeout = {statement_timeout_ms:d}")
            try:
                cursor.execute(sql.make_staged())
            except psycopg2.ProgrammingError as error:
                raise _refused(sql, error) from error
            self.sql = with_byte_order(cursor, sql)

    def take(self, chunk: Chunk) -> None:
        """Stage records; those that are no rows are staged as that.

        Raises:
            NotRowsError: that is most of them.
            NewFieldsError: they have fields that are columns and are not compared yet.
        """
        self._look_for_new_fields(chunk.texts)
        with self.connection.cursor() as cursor:
            self._take(cursor, chunk)

    def _look_for_new_fields(self, texts: Sequence[bytes]) -> None:
        if not self._unseen:
            return
        joined = b"".join(texts)
        names = [name for name, spelt in self._unseen.items() if spelt in joined]
        if not names:
            return
        spelt = [self._unseen[name] for name in names]
        likely = [text for text in texts if any(name in text for name in spelt)]
        new = [text for text in likely if any((as_object(text) or {}).get(name) is not None for name in names)]
        if new:
            raise NewFieldsError(new[:1_000])

    def _take(self, cursor: Cursor, chunk: Chunk) -> None:
        count = len(chunk.texts)
        cursor.execute("SAVEPOINT chunk")
        try:
            records = literal(b"[" + b",".join(chunk.texts) + b"]", self.connection)
            places = ",".join(",".join([str(number)] * times) for number, times in chunk.places)
            offsets = ",".join(map(str, chunk.offsets))
            cursor.execute(self.sql.stage(records, f"'{{{places}}}'", f"'{{{offsets}}}'"))
            if cursor.rowcount == count:
                self.staged += count
                cursor.execute("RELEASE SAVEPOINT chunk")
                return
            self.reason = self.reason or "a value is several JSON objects, with commas between them"
        except psycopg2.errors.UntranslatableCharacter as error:
            cursor.execute("ROLLBACK TO SAVEPOINT chunk")
            spelled = chunk.spelled_in(self._encoding)
            if spelled.texts != chunk.texts:
                self._take(cursor, spelled)
                return
            self.reason = self.reason or str(error).splitlines()[0]
        except (psycopg2.DataError, UnicodeDecodeError) as error:
            self.reason = self.reason or str(error).splitlines()[0]
        cursor.execute("ROLLBACK TO SAVEPOINT chunk")
        if count == 1:
            cursor.execute(self.sql.stage_unreadable(chunk.place_numbers[0], chunk.offsets[0]))
            self.staged += 1
            self.unreadable += 1
            if self.unreadable > UNREADABLE_MAX and 2 * self.unreadable > self.staged:
                raise NotRowsError(self.reason)
            return
        for half in chunk.halves():
            self._take(cursor, half)


class Staging:
    """All sessions, and the threads that feed them. Use it as a context manager.

    Args:
        database: opens the sessions.
        sql: of the comparison.
        statement_timeout_ms: longest single statement.
    """

    def __init__(self, database: Database, sql: SideSql, *, statement_timeout_ms: int) -> None:
        self._database = database
        self._sql = sql
        self._timeout_ms = statement_timeout_ms
        self._stack = ExitStack()
        self._waiting: list[Future[None]] = []
        self._free: list[StagingSession] = []
        self._lock = Lock()
        self.sessions: list[StagingSession] = []

    def __enter__(self) -> Staging:
        with ExitStack() as stack:
            self._threads = stack.enter_context(ThreadPoolExecutor(SESSIONS, "verify-staging"))
            for _ in range(SESSIONS):
                connection = stack.enter_context(closing(self._database.session("verify")))
                self.sessions.append(StagingSession(connection, self._sql, statement_timeout_ms=self._timeout_ms))
            self._free = list(self.sessions)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # Neither an error nor Ctrl-C waits for what the threads have the database do.
            for session in self.sessions:
                cancel(session.connection)
        self._stack.close()

    def put(self, chunk: Chunk) -> None:
        """Hand a chunk to a session; waits while all of them have one."""
        if not chunk.texts:
            return
        while len(self._waiting) >= SESSIONS:
            self._waiting.pop(0).result()
        self._waiting.append(self._threads.submit(self._run, lambda session: session.take(chunk)))

    def finish(self) -> None:
        """Wait for all chunks."""
        while self._waiting:
            self._waiting.pop(0).result()

    def each(self, work: Callable[[StagingSession], Any]) -> list[Any]:
        """Do something in every session, at the same time."""
        self.finish()
        return list(self._threads.map(work, self.sessions))

    def _run(self, work: Callable[[StagingSession], None]) -> None:
        with self._lock:
            session = self._free.pop()
        try:
            work(session)
        finally:
            with self._lock:
                self._free.append(session)


#: Of each of our transactions, which may take as long as a verification takes.
SETTINGS: Final = (
    f"{UNTIMED}SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL TimeZone = 'UTC'; "
    # The database, or the role, may have set fewer digits: numbers that differ would be one text.
    "SET LOCAL extra_float_digits = 1; SET LOCAL work_mem = '128MB'; SET LOCAL jit = off"
)


def with_byte_order(cursor: Cursor, sql: SideSql) -> SideSql:
    """The same statements, where order_by is a text with the order of its bytes, which is Spark's."""
    if sql.order_by is None:
        return sql
    cursor.execute(
        "SELECT attcollation <> 0 FROM pg_catalog.pg_attribute "
        "WHERE attrelid = 'pg_temp.verify_staged'::regclass AND attname = 'o'"
    )
    found = cursor.fetchone()
    return replace(sql, order_by=f'({sql.order_by}) COLLATE "C"') if found is not None and found[0] else sql


def literal(text: bytes, connection: DriverConnection) -> str:
    """A JSON text as an SQL literal, see `without_nul`.

    Raises:
        UnicodeDecodeError: it is no text.
    """
    quoted = QuotedString(without_nul(text).decode())
    quoted.prepare(connection)
    return quoted.getquoted().decode()


def cancel(connection: DriverConnection) -> None:
    """End what a thread has the database do in a session, unless the database has ended the session, or itself."""
    if not connection.closed:
        try:
            connection.cancel()
        except psycopg2.OperationalError as error:
            _log.info("a session of verify has ended with the database: %s", error)


def without_nul(json_text: bytes) -> bytes:
    """JSON with U+001A (substitute) in place of U+0000, which no column can hold."""
    return _ESCAPED_NUL.sub(_INSTEAD_OF_NUL, json_text) if rb"\u0000" in json_text else json_text


def _refused(sql: SideSql, error: psycopg2.Error) -> ConfigurationError | StateStoreError:
    text = str(error).splitlines()[0]
    if isinstance(error, psycopg2.errors.InsufficientPrivilege):
        needed = (
            "verify compares in temporary tables, so have the owner of the database grant this role TEMPORARY on it"
        )
        return StateStoreError(
            operation="verify", detail=f"{text}; {needed}", sqlstate=error.pgcode or "", retriable=False
        )
    if sql.compared.given or sql.order_by:
        return ConfigurationError(
            option="record_columns" if sql.compared.given else "order_by",
            value=", ".join(sql.compared.given.values()) or sql.order_by,
            rule=f"PostgreSQL takes its expressions, and here it says: {text}",
            remedy='they see value, value_text, value_bytes, key, key_bytes, headers, topic, partition and "offset" of '
            "a record; order_by sees the columns that are compared",
        )
    return StateStoreError(operation="verify", detail=text, sqlstate=error.pgcode or "", retriable=False)
