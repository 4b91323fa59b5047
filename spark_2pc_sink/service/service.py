"""One process of a service: its connections, its transactional ids, and the steps of one transaction, in order.

`DualWrite` and `AsyncDualWrite` use the same steps (`Commitment`). Waiting for Kafka blocks the calling thread; the
database's steps run where the caller's session is.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, Final, Literal

from sqlalchemy import Connection

from jdbc_state import Actor, SqlStateStore
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.clock import Clock, SystemClock, now_ms
from spark_2pc_sink.errors import (
    AbortableError,
    DualWriteError,
    FencedError,
    InDoubtError,
    KafkaTimeoutError,
    LocalProtocolError,
)
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.options import ServiceOptions, checks_keywords
from spark_2pc_sink.service.id_pool import IdPool, closed_error
from spark_2pc_sink.service.id_writer import ConnectedId, IdWriter, SentRecords
from spark_2pc_sink.service.transaction import EncodedRecords, OpenBlocks, OutgoingRecord, encode

#: Distinguishes actions of a service from those of a person with a command.
_PROGRAM: Final = "service"
#: How long `Service.close` waits for running transactions: the longest COMMIT, plus EndTxn.
_CLOSE_S: Final = 120.0


class TopicSizes:
    """Numbers of partitions of topics, refreshed after ``metadata.max.age.ms``. Thread-safe; owns its connections."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, float]] = {}
        self._unanswered: tuple[KafkaTimeoutError, float] | None = None

    def count(self, topic: str) -> int:
        now_s = self._clock.now_s()
        known = self._fresh(topic, now_s)
        if known is not None:
            return known
        with self._lock:
            # Threads that waited for the lock use the answer of its holder: otherwise the last of many would wait many
            # times as long, with its database transaction open.
            known = self._fresh(topic, now_s)
            if known is not None:
                return known
            if self._unanswered is not None and self._unanswered[1] > now_s:
                raise replace(self._unanswered[0])
            try:
                found = self._cluster.partition_counts([topic])[topic]
            except KafkaTimeoutError as error:
                self._unanswered = error, self._clock.now_s()
                raise
            self._known[topic] = (found, self._clock.now_s() + self._cluster.options.metadata_max_age_ms / 1000)
        return found

    def _fresh(self, topic: str, now_s: float) -> int | None:
        known = self._known.get(topic)
        return known[0] if known is not None and now_s < known[1] else None

    def close(self) -> None:
        with self._lock:
            self._cluster.close()


class Service:
    """Everything that the transactions of one process share. Thread-safe."""

    def __init__(self, options: ServiceOptions) -> None:
        self.options = options
        self._clock = SystemClock()
        self._log = sink_log(__name__, options.transactional_id)
        self._lock = threading.Lock()
        self._numbers = count()
        self._process: int | None = None
        self._closed = False
        self._topics: TopicSizes | None = None
        self._store: SqlStateStore | None = None
        self._pool: IdPool | None = None

    @property
    def started(self) -> bool:
        return self._process == os.getpid() and not self._closed

    def start(self) -> None:
        """See `DualWrite.start`; refused if it is closed, or was started before a fork."""
        if self.started:
            return
        if self._is_forked:
            rule = "processes must not share connections: make a DualWrite in each, after the fork"
            raise LocalProtocolError(operation="transaction", state="started before a fork", rule=rule)
        with self._lock:
            if self._closed:
                raise closed_error()
            if self._process is None:
                self._begin()

    def close(self) -> None:
        """Wait for running transactions, write the pending notes, and close every connection."""
        if self._is_forked:
            # Closing the inherited connections would end them for the parent process.
            return
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(limit_s=_CLOSE_S)
        if self._topics is not None:
            self._topics.close()
        if self._store is not None:
            self._store.close()

    def commitment(self) -> Commitment:
        pool = self._pool
        if pool is None:
            raise closed_error()
        return Commitment(pool, self._encode)

    @property
    def _is_forked(self) -> bool:
        """Checked before the lock is taken: a thread that was not forked may hold it forever."""
        return self._process not in (None, os.getpid())

    def _begin(self) -> None:
        options = self.options
        # Not in the constructor: processes forked from the creator would share one run, and while one of them lives,
        # ids left by the others would appear to be held.
        run_id = str(uuid.uuid4())
        settings, actor = options.store_settings(), Actor.of_this_process(_PROGRAM)
        store = self._store = SqlStateStore(options.database, settings, actor=actor, shown_by_run=True)
        self._topics = TopicSizes(Cluster(options.kafka), self._clock)
        pool = IdPool(
            options,
            survey=store.survey,
            connect=lambda transactional_id: ConnectedId(options, transactional_id, store, run_id, self._clock),
            clock=self._clock,
        )
        try:
            pool.start()
        except BaseException:
            pool.close(limit_s=0)
            self._topics.close()
            store.close()
            raise
        self._pool, self._process = pool, os.getpid()
        self._log.info("took %d transactional ids, run %s", pool.size, run_id)

    def _encode(self, records: Sequence[OutgoingRecord]) -> EncodedRecords:
        assert self._topics is not None
        count_of, free = self._topics.count, next(self._numbers)
        return encode(records, self.options.kafka, partition_count=count_of, free=free, timestamp_ms=now_ms())


class ServiceBase:
    """The options of a service, and its one process. Constructing it does no I/O."""

    @checks_keywords
    def __init__(
        self,
        *,
        transactional_id: str,
        kafka: Mapping[str, str | int | Callable[[str], Any]],
        database: str,
        ids: int = 8,
        ids_max: int = 64,
        wait_for_id_ms: int = 10_000,
        kafka_commit: Literal["before_return", "in_background"] = "before_return",
        takeover_grace_s: int = 60,
        database_password: Callable[[], str] | None = None,
        password_command: str | None = None,
        require_tls: bool = False,
        accept_database: str | None = None,
        state_schema: str = "public",
        state_table: str = "kafka_transaction_state",
        history_table: str | None = None,
        history_batches: int = 0,
        connect_timeout_s: int = 10,
        connect_deadline_ms: int = 30_000,
        claim_lock_timeout_ms: int = 2_000,
        claim_deadline_ms: int = 30_000,
        lock_timeout_ms: int = 30_000,
        statement_timeout_ms: int = 600_000,
        idle_in_transaction_timeout_ms: int = 60_000,
        commit_timeout_ms: int = 60_000,
        settle_deadline_ms: int = 120_000,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        self._service = Service(ServiceOptions.parse(**given))
        self._blocks = OpenBlocks()
        # One more than there are ids, so that the holder of an id never waits for a thread. They are started on demand.
        self._threads = ThreadPoolExecutor(self._service.options.ids + 1, "spark_2pc_sink service")

    def _complete_in_background(self, commitment: Commitment) -> None:
        """Commit the decided transaction in Kafka without waiting; a thread does it if that takes several requests.

        At most ``ids`` of these run at once: an id is not used again before its answer has arrived.
        """
        if commitment.begin_completion():
            return
        try:
            self._threads.submit(commitment.complete_in_background)
        except RuntimeError:
            # The main thread has ended while this one still runs: Python starts no more threads for it.
            commitment.complete_in_background()


_log = sink_log(__name__)


class Commitment:
    """One transaction in progress; ``encode`` is for the current topics. Call `end` in every case."""

    def __init__(self, pool: IdPool, encode: Callable[[Sequence[OutgoingRecord]], EncodedRecords]) -> None:
        self._pool = pool
        self._encode = encode
        self._writer: IdWriter | None = None
        self._sent: SentRecords | None = None

    def send(self, records: Sequence[OutgoingRecord]) -> None:
        """Take an id, send everything, and wait for the acknowledgements. Blocks; after an error nothing is decided.

        An id at an epoch that Kafka no longer accepts, as it has expired or a recovery was run, is recovered and
        retried once. So is one whose previous transaction Kafka has not committed yet.
        """
        encoded = self._encode(records)
        writer = self._writer = self._pool.acquire()
        writer.end_completion()
        if writer.unsettled:
            writer.recover()
        try:
            self._sent = writer.send(encoded)
        except (FencedError, AbortableError) as error:
            _log.warning("%s: %s; recovering the id", writer.transactional_id, error)
            writer.recover()
            self._sent = writer.send(encoded)

    def decide(self, connection: Connection) -> None:
        """Write the state row, the last statement before COMMIT. After an error the transaction must be rolled back."""
        writer, sent = self._parts()
        writer.decide(connection, sent)

    def committed(self) -> None:
        """Note that COMMIT was answered: the transaction can no longer be aborted."""
        writer, sent = self._parts()
        writer.decided(sent)

    def commit_failed(self) -> bool:
        """Whether a COMMIT that raised was carried out; then completes it. Blocks. InDoubtError if unknown in time."""
        writer, sent = self._parts()
        return writer.settle(sent.producer)

    def complete(self) -> None:
        """Commit in Kafka, and give the id back. Blocks. After InDoubtError the id's next recovery completes it."""
        writer, sent = self._parts()
        try:
            with self._decided():
                writer.complete(sent)
        finally:
            self.end()

    def begin_completion(self) -> bool:
        """Commit in Kafka without waiting; the id's next holder reads the answer. False if not sent: `complete` it."""
        writer, sent = self._parts()
        begun = True
        try:
            with self._decided():
                begun = writer.begin_completion(sent)
        finally:
            if begun:
                self.end()
        return begun

    def complete_in_background(self) -> None:
        """`complete` in the background: errors are logged, and the keeper of the ids settles the transaction."""
        try:
            self.complete()
        except DualWriteError:
            _log.exception("could not complete a decided transaction in Kafka yet")

    @contextmanager
    def _decided(self) -> Iterator[None]:
        """Wrap errors, such as those of signal handlers: a decided transaction must not appear to have failed."""
        try:
            yield
        except DualWriteError:
            raise
        except Exception as error:
            writer, sent = self._parts()
            raise InDoubtError(
                transactional_id=writer.transactional_id, prepared=str(sent.producer), detail=repr(error)
            ) from error

    def end(self) -> None:
        """Give the id back. Records that were sent and not decided are aborted when the id is settled."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._pool.release(writer)

    def _parts(self) -> tuple[IdWriter, SentRecords]:
        assert self._writer is not None
        assert self._sent is not None
        return self._writer, self._sent
