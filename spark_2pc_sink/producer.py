"""Java's transactional producer for one process: the whole of KIP-98, KIP-890 and KIP-939's client side.

`TransactionalWriter` has the methods of ``KafkaProducer`` with Java's meaning, and accepts Arrow columns instead of
single records. It uses `spark_2pc_sink.kafka.transaction_client.TransactionClient`, one
`spark_2pc_sink.kafka.produce_session.ProduceSession` per transaction, and the table `RULES`.

::

    kafka = {"bootstrap.servers": "broker:9092"}
    with TransactionalWriter(transactional_id="orders", kafka=kafka, topic="orders", two_phase_commit=True) as writer:
        writer.init_transactions()
        writer.begin_transaction()
        writer.append(pa.table({"key": ["a"], "value": ["1"]}))
        state = writer.prepare_transaction()      # … store str(state) with the data it belongs to …
        writer.complete_transaction(state)

The table `RULES` defines a writer's states and the calls allowed in each. Java's ``KafkaProducer`` implements the same
rules in ``TransactionManager.State`` and in the methods that throw ``IllegalStateException``; KIP-98 and KIP-939 state
them in prose. A call without a rule is refused before anything is sent or changed. A producer that was fenced or
refused is FATAL from any state. ``complete_transaction`` becomes a commit or an abort, and then follows that
operation's rule as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from jdbc_state.sink_log import log_for_sink
from spark_2pc_sink.clock import now_ms, steady_ms
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    AbortableError,
    AuthorizationError,
    DualWriteError,
    FencedError,
    KafkaError,
    KafkaTimeoutError,
    LocalProtocolError,
    OutcomeUnknownError,
)
from spark_2pc_sink.ids import (
    ENDING_STATES,
    EPOCH_BUMP_VERSION,
    TIMEOUT_NEVER_MS,
    PreparedTxnState,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionState,
)
from spark_2pc_sink.kafka.batch_sender import PartitionReceipt, ProducedTransaction
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.coordinator_calls import KEEP_REFUSED, commit_error
from spark_2pc_sink.kafka.error_policy import COMMIT_REFUSED, kafka_error
from spark_2pc_sink.kafka.produce_session import ProduceSession, StickyPartitioner
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import KafkaOptions, checks_keywords
from spark_2pc_sink.options.settings import refused

__all__ = ["TransactionalWriter"]


class WriterState(Enum):
    UNINITIALISED = "uninitialised"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED = "prepared"
    KEPT = "kept"
    KEPT_NOTHING = "kept, with nothing ongoing"
    MUST_ABORT = "must abort"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FATAL = "fatal"
    CLOSED = "closed"


class Operation(Enum):
    INIT = "init_transactions"
    INIT_KEEPING = "init_transactions(keep_prepared_txn=True)"
    BEGIN = "begin_transaction"
    APPEND = "append"
    FLUSH = "flush"
    PREPARE = "prepare_transaction"
    COMPLETE = "complete_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    CLOSE = "close"


@dataclass(frozen=True)
class Rule:
    """A call that a state allows, by the specification sentence in ``source``, and the state after it."""

    state: WriterState
    operation: Operation
    done: WriterState
    #: The state after an error which only loses the transaction.
    failed: WriterState
    #: The state if the outcome of EndTxn is unknown.
    unknown: WriterState
    source: str


_S, _O = WriterState, Operation
_INIT = "KIP-98, initTransactions: 'Needs to be called before any other methods when the transactional.id is set'"
_KEEP = (
    "KIP-939, initTransactions(true): 'the KafkaProducer object is set into a state which only allows calling "
    ".commitTransaction, .abortTransaction, or .completeTransaction'"
)
_NOTHING = "KIP-939, 'Transaction Coordinator Changes': with no ongoing transaction InitProducerId works as before"
_BEGIN = "KIP-98, beginTransaction: 'Should be called before the start of each new transaction'"
_SEND = "KIP-98, 'Data Flow': records are sent between beginTransaction and the end of the transaction"
_PREPARE = (
    "KIP-939, prepareTransaction: 'flush all the pending messages and transition the producer into a mode where only "
    ".commitTransaction, .abortTransaction, or .completeTransaction could be called'"
)
_COMPLETE = (
    "KIP-939, completeTransaction: 'compare the currently prepared transaction state and the state passed in the "
    "argument and either commit or abort the transaction'"
)
_COMMIT = "KIP-98, commitTransaction: 'Commits the ongoing transaction'"
_ABORT = "KIP-98, abortTransaction: 'Aborts the ongoing transaction'"
_ABORTABLE = "KIP-890 / KIP-1050: after an abortable error the application aborts the transaction and goes on"
_REPEAT = "KafkaProducer javadoc: after a TimeoutException 'it is safe to retry', and nothing else is"
_CLOSE = "KafkaProducer.close: allowed at any time; it ends no transaction"

#: Every allowed call. Others are refused.
RULES: Final[tuple[Rule, ...]] = (
    Rule(_S.UNINITIALISED, _O.INIT, _S.READY, _S.UNINITIALISED, _S.UNINITIALISED, _INIT),
    Rule(_S.UNINITIALISED, _O.INIT_KEEPING, _S.KEPT, _S.UNINITIALISED, _S.UNINITIALISED, _KEEP),
    Rule(_S.READY, _O.BEGIN, _S.IN_TRANSACTION, _S.READY, _S.READY, _BEGIN),
    Rule(_S.IN_TRANSACTION, _O.APPEND, _S.IN_TRANSACTION, _S.MUST_ABORT, _S.MUST_ABORT, _SEND),
    Rule(_S.IN_TRANSACTION, _O.FLUSH, _S.IN_TRANSACTION, _S.MUST_ABORT, _S.MUST_ABORT, _SEND),
    Rule(_S.IN_TRANSACTION, _O.PREPARE, _S.PREPARED, _S.MUST_ABORT, _S.MUST_ABORT, _PREPARE),
    Rule(_S.IN_TRANSACTION, _O.COMMIT, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _COMMIT),
    Rule(_S.IN_TRANSACTION, _O.ABORT, _S.READY, _S.MUST_ABORT, _S.ABORTING, _ABORT),
    Rule(_S.PREPARED, _O.COMPLETE, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _COMPLETE),
    Rule(_S.PREPARED, _O.COMMIT, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _PREPARE),
    Rule(_S.PREPARED, _O.ABORT, _S.READY, _S.MUST_ABORT, _S.ABORTING, _PREPARE),
    Rule(_S.KEPT, _O.COMPLETE, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _COMPLETE),
    Rule(_S.KEPT, _O.COMMIT, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _KEEP),
    Rule(_S.KEPT, _O.ABORT, _S.READY, _S.MUST_ABORT, _S.ABORTING, _KEEP),
    Rule(_S.KEPT_NOTHING, _O.COMPLETE, _S.READY, _S.KEPT_NOTHING, _S.KEPT_NOTHING, _NOTHING),
    Rule(_S.KEPT_NOTHING, _O.BEGIN, _S.IN_TRANSACTION, _S.KEPT_NOTHING, _S.KEPT_NOTHING, _NOTHING),
    Rule(_S.MUST_ABORT, _O.ABORT, _S.READY, _S.MUST_ABORT, _S.ABORTING, _ABORTABLE),
    Rule(_S.COMMITTING, _O.COMMIT, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _REPEAT),
    Rule(_S.COMMITTING, _O.COMPLETE, _S.READY, _S.MUST_ABORT, _S.COMMITTING, _REPEAT),
    Rule(_S.ABORTING, _O.ABORT, _S.READY, _S.MUST_ABORT, _S.ABORTING, _REPEAT),
    Rule(_S.ABORTING, _O.COMPLETE, _S.READY, _S.MUST_ABORT, _S.ABORTING, _REPEAT),
    *(Rule(state, _O.CLOSE, _S.CLOSED, _S.CLOSED, _S.CLOSED, _CLOSE) for state in WriterState),
)

_TABLE: Final = {(rule.state, rule.operation): rule for rule in RULES}


def rule_for(state: WriterState, operation: Operation) -> Rule:
    """The rule that allows ``operation`` in ``state``, or else LocalProtocolError."""
    rule = _TABLE.get((state, operation))
    if rule is None:
        allowed = [known.operation.value for known in RULES if known.state is state]
        raise LocalProtocolError(
            operation=operation.value, state=state.value, rule=f"only {', '.join(allowed)} may be called now"
        )
    return rule


class TransactionalWriter:
    """Writes transactions for one transactional id, one after the other, from one process.

    Every call has a deadline: ``max_block_ms`` for the coordinator, ``delivery_timeout_ms`` for records. One that the
    state does not allow raises `LocalProtocolError`, and nothing is sent or changed.

    Args:
        transactional_id: stable across restarts; a second writer with the same id fences the first.
        kafka: Kafka client properties, as librdkafka or Kafka name them; ``bootstrap.servers`` is required.
        topic: topic of rows without a column ``topic``.
        resume: finish prepared transactions on brokers without keepPreparedTxn and without two-phase commit, i.e. on
            every released one or any that did not grant it: ``init_transactions(keep_prepared_txn=True)`` then
            describes the transaction instead of taking it over, and EndTxn is sent with its own pair. Old writers are
            not fenced until the transaction is completed, and the broker may abort it after
            ``transaction.timeout.ms``: the application must exclude old writers itself, and notice lost transactions.
        two_phase_commit: transactions never time out, so that they may be prepared: KIP-939's client configuration
            ``transaction.two.phase.commit.enable``, which excludes ``transaction.timeout.ms``. The broker must grant
            it.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong, or two exclude each other. No connection was made.
    """

    @checks_keywords
    def __init__(
        self,
        *,
        transactional_id: str,
        kafka: Mapping[str, str | int | Callable[[str], Any]],
        topic: str | None = None,
        resume: bool = False,
        two_phase_commit: bool = False,
    ) -> None:
        options = self._options = KafkaOptions.parse(kafka)
        if two_phase_commit and options.transaction_timeout_ms is not None:
            rule = "excludes transaction.timeout.ms: its transactions never time out (KIP-939)"
            raise refused("two_phase_commit", two_phase_commit, rule, "omit one of the two")
        self._transactional_id = transactional_id
        self._cluster = Cluster(options)
        self._client = TransactionClient(self._cluster, transactional_id, options, two_phase_commit=two_phase_commit)
        self._partitioner = StickyPartitioner(self._cluster, topic)
        self._resume = resume
        self._two_phase_wanted = two_phase_commit
        self._state = WriterState.UNINITIALISED
        self._producer: ProducerIdAndEpoch | None = None
        self._producer_is_fresh = False
        self._resumed = False
        self._two_phase_commit = False
        self._prepared = PreparedTxnState()
        self._session: ProduceSession | None = None
        self._started = False
        self._began_ms = 0
        self._added: set[TopicPartition] = set()

    def __enter__(self) -> TransactionalWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> WriterState:
        """The writer's state."""
        return self._state

    @property
    def producer(self) -> ProducerIdAndEpoch | None:
        """The current pair; None before `init_transactions`."""
        return self._producer

    @property
    def two_phase_commit(self) -> bool:
        """True if it was requested, and the broker never aborts this id's transactions by itself."""
        return self._two_phase_commit

    def init_transactions(self, *, keep_prepared_txn: bool = False) -> None:
        """Take over the transactional id (KIP-98), keeping a prepared transaction if asked to (KIP-939).

        Args:
            keep_prepared_txn: keep an ongoing transaction for `complete_transaction`, `commit_transaction` or
                `abort_transaction`. Otherwise it is aborted.

        Raises:
            KafkaError: the broker lacks keepPreparedTxn and the writer is not in resume mode; or it lacks two-phase
                commit, which the writer requests (code 35).
            AuthorizationError: the broker does not grant two-phase commit (code 53).
            ConfigurationError, AuthorizationError, KafkaTimeoutError: as `TransactionClient.init_producer_id`.
        """
        with self._transition(Operation.INIT_KEEPING if keep_prepared_txn else Operation.INIT):
            if keep_prepared_txn:
                self._keep_prepared()
            else:
                self._take_pair()
        if keep_prepared_txn and not self._prepared.has_transaction:
            self._state = WriterState.KEPT_NOTHING

    def begin_transaction(self) -> None:
        """Begin a transaction. The broker learns of it with the first records.

        transaction.version is requested again, so a writer continues while a cluster is up- or downgraded.

        Raises:
            KafkaError, KafkaTimeoutError: a new pair was needed (below transaction.version 2, and when the epochs
                of the producer id are used up), and not granted.
        """
        with self._transition(Operation.BEGIN):
            self._client.refresh_features()
            if not self._producer_is_fresh or self._pair().exhausted:
                self._take_pair()
            self._session, self._started, self._prepared = None, False, PreparedTxnState()
            self._began_ms = steady_ms()
            self._added.clear()
            self._partitioner.new_transaction()

    def append(self, rows: Any) -> None:
        """Append rows to the transaction; they are acknowledged when `flush` returns.

        Args:
            rows: a pyarrow RecordBatch or Table with the column ``value`` (binary or string) and, if there are any,
                ``key`` (the same), ``headers`` (list<struct<key: string, value: binary>>), ``topic`` (string) and
                ``partition`` (integer). A null or absent partition is chosen as Java's producer does: by the key,
                or, if that is null too, one partition for all such rows of this call.

        Raises:
            LocalProtocolError: the columns are not those above; nothing was done.
            Everything that `ProduceSession.append` raises. The transaction must then be aborted.
        """
        rule_for(self._state, Operation.APPEND)
        columns = self._partitioner.columns(rows)
        with self._transition(Operation.APPEND):
            parts = self._partitioner.split_call(columns)
            self._started |= bool(parts)
            if parts and self._client.transaction_version < EPOCH_BUMP_VERSION:
                new = {partition for partition, _ in parts} - self._added
                self._client.add_partitions(self._pair(), new)
                self._added |= new
            for partition, of_partition in parts:
                self._open_session().append(partition, of_partition)

    def flush(self) -> dict[TopicPartition, PartitionReceipt]:
        """Wait until everything appended is acknowledged, and return its offsets.

        Raises:
            Everything that `ProduceSession.flush` raises. The transaction must then be aborted.
        """
        with self._transition(Operation.FLUSH):
            return {} if self._session is None else self._session.flush()

    def prepare_transaction(self) -> PreparedTxnState:
        """Flush; afterwards only the end of the transaction is allowed (KIP-939).

        Returns:
            The state to store in the database, in the transaction with the decision.

        Raises:
            LocalProtocolError: the writer has no two-phase commit and is not in resume mode (KIP-939: "If the 2PC is
                not enabled, we return the INVALID_TXN_STATE error").
            Everything that `flush` raises.
        """
        rule_for(self._state, Operation.PREPARE)
        if not self._two_phase_commit and not self._resume:
            raise LocalProtocolError(
                operation=Operation.PREPARE.value,
                state=self._state.value,
                rule="without two_phase_commit=True the broker may abort a prepared transaction (INVALID_TXN_STATE)",
            )
        with self._transition(Operation.PREPARE):
            if self._session is not None:
                self._session.flush()
            self._prepared = PreparedTxnState.of(self._pair())
        return self._prepared

    def complete_transaction(self, state: PreparedTxnState) -> None:
        """Commit if ``state`` identifies the prepared transaction, else abort it (KIP-939).

        With no transaction kept this does nothing: the one identified by ``state`` has ended before. The
        coordinator or the log can tell how.

        Args:
            state: the state stored in the database.

        Raises:
            Everything that `commit_transaction` raises.
        """
        rule = rule_for(self._state, Operation.COMPLETE)
        if self._state is WriterState.KEPT_NOTHING:
            self._state = rule.done
            return
        if state == self._prepared:
            self.commit_transaction()
        else:
            self.abort_transaction()

    def commit_transaction(self) -> None:
        """Flush and commit. Without records this sends nothing.

        Raises:
            OutcomeUnknownError: no answer; call this again, or describe the id with another client.
            FencedError: another writer owns the transactional id, and the transaction is aborted unless that writer has
                completed it; or it has timed out, if the coordinator does not distinguish the two.
            AbortableError: the transaction must be aborted.
            KafkaError: the coordinator refused; with INVALID_TXN_STATE, or PRODUCER_FENCED after Kafka 4.4.0, if the
                transaction has timed out.
            Everything that `flush` raises.
        """
        with self._transition(Operation.COMMIT):
            if self._session is not None and self._state is WriterState.IN_TRANSACTION:
                self._session.flush()
            self._end(commit=True)

    def abort_transaction(self) -> None:
        """Abort. Without records this sends nothing.

        Raises:
            OutcomeUnknownError: no answer; call this again.
            FencedError, KafkaError, KafkaTimeoutError: as `commit_transaction`.
        """
        with self._transition(Operation.ABORT):
            self._end(commit=False)

    def close(self) -> None:
        """Close the connections. An open transaction stays open: the next writer, or its timeout, ends it."""
        self._state = rule_for(self._state, Operation.CLOSE).done
        self._drop_session()
        self._cluster.close()

    @contextmanager
    def _transition(self, operation: Operation) -> Iterator[None]:
        """Change to the state that the operation's rule has for the block's outcome."""
        rule = rule_for(self._state, operation)
        try:
            with log_for_sink(self._transactional_id):
                yield
        except OutcomeUnknownError:
            self._state = rule.unknown
            raise
        except (FencedError, AuthorizationError):
            self._state = WriterState.FATAL
            raise
        except DualWriteError as error:
            # An EndTxn that was refused, other than as abortable, is refused permanently.
            refused = isinstance(error, KafkaError) and error.api == "EndTxn" and not isinstance(error, AbortableError)
            self._state = WriterState.FATAL if refused else rule.failed
            raise
        except BaseException:
            # An interrupt, or a bug: it is unknown what was sent.
            self._state = rule.failed if operation in _HARMLESS else rule.unknown
            raise
        self._state = rule.done

    def _pair(self) -> ProducerIdAndEpoch:
        if self._producer is None:
            raise AssertionError("every state but UNINITIALISED has a pair")
        return self._producer

    def _take_pair(self) -> None:
        initialized = self._client.usable_producer()
        self._producer, self._producer_is_fresh, self._resumed = initialized.producer, True, False
        self._two_phase_commit = initialized.two_phase_commit

    def _keep_prepared(self) -> None:
        # apache/kafka#22704 aborts a transaction with a timeout for a client with two-phase commit.
        if not self._resume or (
            self._client.offers_keep_prepared
            and (not self._two_phase_wanted or self._client.describe().timeout_ms in (0, TIMEOUT_NEVER_MS))
        ):
            try:
                initialized = self._client.init_producer_id(keep_prepared=True)
            except KafkaError as error:
                if not (self._resume and error.code in KEEP_REFUSED):
                    raise
            else:
                self._producer, self._prepared = initialized.producer, initialized.ongoing
                self._producer_is_fresh = not self._prepared.has_transaction
                # With apache/kafka#22704 the pair is still that of the writer that prepared the transaction.
                self._resumed = self._prepared == PreparedTxnState.of(initialized.producer)
                self._two_phase_commit = initialized.two_phase_commit
                self._started = self._prepared.has_transaction
                return
        self._resume_prepared()

    def _resume_prepared(self) -> None:
        """Resume mode: find the ongoing transaction without InitProducerId, which would abort it."""
        deadline = self._cluster.deadline()
        described = self._client.describe()
        while described.state in ENDING_STATES:
            if deadline.passed:
                raise KafkaTimeoutError(
                    operation="init_transactions", deadline_ms=deadline.limit_ms, last_error=f"still {described.state}"
                )
            deadline.pause()
            described = self._client.describe()
        if described.state != TransactionState.ONGOING or described.producer is None:
            self._take_pair()
            return
        self._producer, self._producer_is_fresh, self._resumed = described.producer, False, True
        self._prepared = PreparedTxnState.of(described.producer)
        self._two_phase_commit = described.timeout_ms == TIMEOUT_NEVER_MS
        self._started = True

    def _open_session(self) -> ProduceSession:
        if self._session is None:
            client = self._client
            transaction = ProducedTransaction(client.transactional_id, self._pair(), client.transaction_version)
            self._session = ProduceSession(self._cluster, transaction, self._options, timestamp_ms=now_ms())
        return self._session

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _end(self, *, commit: bool) -> None:
        if not self._started:
            # A transaction prepared without records is remembered too: its pair must not identify another one.
            self._producer_is_fresh &= not self._prepared.has_transaction
            return
        try:
            bumps = commit or self._client.ends_with_bump()
        except KafkaTimeoutError as error:
            raise OutcomeUnknownError.of(error, f"abort of {self._transactional_id!r}") from error
        if not bumps:
            # The markers of EndTxn v4 do not fence requests in flight; those of InitProducerId do.
            self._take_pair()
        else:
            answer = self._client.end(self._pair(), commit=commit)
            if answer.code != Code.NONE:
                raise self._end_error(answer.code, commit=commit)
            # The writer that prepared a resumed transaction gets the same pair when it repeats its EndTxn.
            self._producer_is_fresh = answer.producer is not None and not self._resumed
            self._producer = answer.producer or self._producer
        self._started = False
        self._drop_session()

    def _end_error(self, code: int, *, commit: bool) -> KafkaError:
        producer = self._pair()
        if commit and code in COMMIT_REFUSED:
            try:
                described = self._client.describe()
            except (KafkaError, KafkaTimeoutError):
                described = None
            error = commit_error(code, producer, described, open_ms=steady_ms() - self._began_ms)
        else:
            error = kafka_error("EndTxn", code, f"{'commit' if commit else 'abort'} of {producer}")
        if code == Code.TRANSACTION_ABORTABLE:
            return AbortableError(api=error.api, code=error.code, name=error.name, detail=error.detail)
        return error


#: Calls that send no request that could end the transaction.
_HARMLESS = frozenset({Operation.APPEND, Operation.FLUSH, Operation.PREPARE, Operation.BEGIN})
