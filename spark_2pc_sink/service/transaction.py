"""The transaction of a block: its records and their batches, its thread or task, and the database transaction.

Only the dual write may end the database transaction that a block has joined: a COMMIT inside the block would make rows
durable without a state row, and a ROLLBACK would leave the records without their rows. So both are intercepted at the
connection, for any caller. The listeners are added to the engine once: adding and removing them for each transaction
would take as long as its COMMIT.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from weakref import WeakSet, WeakValueDictionary

from sqlalchemy import Connection, Engine, RootTransaction, event

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.record_encoder import partition_for_key
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.names import check_topic
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.wire.batch_format import record_content
from spark_2pc_sink.wire.record_batch import PlacedBatch, combine_digests, encode_listed_batches, format_digest

#: Runner of a block: a thread, and the task of its event loop; None if there is none.
Runner: TypeAlias = tuple[int, int | None]


def current_runner() -> Runner:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # No event loop runs in this thread.
        task = None
    return threading.get_ident(), None if task is None else id(task)


class ServiceTransaction:
    """The value of ``with DualWrite(...).transaction(session) as tx``: sends records in addition to the session's rows.

    Records are sent when the block has ended: if it raises an exception, Kafka is not involved.
    """

    def __init__(self) -> None:
        self.runner: Runner = current_runner()
        #: open, committing or ended.
        self.phase: str = "open"
        self._records: list[OutgoingRecord] = []

    @property
    def records(self) -> tuple[OutgoingRecord, ...]:
        return tuple(self._records)

    def send(
        self, topic: str, key: Content, value: Content, *, headers: Sequence[Header] = (), partition: int | None = None
    ) -> None:
        """Add a record to the transaction. read_committed consumers see it once both sides have committed.

        Args:
            topic: name of an existing topic.
            key: bytes, text (sent as UTF-8), or None. It determines the partition as with Java's producer.
            value: bytes, text or None; None deletes the key in a compacted topic.
            headers: names and values.
            partition: overrides the key's partition.

        Raises:
            ConfigurationError: an argument is not valid in a record.
            LocalProtocolError: the block has ended, or the caller is not the thread or task that opened it.
        """
        self.check_runner("send")
        if self.phase != "open":
            raise LocalProtocolError(operation="send", state=self.phase, rule="send records inside the block")
        self._records.append(OutgoingRecord.of(topic, key, value, headers=headers, partition=partition))

    def check_runner(self, operation: str) -> None:
        if current_runner() != self.runner:
            rule = "only the thread or task that opened the block may use it; give each its own session and block"
            raise LocalProtocolError(operation=operation, state="called from another thread or task", rule=rule)


class OpenBlocks:
    """The open blocks by runner: at most one each, until `leave`, or until only an interrupted frame refers to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakValueDictionary[Runner, ServiceTransaction] = WeakValueDictionary()

    def enter(self) -> ServiceTransaction:
        transaction = ServiceTransaction()
        with self._lock:
            if transaction.runner in self._open:
                rule = "transactions cannot be nested: each has one COMMIT, which decides for everything in it"
                raise LocalProtocolError(operation="transaction", state="inside another block", rule=rule)
            self._open[transaction.runner] = transaction
        return transaction

    def leave(self, transaction: ServiceTransaction) -> None:
        transaction.phase = "ended"
        with self._lock:
            if self._open.get(transaction.runner) is transaction:
                del self._open[transaction.runner]


Content: TypeAlias = bytes | str | None
Header: TypeAlias = tuple[str, Content]

_HEADERS: Final = "must be a list of (name, value) pairs"
_PAIR: Final = 2


@dataclass(frozen=True)
class OutgoingRecord:
    """One record that a block has sent; without a ``partition``, the key or `encode` chooses one."""

    topic: str
    key: bytes | None
    partition: int | None
    content: bytes

    @classmethod
    def of(
        cls, topic: str, key: Content, value: Content, *, headers: Sequence[Header] = (), partition: int | None = None
    ) -> OutgoingRecord:
        check_topic(topic)
        if topic is None:
            raise refused("topic", topic, "must be the name of a topic", "pass it as the first argument")
        number: object = partition
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise refused("partition", number, "must be None or a number from 0", "leave it out to let the key choose")
        encoded = _bytes("key", key)
        listed = list(_encoded_headers(headers))
        return cls(topic, encoded, partition, record_content(encoded, _bytes("value", value), listed))


@dataclass(frozen=True)
class EncodedRecords:
    """The records of a block as batches, those of each partition in the order of their records."""

    batches: tuple[PlacedBatch, ...]
    record_count: int
    digest: str


def encode(
    records: Sequence[OutgoingRecord],
    options: KafkaOptions,
    *,
    partition_count: Callable[[str], int],
    free: int,
    timestamp_ms: int,
) -> EncodedRecords:
    """Distribute records over partitions as Java's producer does, and encode them.

    ``free`` differs between transactions: it chooses the partition of records that have neither a partition nor a key.
    """
    contents: dict[TopicPartition, list[bytes]] = {}
    for record in records:
        partition = TopicPartition(record.topic, _partition_of(record, partition_count(record.topic), free))
        contents.setdefault(partition, []).append(record.content)
    batches = tuple(
        encode_listed_batches(
            contents,
            bytes_max=options.batch_bytes_max,
            timestamp_ms=timestamp_ms,
            compression=options.compression,
            level=options.compression_level,
        )
    )
    digest = combine_digests(*(batch.digest for batch in batches))
    return EncodedRecords(batches, len(records), format_digest(digest))


def _partition_of(record: OutgoingRecord, count: int, free: int) -> int:
    if record.partition is None:
        return free % count if record.key is None else partition_for_key(record.key, count)
    if record.partition >= count:
        rule = f"topic {record.topic!r} has {count} partitions, numbered from 0"
        raise refused("partition", record.partition, rule, "leave it out to let the key choose")
    return record.partition


def _bytes(what: str, given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise refused(what, type(given).__name__, "must be bytes, text (sent as UTF-8) or None", "encode it first")


def _encoded_headers(given: object) -> Iterator[tuple[str, bytes | None]]:
    # A mapping's names would be unpacked, and a name of two letters would become a name and a value.
    if not isinstance(given, Iterable) or isinstance(given, Mapping | str | bytes):
        raise refused("headers", type(given).__name__, _HEADERS, "pass list(headers.items())")
    for pair in given:
        if not isinstance(pair, tuple | list) or len(pair) != _PAIR:
            raise refused("headers", pair, _HEADERS, 'pass [("name", "value")]')
        name, content = pair
        if not isinstance(name, str):
            raise refused("headers", type(name).__name__, "the name of a header must be text", "convert it")
        yield name, _bytes("headers", content)


#: Drivers whose COMMIT can be cut off through their socket.
SYNC_DRIVERS: Final = ("psycopg2", "psycopg")
ASYNC_DRIVERS: Final = ("asyncpg", "psycopg", "psycopg_async")
_OPERATION: Final = "transaction"
_RULE: Final = "the block of a dual write ends the transaction itself: do not call commit() or rollback() in it"
_KEY: Final = "spark_2pc_sink.enlisted"
#: By the identity of the connection, which the value keeps alive until `Enlisted.release`.
_joined: Final[dict[int, Enlisted]] = {}
_watched: Final[WeakSet[Engine]] = WeakSet()
_watching: Final = threading.Lock()


class Enlisted:
    """One transaction of a connection, from the beginning of a block to its end. Made by `enlist`."""

    def __init__(self, connection: Connection, root: RootTransaction) -> None:
        self.connection = connection
        self._root = root
        self._ours = False
        #: Whether COMMIT was sent.
        self.committed: bool = False
        self._rolled_back = False
        self._failed = False
        _watch(connection.engine)
        _joined[id(connection)] = self
        # It stays with the driver's connection, which another thread may use right after COMMIT.
        self._info = connection.info
        self._info[_KEY] = self

    def check(self) -> None:
        """Refuse to decide in a transaction other than the one that the block has joined."""
        if self._rolled_back or self.connection.closed or self.connection.get_transaction() is not self._root:
            rule = f"{_RULE}. A failed flush also rolls back: let its error propagate, or flush in begin_nested()"
            raise LocalProtocolError(operation=_OPERATION, state="its database transaction has ended", rule=rule)

    def check_committed(self) -> None:
        if not self.committed:
            rule = "the session must begin its transaction itself, and not join an outer one"
            raise LocalProtocolError(operation="commit", state="the session did not send COMMIT", rule=rule)

    def ends_now(self) -> None:
        """From now on COMMIT and ROLLBACK are issued by the dual write."""
        self._ours = True

    def release(self) -> None:
        _joined.pop(id(self.connection), None)
        self._unmark()

    def on_commit(self) -> None:
        """Called before COMMIT is sent: refuse a caller other than the dual write.

        It also raises the error of PostgreSQL if a statement has failed and its error was hidden from the block, for
        example by a listener of the session.
        """
        if not self._ours:
            raise LocalProtocolError(operation="commit", state="inside the block of a dual write", rule=_RULE)
        if self._failed:
            # PostgreSQL answers COMMIT of a failed transaction with ROLLBACK, and drivers take that for success. It
            # would refuse a statement, unless the failed one was in a savepoint.
            self.connection.exec_driver_sql("SELECT")
        self.committed = True
        self._unmark()

    def on_rollback(self) -> None:
        self._rolled_back = True
        self._unmark()

    def on_error(self) -> None:
        self._failed = True

    def _unmark(self) -> None:
        if self._info.get(_KEY) is self:
            del self._info[_KEY]


def _watch(engine: Engine) -> None:
    with _watching:
        if engine not in _watched:
            event.listen(engine, "commit", lambda connection: _tell(connection, Enlisted.on_commit))
            event.listen(engine, "rollback", lambda connection: _tell(connection, Enlisted.on_rollback))
            event.listen(engine, "handle_error", lambda context: _tell(context.connection, Enlisted.on_error))
            _watched.add(engine)


def _tell(connection: Connection | None, event_of: Callable[[Enlisted], None]) -> None:
    joined = _joined.get(id(connection))
    if joined is not None:
        event_of(joined)


def enlist(connection: Connection, drivers: tuple[str, ...]) -> Enlisted:
    """Join the transaction that a connection is in, or begin one."""
    dialect = connection.dialect
    if dialect.name != "postgresql" or dialect.driver not in drivers:
        remedy = f"use an engine with one of these drivers: {', '.join(drivers)}"
        rule = "must use the PostgreSQL database of the state row"
        raise refused("session", f"{dialect.name}+{dialect.driver}", rule, remedy)
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        rule = "must not commit each statement, as its rows and the decision are one transaction"
        remedy = "leave isolation_level='AUTOCOMMIT' out for this engine or connection"
        raise refused("session", "AUTOCOMMIT", rule, remedy)
    if connection.info.get(_KEY):
        state, rule = "another dual write has joined this session", "transactions cannot be nested"
        raise LocalProtocolError(operation=_OPERATION, state=state, rule=rule)
    if connection.in_nested_transaction():
        rule = "open the block outside of begin_nested(); savepoints inside the block are allowed"
        raise LocalProtocolError(operation=_OPERATION, state="the session is in a savepoint", rule=rule)
    root = connection.get_transaction() or connection.begin()
    return Enlisted(connection, root)
