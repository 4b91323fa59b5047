"""A shell round the pure coordinator that keeps its log in a list: what the server does with files, without them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.events import (
    AddPartitionsToTxn,
    EndTxn,
    Event,
    InitProducerId,
    MarkersAnswered,
)
from spark_2pc_sink.reference.coordinator.machine import finish_loading, reserve, settle, step
from spark_2pc_sink.reference.coordinator.plans import (
    AddPartitionsReply,
    EndTxnReply,
    InitProducerIdReply,
    LogRecord,
    Plan,
    Reply,
    SendMarkers,
)
from spark_2pc_sink.reference.coordinator.states import (
    CoordinatorState,
    Profile,
    Settings,
    StateId,
    TransactionMetadata,
)

TID = "orders"
T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
PRODUCER_IDS = range(1000, 2000)
#: Where the clock of every driver starts; any number would do.
START_MS = 1_000_000

RELEASED = Settings(two_phase_commit_enable=True)
KEEPING = replace(RELEASED, profile=Profile.KEEP_PREPARED)
KEEPING_UNCHANGED = replace(RELEASED, profile=Profile.KEEP_UNCHANGED)


def who(pair: tuple[int, int], tid: str = TID) -> dict[str, Any]:
    """The fields by which a request names its producer."""
    return {"transactional_id": tid, "producer_id": pair[0], "producer_epoch": pair[1]}


def metadata(state: StateId, pair: tuple[int, int] = (42, 5), **changes: object) -> TransactionMetadata:
    """A transactional id in any state, with the other fields as Kafka would have them."""
    open_ = state not in (StateId.EMPTY, StateId.COMPLETE_COMMIT, StateId.COMPLETE_ABORT)
    fields: dict[str, object] = {
        "transactional_id": TID,
        "producer_id": pair[0],
        "producer_epoch": pair[1],
        "timeout_ms": 60_000,
        "state": state,
        "last_update_ms": START_MS,
        "previous_producer_id": pair[0],
        "partitions": frozenset({T0}) if open_ else frozenset(),
        "start_ms": -1 if state is StateId.EMPTY else START_MS,
        "client_transaction_version": 2,
    }
    return TransactionMetadata(**(fields | changes))  # type: ignore[arg-type]


@dataclass
class Driver:
    """Steps events, appends records to a list, and keeps the effects until a test wants them carried out."""

    state: CoordinatorState
    now_ms: int = START_MS
    log: list[LogRecord] = field(default_factory=list)
    effects: deque[SendMarkers] = field(default_factory=deque)
    #: Code of the next appends; 0 is durable.
    append_code: int = 0

    @classmethod
    def of(
        cls, *known: TransactionMetadata, settings: Settings = RELEASED, producer_ids: range = PRODUCER_IDS
    ) -> Driver:
        """A coordinator that knows some ids, with an empty log."""
        state = CoordinatorState.new(settings, producer_ids=producer_ids, partition_count=3)
        for each in known:
            state = state.with_metadata(each.transactional_id, each)
        return cls(state)

    def store(self, known: TransactionMetadata) -> None:
        """Put an id into the state and the log."""
        tid, version = known.transactional_id, self.state.settings.log_version
        self.state = self.state.with_metadata(tid, known)
        index = self.state.partition_of(tid)
        self.log.append(LogRecord(partition=index, transactional_id=tid, value=known, version=version))

    def plan(self, event: Event) -> Plan:
        """Step and reserve, and leave the append under way."""
        plan = step(self.state, event, self.now_ms)
        self.state = reserve(self.state, plan)
        return plan

    def finish(self, plan: Plan) -> Reply | None:
        """Append and settle."""
        settled = settle(self.state, plan, self.append_code if plan.records else 0)
        if not self.append_code:
            self.log.extend(plan.records)
        self.state = settled.state
        self.effects.extend(settled.effects)
        return settled.reply

    def do(self, event: Event) -> Reply | None:
        """One event from its step to its reply; effects wait."""
        return self.finish(self.plan(event))

    def refused(self, event: Event) -> Reply | None:
        """The reply to an event that must change nothing: no record, no effect, the state equal to before."""
        before = self.state
        plan = self.plan(event)
        reply = self.finish(plan)
        assert (plan.records, plan.effects) == ((), ())
        assert self.state == before
        return reply

    def run(self, event: Event) -> Reply | None:
        """One event, and everything that follows from it, with every leader writing its markers."""
        reply = self.do(event)
        self.drain()
        return reply

    def drain(self) -> list[SendMarkers]:
        """Carry out all effects; the markers that were sent."""
        sent: list[SendMarkers] = []
        for _ in range(1000):
            if not self.effects:
                return sent
            effect = self.effects.popleft()
            sent += [effect] if effect.partitions else []
            self.do(answered(effect, dict.fromkeys(effect.partitions, 0)))
        raise AssertionError("effects without end")

    def init(self, tid: str | None = TID, **fields: Any) -> InitProducerIdReply:
        """InitProducerId, with everything that follows."""
        reply = self.run(InitProducerId(transactional_id=tid, **fields))
        assert isinstance(reply, InitProducerIdReply)
        return reply

    def add(self, pair: tuple[int, int], *partitions: TopicPartition, **fields: Any) -> set[int]:
        """AddPartitionsToTxn; the set of codes."""
        reply = self.run(AddPartitionsToTxn(**who(pair), partitions=partitions or (T0,), **fields))
        assert isinstance(reply, AddPartitionsReply)
        return set(reply.codes.values())

    def end(self, pair: tuple[int, int], *, commit: bool = True, version: int = 5) -> EndTxnReply:
        """EndTxn, with everything that follows."""
        reply = self.run(end(pair, commit=commit, version=version))
        assert isinstance(reply, EndTxnReply)
        return reply

    def get(self, tid: str = TID) -> TransactionMetadata:
        found = self.state.get(tid)
        assert found is not None
        return found

    def crashed(self, upto: int | None = None) -> Driver:
        """A new coordinator from the bytes of a prefix of the log, on the next block of producer ids."""
        prefix = self.log if upto is None else self.log[:upto]
        records = [LogRecord.decode(each.partition, each.key_bytes, each.value_bytes) for each in prefix]
        first = self.state.producer_ids.stop + 1_000_000
        state = CoordinatorState.new(
            self.state.settings,
            producer_ids=range(first, first + 1000),
            partition_count=len(self.state.partitions),
        )
        effects: deque[SendMarkers] = deque()
        for index in range(len(state.partitions)):
            own = [each for each in records if each.partition == index]
            epoch = self.state.partitions[index].coordinator_epoch + 1
            state, owed = finish_loading(state, index, coordinator_epoch=epoch, records=own)
            effects.extend(owed)
        return Driver(state, self.now_ms, records, effects)


def end(pair: tuple[int, int], *, tid: str = TID, commit: bool = True, version: int = 5) -> EndTxn:
    return EndTxn(**who(pair, tid), commit=commit, version=version)


def answered(effect: SendMarkers, results: dict[TopicPartition, int]) -> MarkersAnswered:
    """What leaders say to markers."""
    return MarkersAnswered(
        transactional_id=effect.transactional_id,
        producer_id=effect.producer_id,
        producer_epoch=effect.producer_epoch,
        results=results,
    )
