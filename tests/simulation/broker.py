"""The broker: the real coordinator with its log in a list, and two partitions.

What a plan leaves to do (markers, the record that closes a transaction) is done when the next request comes, so that
a crash in between finds a transaction that is decided and not completed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.producer.commit_scan import CommitQuery
from spark_2pc_sink.producer.log_reader import Marker
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.recipe.lost_batches import CommittedTransaction, FoundCommits
from spark_2pc_sink.reference.coordinator import (
    AddPartitionsToTxn,
    AllocateProducerIdBlock,
    Code,
    CoordinatorState,
    DescribeTransactions,
    EndTxn,
    Event,
    InitProducerId,
    LogRecord,
    MarkersAnswered,
    ProducerIdBlock,
    ProducerIdBlockAllocated,
    SendMarkers,
    StepNext,
    TransactionMetadata,
    TransactionState,
    due_expirations,
    due_timeouts,
    finish_loading,
    replay,
    reserve,
    settle,
    step,
)
from spark_2pc_sink.reference.coordinator.leader_answers import Question, produce_code, produce_question
from spark_2pc_sink.reference.coordinator.plans import (
    AddPartitionsReply,
    DescribeTransactionsReply,
    Effect,
    EndTxnReply,
    InitProducerIdReply,
    Reply,
    TransactionDescription,
)
from spark_2pc_sink.reference.coordinator.records import TransactionLogValue
from spark_2pc_sink.reference.coordinator.states import AT_REST
from spark_2pc_sink.reference.log.producer_state import EndMarker, NeedsCoordinator, Refused
from tests.simulation.partition import Record, SimPartition, header_of
from tests.simulation.profiles import Profile

TRANSACTIONAL_ID = "orders"
TOPIC = "orders"
PARTITIONS = (TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1))
#: How long a transaction may last without two-phase commit.
TIMEOUT_MS = 60_000
#: Produce below transaction.version 2, and from there on.
_OLD_PRODUCE, _NEW_PRODUCE = 11, 13
_BLOCK_SIZE = 1000
#: Effects lead to further effects, but not for ever.
_EFFECTS_MAX = 100
#: How much is remembered before all of it is forgotten.
_KNOWN_MAX = 200_000


class Produced(NamedTuple):
    """What Produce is answered for one partition."""

    code: int
    base_offset: int = -1
    #: It stood there before. On the wire only the offset tells, which the producer compares with what it has seen.
    duplicate: bool = False


@dataclass(frozen=True)
class _Done:
    """What one event came to."""

    state: CoordinatorState
    records: tuple[LogRecord, ...]
    reply: Reply | None
    effects: tuple[Effect, ...]


#: What events came to, by identity of the state before, and the states by what they hold. The coordinator is pure, and
#: schedules share most of their way: half of the time would go into the same transitions again.
_done: dict[tuple[int, Hashable, int], _Done] = {}
_states: dict[tuple[object, ...], CoordinatorState] = {}
#: Of each state that is known: whether a transaction may time out, and whether nothing is open.
_standing: dict[int, tuple[bool, bool]] = {}


def forget() -> None:
    """Forget what events came to: after the code was changed, and before too much is kept."""
    _done.clear()
    _states.clear()
    _standing.clear()


def _known(state: CoordinatorState) -> CoordinatorState:
    """The one object that stands for all states that are equal to this one; kept alive, so that its id names it."""
    partition = state.partitions[0]
    metadata = partition.transactions.get(TRANSACTIONAL_ID)
    return _states.setdefault((state.settings, state.producer_ids, partition.coordinator_epoch, metadata), state)


def _carried_out(state: CoordinatorState, event: Event, now_ms: int) -> _Done:
    """Step, reserve, append and settle, in the order of `plans`; ``state`` is one that `_known` gave."""
    what: Hashable = event
    if isinstance(event, MarkersAnswered):
        what = (event.producer_id, event.producer_epoch, event.coordinator_epoch, tuple(event.results.items()))
    key = (id(state), what, now_ms)
    done = _done.get(key)
    if done is None:
        plan = step(state, event, now_ms)
        settled = settle(reserve(state, plan), plan)
        done = _done[key] = _Done(_known(settled.state), plan.records, settled.reply, settled.effects)
    return done


class SimBroker:
    """One node.

    Args:
        profile: what it grants.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.now_ms = 0
        self.log: list[LogRecord] = []
        self.logs = {each: SimPartition() for each in PARTITIONS}
        self.effects: deque[Effect] = deque()
        self.answered: list[str] = []
        self._topics_made = 1
        self._blocks = 0
        if len(_done) > _KNOWN_MAX:
            # Not while a broker runs: a state that is no longer kept could leave its identity to another.
            forget()
        self.state = _known(CoordinatorState.new(profile.settings, partition_count=1, block=self._next_block()))
        if profile.first_epoch is not None:
            self._begin_at(profile.first_epoch)

    @property
    def timeout_ms(self) -> int:
        """What InitProducerId asks for without two-phase commit."""
        return TIMEOUT_MS

    @property
    def topic_id(self) -> str:
        """Of the topic as it was made last."""
        return f"{TOPIC}-{self._topics_made}"

    @property
    def standing(self) -> tuple[bool, bool]:
        """Whether a transaction is open that the coordinator would end by itself; whether none is open or ending."""
        known = _standing.get(id(self.state))
        if known is None:
            metadata = self.metadata()
            open_ = metadata is not None and metadata.state is TransactionState.ONGOING
            may_time_out = metadata is not None and open_ and not metadata.two_phase_commit
            at_rest = metadata is not None and metadata.state in AT_REST and metadata.pending is None
            known = _standing[id(self.state)] = may_time_out, at_rest
        return known

    @property
    def has_open(self) -> bool:
        """Whether a transaction is open."""
        metadata = self.metadata()
        return metadata is not None and metadata.state is TransactionState.ONGOING

    def metadata(self) -> TransactionMetadata | None:
        """What the coordinator knows of the one id."""
        return self.state.partitions[0].transactions.get(TRANSACTIONAL_ID)

    # --- requests ----------------------------------------------------------------------------------------------

    def init(self, *, two_phase_commit: bool = False, keep_prepared: bool = False) -> InitProducerIdReply:
        """InitProducerId."""
        event = InitProducerId(
            transactional_id=TRANSACTIONAL_ID,
            timeout_ms=TIMEOUT_MS,
            enable_2pc=two_phase_commit,
            keep_prepared=keep_prepared,
        )
        reply = cast("InitProducerIdReply", self._ask(event))
        if reply.code == Code.NONE:
            self.answered.append(f"{reply.pair.producer_id}:{reply.pair.epoch}")
        return reply

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnReply:
        """EndTxn, in the version that goes with transaction.version."""
        version = 5 if self.profile.transaction_version >= 2 else 4
        event = EndTxn(
            transactional_id=TRANSACTIONAL_ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            commit=commit,
            version=version,
        )
        return cast("EndTxnReply", self._ask(event))

    def add(self, producer: ProducerIdAndEpoch, partitions: Sequence[TopicPartition]) -> int:
        """AddPartitionsToTxn of a client."""
        event = AddPartitionsToTxn(
            transactional_id=TRANSACTIONAL_ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            partitions=tuple(partitions),
            version=3,
        )
        reply = cast("AddPartitionsReply", self._ask(event))
        return max(code for _, code in reply.results)

    def describe(self) -> TransactionDescription:
        """DescribeTransactions."""
        reply = cast(
            "DescribeTransactionsReply", self._ask(DescribeTransactions(transactional_ids=(TRANSACTIONAL_ID,)))
        )
        return reply.transactions[0]

    def produce(
        self, producer: ProducerIdAndEpoch, partition: TopicPartition, records: Sequence[Record], sequence: int
    ) -> Produced:
        """One record batch, as ``handlers/produce.py`` takes it."""
        self.drain()
        log = self.logs[partition]
        header = header_of(producer.producer_id, producer.epoch, sequence=sequence, count=len(records))
        bumps = self.profile.transaction_version >= 2
        standing = log.standing(header, bumps=bumps, now_ms=self.now_ms)
        if isinstance(standing, Refused):
            return Produced(standing.code)
        guard = None
        if isinstance(standing, NeedsCoordinator):
            guard = standing.guard
            code = self._verify(producer, partition, _NEW_PRODUCE if bumps else _OLD_PRODUCE)
            if code:
                return Produced(code)
        return Produced(*log.append(header, records, guard))

    def find_marker(
        self, partition: TopicPartition, *, from_offset: int, producer_id: int, epochs: frozenset[int]
    ) -> Marker:
        """What ``producer/log_reader.py`` finds."""
        self.drain()
        log = self.logs[partition]
        for entry in log.entries:
            header = entry.header
            ours = header.producer_id == producer_id and header.producer_epoch in epochs
            if ours and entry.commit is not None and header.base_offset >= from_offset:
                return Marker.COMMIT if entry.commit else Marker.ABORT
        known = log.producers.entry(producer_id)
        return Marker.OPEN if known is not None and known.txn_start_offset is not None else Marker.MISSING

    def open_since(self, partition: TopicPartition, *, producer_id: int) -> int | None:
        """What DescribeProducers shows of a producer."""
        known = self.logs[partition].producers.entry(producer_id)
        return None if known is None else known.txn_start_offset

    def view_logs(self, partitions: Sequence[TopicPartition], *, starts: bool) -> LogsView:
        """What ``producer/written_logs.py`` finds."""
        return LogsView(
            topic_ids={partition.topic: self.topic_id for partition in partitions},
            ends={partition: self.logs[partition].end_offset for partition in partitions},
            starts=dict.fromkeys(partitions, 0) if starts else {},
        )

    def find_commits(self, query: CommitQuery) -> FoundCommits:
        """What ``producer/commit_scan.py`` finds."""
        self.drain()
        found: dict[ProducerIdAndEpoch, dict[TopicPartition, tuple[int, int]]] = {}
        for partition, log in self.logs.items():
            for pair, at in log.committed_offsets():
                known = query.newer_than
                later = (
                    pair.epoch > known.epoch
                    if known and known.producer_id == pair.producer_id
                    else (pair.producer_id in query.producer_ids)
                )
                if later and at[0] > query.after.get(partition, -1):
                    found.setdefault(pair, {})[partition] = at
        own = None if query.newer_than is None else query.newer_than.producer_id
        ordered = sorted(found, key=lambda pair: (pair.producer_id != own, pair))
        return FoundCommits(
            tuple(
                CommittedTransaction(pair, sum(last - first + 1 for first, last in found[pair].values()), found[pair])
                for pair in ordered
            )
        )

    # --- what happens by itself --------------------------------------------------------------------------------

    def time_out(self) -> None:
        """Look for transactions that are open for too long."""
        for event in due_timeouts(self.state, self.now_ms):
            self._do(event)

    def expire(self) -> None:
        """Look for transactional ids that were not used for long."""
        for event in due_expirations(self.state, self.now_ms):
            self._do(event)

    def force_terminate(self) -> None:
        """``kafka-transactions.sh forceTerminateTransaction``: a plain InitProducerId, until it is answered."""
        for _ in range(_EFFECTS_MAX):
            if self.init().code != Code.CONCURRENT_TRANSACTIONS:
                return
        raise AssertionError("a transaction that does not end")

    def remake_topic(self, *, first_offset: int) -> list[tuple[Record, str]]:
        """The topic is deleted, with what readers have seen of it, and made anew; others have written so much to it."""
        self.drain()
        seen = self.committed()
        self.logs = {each: SimPartition(first_offset=first_offset) for each in PARTITIONS}
        self._topics_made += 1
        return seen

    def committed(self) -> list[tuple[Record, str]]:
        """What a read_committed reader sees: each record, and the pair that it was written with."""
        return [found for log in self.logs.values() for found in log.committed()]

    def crash(self) -> None:
        """Be killed, and started again from the logs."""
        # Only the last record of the one id counts; it goes through its bytes, as on a disk.
        records = [LogRecord.decode(each.partition, each.key_bytes, each.value_bytes) for each in self.log[-1:]]
        epoch = self.state.partitions[0].coordinator_epoch + 1
        fresh = CoordinatorState.new(self.profile.settings, partition_count=1, block=self._next_block())
        loaded, owed = finish_loading(fresh, 0, coordinator_epoch=epoch, records=records)
        self.state = _known(loaded)
        self.effects = deque(owed)
        self.logs = {each: log.restarted() for each, log in self.logs.items()}

    def drain(self) -> None:
        """Do everything that is left to do."""
        for _ in range(_EFFECTS_MAX):
            if not self.effects:
                return
            self._carry_out(self.effects.popleft())
        raise AssertionError("effects without end")

    def write_one_marker(self) -> bool:
        """Write the marker of one partition only, the others come later; False where none is to be written."""
        effect = self.effects[0] if self.effects else None
        if not isinstance(effect, SendMarkers) or len(effect.partitions) < 2:
            return False
        self.logs[effect.partitions[0]].append_marker(_marker(effect))
        return True

    # --- parts -------------------------------------------------------------------------------------------------

    def _ask(self, event: Event) -> Reply:
        self.drain()
        reply = self._do(event)
        if reply is None:
            raise AssertionError("every request is answered")
        return reply

    def _do(self, event: Event) -> Reply | None:
        done = _carried_out(self.state, event, self.now_ms)
        self.log += done.records
        self.state = done.state
        self.effects += done.effects
        return done.reply

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, StepNext):
            self._do(effect.event)
        elif isinstance(effect, AllocateProducerIdBlock):
            block = self._next_block()
            self._do(ProducerIdBlockAllocated(first=block.first, size=block.size))
        else:
            marker = _marker(effect)
            event = MarkersAnswered(
                transactional_id=effect.transactional_id,
                producer_id=effect.producer_id,
                producer_epoch=effect.producer_epoch,
                coordinator_epoch=effect.coordinator_epoch,
                results={each: self.logs[each].append_marker(marker) for each in effect.partitions},
            )
            self._do(event)

    def _verify(self, producer: ProducerIdAndEpoch, partition: TopicPartition, version: int) -> int:
        event = AddPartitionsToTxn(
            transactional_id=TRANSACTIONAL_ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            partitions=(partition,),
            verify_only=produce_question(version) is Question.VERIFY,
        )
        reply = cast("AddPartitionsReply", self._do(event))
        return produce_code(version, reply.codes[partition])

    def _next_block(self) -> ProducerIdBlock:
        self._blocks += 1
        return ProducerIdBlock(self._blocks * _BLOCK_SIZE, _BLOCK_SIZE)

    def _begin_at(self, epoch: int) -> None:
        """Make the id one that was used before, and is at rest at this epoch."""
        pair = self.init().pair
        metadata = self.metadata()
        if metadata is None:
            raise AssertionError("it was just made")
        used = metadata.moved_to(
            TransactionState.EMPTY, self.now_ms, producer_id=pair.producer_id, producer_epoch=epoch
        )
        version = self.state.settings.log_version
        value = TransactionLogValue.of(used, version=version)
        self.log.append(LogRecord(partition=0, transactional_id=TRANSACTIONAL_ID, value=value, version=version))
        self.state = _known(replay(self.state, self.log))


def _marker(effect: SendMarkers) -> EndMarker:
    return EndMarker(
        effect.producer_id, effect.producer_epoch, effect.commit, effect.coordinator_epoch, effect.transaction_version
    )
