"""The transaction coordinator of the fake Kafka: the reference coordinator's machine, with its log in a list.

What a plan leaves to do (markers, the record that closes a transaction) is done when the next request comes, so that
a crash in between finds a transaction that is decided and not completed; or later, while `FakeCoordinator.held`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.end_txn import due_expirations, due_timeouts
from spark_2pc_sink.reference.coordinator.events import Event, InitProducerId, MarkersAnswered
from spark_2pc_sink.reference.coordinator.machine import finish_loading, reserve, settle, step
from spark_2pc_sink.reference.coordinator.plans import EndMarker, LogRecord, Reply, SendMarkers
from spark_2pc_sink.reference.coordinator.states import (
    COMPLETION,
    CoordinatorState,
    Settings,
    StateId,
    TransactionMetadata,
)
from tests.unit.reference.coordinator.driver import answered

#: The id of the one producer, where there is one.
TRANSACTIONAL_ID: Final = "orders"
BLOCK_SIZE: Final = 1000
#: Effects lead to further effects, but not for ever.
EFFECTS_MAX: Final = 100
#: How much is remembered before all of it is forgotten.
_KNOWN_MAX: Final = 200_000


@dataclass(frozen=True)
class _Done:
    state: CoordinatorState
    records: tuple[LogRecord, ...]
    reply: Reply | None
    effects: tuple[SendMarkers, ...]


#: What events came to, by identity of the state before, and the states by what they hold. The coordinator is pure, and
#: the schedules of the simulation share most of their way: half of its time would go into the same transitions again.
_done: dict[tuple[int, Hashable, int], _Done] = {}
_states: dict[tuple[object, ...], CoordinatorState] = {}


def forget() -> None:
    """Forget what events came to: after the code was changed, and before too much is kept."""
    _done.clear()
    _states.clear()


def _known(state: CoordinatorState) -> CoordinatorState:
    """The one object that stands for all states that are equal to this one; kept alive, so that its id names it."""
    partition = state.partitions[0]
    held = tuple(partition.transactions.items())
    return _states.setdefault((state.settings, state.producer_ids, partition.coordinator_epoch, held), state)


def _carried_out(state: CoordinatorState, event: Event, now_ms: int) -> _Done:
    """Step, reserve, append and settle, in the order of `plans`; ``state`` is one that `_known` gave."""
    what: Hashable = event
    if isinstance(event, MarkersAnswered):
        what = (event.producer_id, event.producer_epoch, tuple(event.results.items()))
    key = (id(state), what, now_ms)
    done = _done.get(key)
    if done is None:
        plan = step(state, event, now_ms)
        settled = settle(reserve(state, plan), plan)
        done = _done[key] = _Done(_known(settled.state), plan.records, settled.reply, settled.effects)
    return done


@dataclass(frozen=True)
class FakeTransaction:
    """One transactional id as its coordinator is to know it.

    Args:
        coordinator: of a cluster's brokers; None for the usual one.
        start_time_ms: of it; -1 where none was begun.
    """

    producer_id: int
    epoch: int = 0
    state: str = "Ongoing"
    coordinator: int | None = None
    partitions: tuple[TopicPartition, ...] = ()
    timeout_ms: int = 60_000
    start_time_ms: int = 1_000

    def metadata(self, transactional_id: str) -> TransactionMetadata:
        state = next(each for each in StateId if each.label == self.state)
        return TransactionMetadata(
            transactional_id=transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            timeout_ms=self.timeout_ms,
            state=state,
            last_update_ms=self.start_time_ms,
            start_ms=self.start_time_ms,
            partitions=frozenset(self.partitions),
            pending=COMPLETION.get(state),
        )


class FakeCoordinator:
    """One node that coordinates every transactional id.

    Args:
        first_producer_id: the first one that is handed out.

    Attributes:
        now_ms: what the coordinator takes for the time; whoever owns it moves it.
        coordinators: the brokers of ids that another one than the usual coordinates.
        held: markers wait, and transactions stay in PrepareCommit or PrepareAbort, until this is False.
    """

    def __init__(self, settings: Settings, *, first_producer_id: int = BLOCK_SIZE) -> None:
        self.now_ms = 0
        self.state_log: list[LogRecord] = []
        self.effects: deque[SendMarkers] = deque()
        self.held = False
        self.coordinators: dict[str, int] = {}
        self._next_producer_id = first_producer_id
        if len(_done) > _KNOWN_MAX:
            # Not while a broker runs: a state that is no longer kept could leave its identity to another.
            forget()
        self.state = _known(CoordinatorState.new(settings, partition_count=1, producer_ids=self._next_block()))

    def metadata(self, transactional_id: str = TRANSACTIONAL_ID) -> TransactionMetadata | None:
        return self.state.partitions[0].transactions.get(transactional_id)

    def know(self, transaction: FakeTransaction, transactional_id: str = TRANSACTIONAL_ID) -> None:
        """Make an id one of which this is known, as if it had come to that."""
        if transactional_id == TRANSACTIONAL_ID and self.metadata() is None:
            # Its producer id is not handed out a second time.
            self.ask(InitProducerId(transactional_id=transactional_id))
        self.put(transactional_id, transaction.metadata(transactional_id))
        if transaction.coordinator is not None:
            self.coordinators[transactional_id] = transaction.coordinator

    def put(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        """Replace what is known of an id; None makes it unknown."""
        version = self.state.settings.log_version
        value = None if metadata is None or metadata.state is StateId.DEAD else metadata
        self.state_log.append(LogRecord(partition=0, transactional_id=transactional_id, value=value, version=version))
        self.state = _known(self.state.with_metadata(transactional_id, metadata))

    def configure(self, **settings: Any) -> None:
        self.state = _known(replace(self.state, settings=replace(self.state.settings, **settings)))

    def ask(self, event: Event) -> Reply:
        """A request, after everything that the ones before have left to do."""
        self.drain()
        reply = self.do(event)
        if reply is None:
            raise AssertionError("every request is answered")
        return reply

    def do(self, event: Event) -> Reply | None:
        """One event; what it leaves to do comes later."""
        if not self.state.producer_ids:
            self.state = _known(replace(self.state, producer_ids=self._next_block()))
        done = _carried_out(self.state, event, self.now_ms)
        self.state_log += done.records
        self.state = done.state
        self.effects += done.effects
        return done.reply

    def drain(self) -> None:
        """Do everything that is left to do, unless it is `held`."""
        if self.held:
            return
        for _ in range(EFFECTS_MAX):
            if not self.effects:
                return
            markers = self.effects.popleft()
            self.do(answered(markers, {each: self.write_marker(markers, each) for each in markers.partitions}))
        raise AssertionError("effects without end")

    def time_out(self) -> None:
        """Look for transactions that are open for too long."""
        for event in due_timeouts(self.state, self.now_ms):
            self.do(event)

    def expire(self) -> None:
        """Look for transactional ids that were not used for long."""
        for event in due_expirations(self.state, self.now_ms):
            self.do(event)

    def restart(self) -> None:
        """Be killed, and started again from the log."""
        newest = {each.transactional_id: each for each in self.state_log}
        # They go through their bytes, as on a disk.
        records = [LogRecord.decode(each.partition, each.key_bytes, each.value_bytes) for each in newest.values()]
        epoch = self.state.partitions[0].coordinator_epoch + 1
        fresh = CoordinatorState.new(self.state.settings, partition_count=1, producer_ids=self._next_block())
        loaded, owed = finish_loading(fresh, 0, coordinator_epoch=epoch, records=records)
        self.state = _known(loaded)
        self.effects = deque(owed)

    def write_marker(self, marker: EndMarker, partition: TopicPartition) -> int:
        """Append an end marker to the log of a partition; the code that its leader answers."""
        raise NotImplementedError

    def _next_block(self) -> range:
        first = self._next_producer_id
        self._next_producer_id += BLOCK_SIZE
        return range(first, self._next_producer_id)
