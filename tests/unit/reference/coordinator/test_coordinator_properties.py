"""What must hold of the coordinator whatever happens, in whatever order, with crashes at any point.

- A transaction's own pair is constant while it is open, and every keep hands out a pair that was never handed out.
- Exactly one pair can end an open transaction: the one handed out last.
- A marker carries the epoch after the transaction's, and what is decided is completed the same way.
- A completed id is past every pair handed out before.
- The bytes of any prefix of the log give back exactly what was put in place when its last record became durable, and
  a coordinator loaded from the whole log gives the answers of the one that wrote it.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import EPOCH_LIMIT, TIMEOUT_NEVER_MS, TopicPartition
from spark_2pc_sink.reference.coordinator.end_txn import due_expirations, due_timeouts
from spark_2pc_sink.reference.coordinator.events import AddPartitionsToTxn, EndTxn, Event, InitProducerId
from spark_2pc_sink.reference.coordinator.machine import replay, step
from spark_2pc_sink.reference.coordinator.plans import (
    EndTxnReply,
    InitProducerIdReply,
    Plan,
    Reply,
    SendMarkers,
)
from spark_2pc_sink.reference.coordinator.states import (
    COMPLETION,
    DECIDED,
    NO_EPOCH,
    PREDECESSORS,
    CoordinatorState,
    Marking,
    Pair,
    StateId,
    TransactionMetadata,
)
from tests.unit.reference.coordinator.driver import KEEPING, START_MS, Driver, answered, end, metadata, who

NAMES = ("alpha", "beta")
PARTITIONS = tuple(TopicPartition("t", index) for index in range(3))
#: Epochs where something happens: the first, an ordinary one, and those around the overflow.
EPOCHS = st.sampled_from([0, 100, 32763, 32764, 32765, 32766])
FATES = st.sampled_from(["durable", "durable", "durable", "fails", "in flight"])
MARKER_CODES = st.sampled_from([0, 0, 0, 0, 56, 47])


def forgetful(known: TransactionMetadata | None) -> TransactionMetadata | None:
    """The metadata without what lives in memory only."""
    if known is None:
        return None
    pending = COMPLETION.get(known.state)
    return replace(known, last_producer_epoch=NO_EPOCH, pending=pending, marking=Marking.SENDING)


class Coordinator(RuleBasedStateMachine):
    """Clients, zombies, leaders, clocks and crashes round one coordinator."""

    @initialize(epoch=EPOCHS, level=st.sampled_from([2, 2, 2, 1]), opening=st.sampled_from(["at rest", "open", "kept"]))
    def start(self, epoch: int, level: int, opening: str) -> None:
        """One id is known already, so that overflows and kept transactions are near; the other is new."""
        state = StateId.EMPTY if opening == "at rest" else StateId.ONGOING
        known = replace(metadata(state, (7, epoch)), transactional_id=NAMES[0])
        known = replace(known, client_transaction_version=2 if level == 2 else 0)
        self.handed: dict[str, list[Pair]] = {NAMES[0]: [known.pair], NAMES[1]: []}
        if opening == "kept":
            known = replace(known, next_producer_id=8, next_producer_epoch=epoch, timeout_ms=TIMEOUT_NEVER_MS)
            self.handed[NAMES[0]].append(Pair(8, epoch))
        self.driver = Driver.of(settings=replace(KEEPING, transaction_version=level), producer_ids=range(1000, 1009))
        self.driver.store(known)
        #: What was put in place with each record of the log.
        self.applied: list[tuple[str, TransactionMetadata | None]] = [(NAMES[0], known)]
        self.flying: list[tuple[Event, Plan]] = []

    # --- clients ---------------------------------------------------------------------------------------------------

    @rule(data=st.data(), name=st.sampled_from(NAMES), keep=st.booleans(), two_phase=st.booleans(), fate=FATES)
    def init(self, data: st.DataObject, name: str, keep: bool, two_phase: bool, fate: str) -> None:
        held = data.draw(st.sampled_from([Pair(-1, -1), *self.handed[name][-3:]]), label="held")
        self.step(InitProducerId(**who(held, name), keep_prepared=keep, enable_2pc=two_phase), fate)

    @rule(
        data=st.data(), name=st.sampled_from(NAMES), partitions=st.sets(st.sampled_from(PARTITIONS)), fate=FATES,
        version=st.sampled_from([3, 5]),
    )  # fmt: skip
    def add(self, data: st.DataObject, name: str, partitions: set[TopicPartition], fate: str, version: int) -> None:
        pair = self.someones_pair(data, name)
        event = AddPartitionsToTxn(**who(pair, name), partitions=tuple(sorted(partitions)), version=version)
        self.step(event, fate)

    @rule(
        data=st.data(),
        name=st.sampled_from(NAMES),
        commit=st.booleans(),
        version=st.sampled_from([5, 5, 4]),
        fate=FATES,
    )
    def ends(self, data: st.DataObject, name: str, commit: bool, version: int, fate: str) -> None:
        self.step(end(self.someones_pair(data, name), tid=name, commit=commit, version=version), fate)

    @rule(name=st.sampled_from(NAMES), what=st.sampled_from(["keep", "add", "commit", "abort", "renew"]))
    def honest(self, name: str, what: str) -> None:
        """The newest producer goes on with its work, and nothing goes wrong: the way into the deeper states."""
        newest = self.handed[name][-1] if self.handed[name] else Pair(-1, -1)
        event: Event
        if what in {"keep", "renew"} or newest.epoch < 0:
            event = InitProducerId(transactional_id=name, keep_prepared=what == "keep", enable_2pc=True)
        elif what == "add":
            event = AddPartitionsToTxn(**who(newest, name), partitions=PARTITIONS[:2])
        else:
            event = end(newest, tid=name, commit=what == "commit")
        self.step(event, "durable")

    @precondition(lambda self: self.driver.effects)
    @rule()
    def leaders_answer(self) -> None:
        """All markers that wait are written."""
        waiting = list(self.driver.effects)
        self.driver.effects.clear()
        for effect in waiting:
            self.check_marker(effect)
            self.step(answered(effect, dict.fromkeys(effect.partitions, 0)), "durable")

    def someones_pair(self, data: st.DataObject, name: str) -> Pair:
        """Mostly the newest pair, sometimes that of a zombie."""
        pairs = self.handed[name][-4:] or [Pair(5, 5)]
        return data.draw(st.sampled_from([*pairs, pairs[-1], pairs[-1]]), label="pair")

    # --- leaders and time ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.driver.effects)
    @rule(data=st.data(), fate=FATES)
    def carry_out(self, data: st.DataObject, fate: str) -> None:
        """One of the effects that wait, sometimes once more than needed."""
        effect = data.draw(st.sampled_from(list(self.driver.effects)), label="effect")
        if data.draw(st.integers(0, 3), label="again if 0") != 0:
            self.driver.effects.remove(effect)
        self.check_marker(effect)
        results = {each: data.draw(MARKER_CODES) for each in effect.partitions}
        self.step(answered(effect, results), fate)

    @rule(elapsed_ms=st.sampled_from([1, 1, 1, 60_001, 700_000_000, 3_000_000_000]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.driver.now_ms += elapsed_ms
        for timeout in due_timeouts(self.driver.state, self.driver.now_ms):
            assert self.driver.get(timeout.transactional_id).timeout_ms != TIMEOUT_NEVER_MS
            self.step(timeout, "durable")
        for expiry in due_expirations(self.driver.state, self.driver.now_ms):
            self.step(expiry, "durable")

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), fails=st.booleans())
    def land(self, data: st.DataObject, fails: bool) -> None:
        """An append that was under way comes to its end."""
        index = data.draw(st.integers(0, len(self.flying) - 1), label="which")
        event, plan = self.flying.pop(index)
        self.finish(event, plan, "fails" if fails else "durable")

    # --- crashes ---------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """Whatever is under way is lost, or durable without anybody having been told."""
        for _, plan in self.flying:
            if data.draw(st.booleans(), label="durable"):
                self.settle(plan, 0)
        self.flying.clear()
        self.check_prefix(data.draw(st.integers(0, len(self.driver.log)), label="prefix"))
        self.driver = self.driver.crashed()

    def check_prefix(self, upto: int) -> None:
        """What any prefix of the log gives back is what was in place when its last record became durable."""
        expected = {name: forgetful(known) for name, known in self.applied[:upto]}
        loaded = self.driver.crashed(upto).state
        assert {name: forgetful(loaded.get(name)) for name in expected} == expected
        assert {known.transactional_id for known in loaded} == {name for name, known in expected.items() if known}

    # --- the shell -------------------------------------------------------------------------------------------------

    def step(self, event: Event, fate: str) -> None:
        if not self.driver.state.producer_ids:
            first = self.driver.state.producer_ids.stop + 991
            self.driver.state = replace(self.driver.state, producer_ids=range(first, first + 9))
        before = self.driver.state
        plan = self.driver.plan(event)
        if plan.records:
            known = before.get(plan.records[0].transactional_id)
            assert known is None or known.pending is None or known.state in DECIDED
        if not plan.records and plan.unwritten is None and plan.producer_ids is None:
            assert self.driver.state == before
        if fate == "in flight" and plan.records:
            self.flying.append((event, plan))
        else:
            self.finish(event, plan, "fails" if fate == "fails" else "durable")

    def finish(self, event: Event, plan: Plan, fate: str) -> None:
        code = Code.KAFKA_STORAGE_ERROR if fate == "fails" and plan.records else 0
        name = plan.records[0].transactional_id if plan.records else None
        before = None if name is None else self.driver.state.get(name)
        reply = self.settle(plan, code)
        after = None if name is None else self.driver.state.get(name)
        if name is None:
            self.learn(event, reply)
            return
        if code:
            self.check_failed(before, after)
            return
        self.check_change(event, before, after)
        self.hand_out(event, reply, before)

    def learn(self, event: Event, reply: Reply | None) -> None:
        """The retry of an EndTxn may tell a pair that nobody had yet: after a fence, the one past its own."""
        if isinstance(event, EndTxn) and isinstance(reply, EndTxnReply) and reply.pair.producer_id >= 0:
            mine = self.handed[event.transactional_id]
            if reply.pair not in mine:
                mine.append(reply.pair)

    def settle(self, plan: Plan, code: int) -> Reply | None:
        self.driver.append_code = code
        reply = self.driver.finish(plan)
        self.driver.append_code = 0
        if not code:
            self.applied += [
                (each.transactional_id, self.driver.state.get(each.transactional_id)) for each in plan.records
            ]
        return reply

    def hand_out(self, event: Event, reply: Reply | None, before: TransactionMetadata | None) -> None:
        """A pair that is given with a change is new to everybody, unless it is the retry of an InitProducerId."""
        if not isinstance(reply, InitProducerIdReply | EndTxnReply) or reply.code or reply.pair.producer_id < 0:
            return
        assert isinstance(event, InitProducerId | EndTxn)
        assert event.transactional_id is not None
        assert before is not None
        at_rest = before.state is not StateId.ONGOING
        retried = isinstance(event, InitProducerId) and reply.pair == before.pair and at_rest
        everyone = [pair for pairs in self.handed.values() for pair in pairs]
        assert retried or reply.pair not in everyone
        assert reply.pair.epoch <= 32766
        mine = self.handed[event.transactional_id]
        assert retried or not mine or reply.pair > mine[-1]
        mine.append(reply.pair)

    # --- what must hold --------------------------------------------------------------------------------------------

    def check_failed(self, before: TransactionMetadata | None, after: TransactionMetadata | None) -> None:
        """A failed append leaves what was there, with nothing pending but an owed completion."""
        assert before is not None
        assert after is not None
        assert forgetful(before) == forgetful(after)
        assert after.pending is (COMPLETION.get(after.state))

    def check_change(self, event: Event, before: TransactionMetadata | None, after: TransactionMetadata | None) -> None:
        assert before is not None
        if after is None:
            assert before.state not in {StateId.ONGOING, *DECIDED}
            return
        legal = PREDECESSORS[after.state] | ({StateId.ONGOING} if after.state is StateId.PREPARE_ABORT else set())
        assert before.state in legal
        if before.state is after.state is StateId.ONGOING:
            assert (before.pair, before.start_ms) == (after.pair, after.start_ms)
            granted = isinstance(event, InitProducerId) and event.enable_2pc
            assert after.timeout_ms == (TIMEOUT_NEVER_MS if granted else before.timeout_ms)
            assert isinstance(event, InitProducerId) or not before.kept
            assert isinstance(event, InitProducerId) or before.client_pair == after.client_pair
        if isinstance(event, InitProducerId) and before.kept and event.held is not None:
            assert event.held >= max(self.handed[before.transactional_id])
        if after.state in DECIDED and (after.client_transaction_version >= 2 or not isinstance(event, EndTxn)):
            # A fence below transaction.version 2 may leave the last epoch of all; an abort from there keeps it.
            assert after.pair == (before.producer_id, min(before.producer_epoch + 1, EPOCH_LIMIT))
        elif after.state in DECIDED:
            assert after.pair == before.pair
        if after.state in COMPLETION.values():
            assert after.state is COMPLETION[before.state]
            mine = self.handed[after.transactional_id]
            assert not mine or after.pair >= mine[-1]

    def check_marker(self, effect: SendMarkers) -> None:
        """A marker never says anything else than the record that decided."""
        known = self.driver.state.get(effect.transactional_id)
        if known is not None and known.pair == (effect.producer_id, effect.producer_epoch) and known.state in DECIDED:
            assert effect.commit is (known.state is StateId.PREPARE_COMMIT)

    @invariant()
    def exactly_one_pair_can_end_an_open_transaction(self) -> None:
        """It is the newest that was handed out, or one whose answer was lost in a crash."""
        for known in self.driver.state:
            if known.state is not StateId.ONGOING or known.pending is not None:
                continue
            mine = self.handed[known.transactional_id]
            able = [
                pair
                for pair in {*mine, known.pair, known.client_pair}
                if self.answer(known.transactional_id, pair) in {Code.NONE, Code.COORDINATOR_LOAD_IN_PROGRESS}
            ]
            assert len(able) == 1
            assert able[0] >= max(mine, default=able[0])

    def answer(self, name: str, pair: Pair) -> int:
        reply = step(self.driver.state, end(pair, tid=name, commit=False), START_MS).reply
        assert isinstance(reply, EndTxnReply)
        return reply.code

    @invariant()
    def a_loaded_coordinator_gives_the_same_answers(self) -> None:
        """To every EndTxn of every pair, where nothing is pending; InitProducerId may forget its last epoch."""
        ids = range(9_000_000, 9_001_000)
        fresh = CoordinatorState.new(self.driver.state.settings, partition_count=3, producer_ids=ids)
        loaded = replay(fresh, self.driver.log)
        for name in NAMES:
            known = self.driver.state.get(name)
            if known is None or known.pending is not None or known.producer_epoch == NO_EPOCH:
                continue
            assert forgetful(known) == forgetful(loaded.get(name))
            live = replace(self.driver.state, producer_ids=fresh.producer_ids)
            for pair in {*self.handed[name][-4:], known.pair, known.client_pair}:
                for commit in (True, False):
                    event = end(pair, tid=name, commit=commit)
                    assert step(live, event, START_MS).reply == step(loaded, event, START_MS).reply

    def teardown(self) -> None:
        """Crash and replay after every prefix of the log."""
        for upto in range(len(self.driver.log) + 1):
            self.check_prefix(upto)


TestCoordinator = Coordinator.TestCase
TestCoordinator.settings = settings(stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
