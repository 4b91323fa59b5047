"""States of a transactional id and the table of every legal transition between them.

Every transition has two steps (Kafka: ``prepareTransitionTo``, ``completeTransitionTo``). First the new state is
*pending*: it is noted in memory, and its record is built and appended to ``__transaction_state``. Only when the append
is durable does the new state replace the old one; when it fails, pending is cleared. While a change is pending nearly
every request is answered CONCURRENT_TRANSACTIONS.

After a PrepareCommit or PrepareAbort record is durable the outcome is decided, and CompleteCommit or CompleteAbort
is pending from then on, until every partition has its marker. "Prepare" is Kafka's spelling for *decided*; the word
has nothing to do with a transaction that a client has prepared (KIP-939), which is an Ongoing one here.

A transactional id carries up to three producer ids (KIP-939, "Persisted Data Format Changes"):

- ``producer_id``, ``producer_epoch``: the pair of the transaction, used in data and markers;
- ``next_producer_id``, ``next_producer_epoch``: the pair that the client holds meanwhile, once InitProducerId kept
  its prepared transaction, or that it will hold next, once the outcome is decided;
- ``previous_producer_id``: the id that the client used in its last EndTxn, to recognise its retry.

`CoordinatorState` has the settings, the producer ids, and the transactional ids by partition of the log. All values are
frozen. A change copies the dictionary of the affected partition, so it costs as much as that has ids.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, EPOCH_MAX, NO_PRODUCER_ID, TIMEOUT_NEVER_MS, TopicPartition

#: Means "no epoch" in every message and record (``RecordBatch.NO_PRODUCER_EPOCH``).
NO_EPOCH = -1
#: Means "no transaction has started" in the record of an Empty id.
NO_TIMESTAMP = -1
#: Means "the transaction's timeout also applies to later ones".
SAME_TIMEOUT_MS = -1
#: TransactionLogValue with tagged fields; written from transaction.version 1 on (KIP-890, Transaction Feature Version).
FLEXIBLE_VERSION = 1


class StateId(IntEnum):
    """Kafka's state ids, as stored in the TransactionStatus field of a record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        return self.name.title().replace("_", "")


#: State names accepted by ListTransactions' filter; any other is echoed as unknown.
STATES_BY_LABEL: dict[str, StateId] = {state.label: state for state in StateId}

#: No transaction is open or being ended: a new one may begin.
AT_REST = frozenset({StateId.EMPTY, StateId.COMPLETE_COMMIT, StateId.COMPLETE_ABORT})
#: The outcome is decided and markers are still to be written.
DECIDED = frozenset({StateId.PREPARE_COMMIT, StateId.PREPARE_ABORT})
#: Never stored, only pending.
TRANSIENT = frozenset({StateId.DEAD, StateId.PREPARE_EPOCH_FENCE})
#: The state after each decision.
COMPLETION: dict[StateId, StateId] = {
    StateId.PREPARE_COMMIT: StateId.COMPLETE_COMMIT,
    StateId.PREPARE_ABORT: StateId.COMPLETE_ABORT,
}


#: The states from which each state may be entered, by what, and the sentence that the rule follows.
PREDECESSORS: dict[StateId, frozenset[StateId]] = {
    # InitProducerId. KIP-939, Kafka as a Participant in 2PC: 'the client must use InitProducerId RPC to start using
    # transactions'; nothing is open here, so only the epoch moves and fences the previous producer.
    StateId.EMPTY: AT_REST,
    # AddPartitionsToTxn, AddOffsetsToTxn, implicit add. KIP-890 (2): 'this is the first time producing to the partition
    # for this transaction and we need to add it to the transaction implicitly'. Also InitProducerId(keepPreparedTxn).
    # KIP-939, Proposed Changes: 'we want to preserve the producerId and epoch of the ongoing transaction'.
    StateId.ONGOING: AT_REST | {StateId.ONGOING},
    # EndTxn(commit). KIP-890 (1): 'it will write the prepare commit message with a bumped epoch'.
    StateId.PREPARE_COMMIT: frozenset({StateId.ONGOING}),
    # EndTxn(abort), also v5 with nothing open ('because the client may not know the txn state on the server side'), and
    # after the fence: 'We should clear the pending state to make way for the transition to PrepareAbort'.
    StateId.PREPARE_ABORT: AT_REST | {StateId.ONGOING, StateId.PREPARE_EPOCH_FENCE},
    # Kafka, TransactionState: 'received acks from all partitions => CompleteCommit', and CompleteAbort.
    **{complete: frozenset({decided}) for decided, complete in COMPLETION.items()},
    # Kafka, TransactionState: 'TransactionalId has expired and is about to be removed from the transaction cache'.
    StateId.DEAD: AT_REST,
    # InitProducerId, timeout, forceTerminateTransaction: 'We are in the middle of bumping the epoch'.
    StateId.PREPARE_EPOCH_FENCE: frozenset({StateId.ONGOING}),
}


class Pair(NamedTuple):
    """A producer id with its epoch; unlike in `ProducerIdAndEpoch` either may be -1, "none"."""

    producer_id: int
    epoch: int


#: Used instead of a pair in error replies.
NO_PAIR = Pair(NO_PRODUCER_ID, NO_EPOCH)


def exhausted(epoch: int) -> bool:
    """True if the epoch leaves no room for another transaction (``TransactionMetadata.isEpochExhausted``)."""
    return epoch >= EPOCH_MAX


class Marking(Enum):
    """Progress of a decided transaction's markers; in memory only."""

    #: Markers are still to be written, or there are none.
    SENDING = "sending"
    #: A leader rejected the marker permanently (codes 47, 52): stuck until the log partition is reloaded.
    GIVEN_UP = "given up"
    #: All written; the record that closes the transaction is being appended.
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class TransactionMetadata:
    """Everything the coordinator knows about one transactional id.

    ``last_producer_epoch``, ``pending`` and ``marking`` exist in memory only: a reload loses them, and answers that
    rely on them change afterwards. While markers are being written, ``partitions`` contains those that still lack one,
    so it shrinks without a record.

    ``timeout_ms`` is `TIMEOUT_NEVER_MS` for a participant in two-phase commit; ``timeout_after_keep_ms`` is for the
    transactions after a kept one, if the client that kept it requested another. ``start_ms`` is -1 while Empty.
    ``client_transaction_version`` is that of the last AddPartitionsToTxn or EndTxn. ``pending`` is the state being
    appended, or the next one once all markers are written.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: StateId
    last_update_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    client_transaction_version: int = 0
    pending: StateId | None = None
    marking: Marking = Marking.SENDING
    timeout_after_keep_ms: int = SAME_TIMEOUT_MS

    @property
    def pair(self) -> Pair:
        """The transaction's own pair, as in its data."""
        return Pair(self.producer_id, self.producer_epoch)

    @property
    def ids(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("transactional_id", "producer_id", "producer_epoch")}

    @property
    def kept(self) -> bool:
        """True while an Ongoing transaction kept by InitProducerId(keepPreparedTxn) waits for EndTxn."""
        return self.state is StateId.ONGOING and self.next_producer_epoch != NO_EPOCH

    @property
    def sealed(self) -> frozenset[Pair]:
        """The pair in a kept transaction's data, from the keep to its markers; further data with it is refused.

        The record of the decision carries the epoch of the markers, one above that of the data.
        """
        if self.next_producer_epoch == NO_EPOCH:
            return frozenset()
        return frozenset({Pair(self.producer_id, self.producer_epoch - (self.state in DECIDED))})

    @property
    def client_pair(self) -> Pair:
        """The only pair that may act for the id: the last one handed out (KIP-939, RPC Changes)."""
        return Pair(self.next_producer_id, self.next_producer_epoch) if self.kept else self.pair

    @property
    def two_phase_commit(self) -> bool:
        """True for a transaction that the coordinator must not end on its own (KIP-939)."""
        return self.timeout_ms == TIMEOUT_NEVER_MS

    def moved_to(self, state: StateId, now_ms: int, **changes: object) -> TransactionMetadata:
        """This id in another state; ``previous_producer_id`` becomes its producer id, as at every transition."""
        fields: dict[str, object] = {
            "state": state,
            "last_update_ms": now_ms,
            "previous_producer_id": self.producer_id,
            "pending": COMPLETION.get(state),
            "marking": Marking.SENDING,
        }
        return replace(self, **(fields | changes))  # type: ignore[arg-type]


class Profile(Enum):
    """Which Kafka to emulate, where released Kafka and the accepted proposals differ."""

    #: Apache Kafka 4.4.0: keepPreparedTxn is answered UNSUPPORTED_VERSION.
    AS_RELEASED = "as-released-4.4.0"
    #: KIP-939 with apache/kafka pull request 21735: keeping hands out the next epoch, and logs it.
    KEEP_PREPARED = "kip-939"
    #: KIP-939 with apache/kafka pull request 22704: keeping needs enable2Pc, and appends nothing.
    KEEP_UNCHANGED = "kip-939-unchanged"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Broker properties and the feature level that determine answers; the defaults are Kafka's."""

    profile: Profile = Profile.AS_RELEASED
    transaction_version: int = EPOCH_BUMP_VERSION
    keep_prepared_version: int = EPOCH_BUMP_VERSION
    fences_late_commits: bool = False
    two_phase_commit_enable: bool = False
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    offsets_partition_count: int = 50

    @property
    def keeps_prepared(self) -> bool:
        """True if keepPreparedTxn is supported: it needs the tags of value version 1 and the epoch bump."""
        return self.profile is not Profile.AS_RELEASED and self.transaction_version >= self.keep_prepared_version

    @property
    def log_version(self) -> int:
        """TransactionLogValue version to write (KIP-890, Transaction Feature Version)."""
        return min(self.transaction_version, FLEXIBLE_VERSION)


NO_PRODUCER_IDS = range(0)


@dataclass(frozen=True)
class StatePartition:
    """One partition of ``__transaction_state``: its transactional ids by name.

    ``coordinator_epoch`` is the partition's leader epoch, which every marker carries; ``sealed`` are the pairs of its
    kept transactions, so that a leader need not look through all ids.
    """

    coordinator_epoch: int = 0
    transactions: Mapping[str, TransactionMetadata] = field(default_factory=dict)
    sealed: frozenset[Pair] = frozenset()


@dataclass(frozen=True)
class CoordinatorState:
    """``producer_ids`` are those of the allocated block that are left."""

    settings: Settings
    partitions: tuple[StatePartition, ...]
    producer_ids: range

    @classmethod
    def new(
        cls, settings: Settings, *, partition_count: int = 50, producer_ids: range = NO_PRODUCER_IDS
    ) -> CoordinatorState:
        return cls(settings, (StatePartition(),) * partition_count, producer_ids)

    def partition_of(self, transactional_id: str) -> int:
        return partition_for(transactional_id, len(self.partitions))

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        return self.partitions[self.partition_of(transactional_id)].transactions.get(transactional_id)

    def keeps(self, pair: Pair) -> bool:
        """True if the pair's transaction was kept, and accepts no more data (KIP-939, Proposed Changes)."""
        return any(pair in partition.sealed for partition in self.partitions)

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return (metadata for partition in self.partitions for metadata in partition.transactions.values())

    def with_metadata(self, transactional_id: str, metadata: TransactionMetadata | None) -> CoordinatorState:
        """This state with one id replaced, or removed for None."""
        index = self.partition_of(transactional_id)
        partition = self.partitions[index]
        transactions = dict(partition.transactions)
        before, sealed = transactions.pop(transactional_id, None), partition.sealed
        if before is not None:
            sealed -= before.sealed
        if metadata is not None:
            transactions[transactional_id] = metadata
            sealed |= metadata.sealed
        return self.with_partition(index, replace(partition, transactions=transactions, sealed=sealed))

    def with_partition(self, index: int, partition: StatePartition) -> CoordinatorState:
        return replace(self, partitions=(*self.partitions[:index], partition, *self.partitions[index + 1 :]))


#: Names whose partition is cached. It is needed a dozen times per transaction, and computing it scans the name.
_PARTITIONS_REMEMBERED_MAX = 4096


@lru_cache(_PARTITIONS_REMEMBERED_MAX)
def partition_for(name: str, count: int) -> int:
    """The partition of Kafka's internal topics for a transactional id or group: ``abs(name.hashCode()) % count``.

    Java's hash runs over UTF-16 code units in 32 bits; ``Utils.abs`` maps the one value without a positive to 0.
    """
    units = name.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return 0 if signed == -(1 << 31) else abs(signed) % count
