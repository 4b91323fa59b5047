"""Staging: load records into the database, where they become hashes.

Several sessions take chunks of records in turn, each from its own thread, so that PostgreSQL reads one chunk while the
next is made. A chunk is one statement: the records' JSON texts become one array, without parsing any of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg2
import psycopg2.errors
from psycopg2.extensions import QuotedString, encodings

from jdbc_state.connections import UNTIMED
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError, StateStoreError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.columns import as_object
from spark_2pc_sink.verification.history import Stretch, headers_of
from spark_2pc_sink.verification.report import NotComparableError
from spark_2pc_sink.verification.statements import RECORD_PARTS, Statements
from spark_2pc_sink.verification.target import MARK, RECORD_COLUMNS_REMEDY
from spark_2pc_sink.verification.values import ValueReader, unchanged

if TYPE_CHECKING:
    from confluent_kafka import Message
    from psycopg2.extensions import connection as DriverConnection, cursor as Cursor

    from spark_2pc_sink.verification.evidence import Evidence

_log = sink_log(__name__)

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


class NewFieldsError(Exception):
    """Records have a field for a column that was in no record of the sample; ``values`` are some of them."""

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(f"{len(values)} records have fields that the sample lacks")
        self.values = values


class RecordTexts:
    """Makes a record's JSON text for PostgreSQL.

    Args:
        expressions: the user's; if there are none, the value is the text.
        read: converts a value to JSON.
        tombstone: the text of a record without a value, by its key; None if it is treated like any other.
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
            made = self.read(at.topic, value)
            return made or (b"null" if self._tombstone is None else self._tombstone(key))
        parts: dict[str, Callable[[], Any]] = {
            "key": lambda: _text(key),
            "key_bytes": lambda: _hexadecimal(key),
            "value_text": lambda: _text(value),
            "value_bytes": lambda: _hexadecimal(value),
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
    """A JSON text, with characters that the Python encoding lacks replaced by their code points.

    The table cannot contain them, so a text with one differs from every text there. A field without a column may
    contain any.
    """
    content = text.decode(errors="replace")
    lacking = {each for each in set(content) if each.encode(encoding, "ignore") != each.encode(encoding, "replace")}
    made = content.translate({ord(each): f"\\u001aU+{ord(each):X}\\u001a" for each in lacking})
    return made.encode() if lacking else text


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace")


def _hexadecimal(content: bytes | None) -> str | None:
    """As bytea input for PostgreSQL."""
    return None if content is None else f"\\x{content.hex()}"


def utf8_client(connection: DriverConnection) -> str:
    """Set a connection's encoding to UTF-8, overriding role and database; return the database's, by Python's name."""
    connection.set_client_encoding("UTF8")
    return encodings.get(connection.get_parameter_status("server_encoding") or "UTF8", "utf_8")


def run(connection: DriverConnection, statement: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description is not None else []


def cancel(connection: DriverConnection) -> None:
    """Cancel what a thread runs in a session, unless the database has ended the session, or itself."""
    if not connection.closed:
        try:
            connection.cancel()
        except psycopg2.OperationalError as error:
            _log.info("a statement of verify was not cancelled, as its session has ended: %s", error)


@contextmanager
def cancelled_on_error(connections: Iterable[DriverConnection]) -> Iterator[None]:
    """Errors in the block, and Ctrl-C, do not wait for the statements that threads run in the database."""
    try:
        yield
    except BaseException:
        for connection in connections:
            cancel(connection)
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
        return run(self.connection, statement)

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
    """All sessions, until a stack is closed."""

    def __init__(self, stack: ExitStack, evidence: Evidence, sql: Statements, texts: RecordTexts) -> None:
        self._sql = sql
        self._texts = texts
        self._chunk: tuple[list[bytes], list[int], list[int]] = ([], [], [])
        self._chunk_bytes = 0
        self._waiting: list[Future[None]] = []
        self.sessions: list[StagingSession] = [StagingSession(stack, evidence, sql) for _ in range(SESSIONS)]
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
