"""What must hold of a group whatever its members do, and however late records become durable.

- There is one generation at a time: all that are told of one hear the same protocol and leader, and of its members
  only the leader hears the others.
- A group has a leader exactly when it has members, and one of them it is.
- In a stable group whoever synced got the part that the leader of that generation gave it; whoever did not is waited
  for no longer than the rebalance timeout.
- Every request is answered once, and in bounded time, whether anybody does anything more or not.
- The record of a generation gives back the group that wrote it.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.groups import machine
from spark_2pc_sink.reference.groups.machine import GroupStep, Store
from spark_2pc_sink.reference.groups.members import (
    Group,
    GroupState,
    JoinAnswer,
    JoinRequest,
    Now,
    Protocols,
    SyncAnswer,
    SyncRequest,
)
from spark_2pc_sink.reference.groups.store import decode_group, encode_value

CONSUMER = (("range", b"r"), ("roundrobin", b"rr"))


class GroupScript:
    """One group; tickets are the numbers of the requests, in the order in which they were made."""

    def __init__(self, settings: BrokerProperties | None = None) -> None:
        self.settings = settings or BrokerProperties(group_initial_rebalance_delay_ms=0)
        self.group = Group(group_id="g")
        self.now_ms = 0
        self.answers: dict[object, JoinAnswer | SyncAnswer] = {}
        self.unstored: list[Store] = []
        self.stored: list[Store] = []
        self._tickets = count(1)
        self._ids = count(1)

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms)

    def take(self, step: GroupStep) -> None:
        self.group = step.group
        for ticket, answer in step.replies:
            assert ticket not in self.answers, "answered twice"
            self.answers[ticket] = answer
        self.unstored.extend(step.stores)

    def durable(self, code: Code = Code.NONE) -> None:
        while self.unstored:
            store = self.unstored.pop(0)
            self.stored.append(store)
            self.take(machine.stored(self.group, store, code, self.settings, self.now))

    def pass_ms(self, span_ms: int) -> None:
        """Let time pass, from deadline to deadline."""
        end_ms = self.now_ms + span_ms
        while (deadline_ms := self.group.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            # A deadline that is put off by nothing is met a millisecond later: time does not stand still.
            self.now_ms = max(deadline_ms, self.now_ms)
            self.take(machine.expire(self.group, self.settings, self.now))
            if self.group.next_deadline_ms() == deadline_ms:
                self.now_ms += 1
        self.now_ms = max(self.now_ms, end_ms)

    def ask_join(self, member_id: str = "", **fields: Any) -> int:
        """JoinGroup; the ticket."""
        ticket = next(self._tickets)
        wanted: dict[str, Any] = {"protocols": CONSUMER, "session_timeout_ms": 10_000, "client_id": "c", **fields}
        request = JoinRequest(ticket=ticket, member_id=member_id, **wanted)
        self.take(
            machine.join(self.group, request, self.settings, self.now, lambda prefix: f"{prefix}-{next(self._ids)}")
        )
        return ticket

    def ask_sync(self, member_id: str, generation: int | None = None, **fields: Any) -> int:
        """SyncGroup; the ticket."""
        ticket = next(self._tickets)
        number = self.group.generation if generation is None else generation
        request = SyncRequest(ticket=ticket, member_id=member_id, generation=number, **fields)
        self.take(machine.sync(self.group, request, self.settings, self.now))
        return ticket

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> Code:
        number = self.group.generation if generation is None else generation
        self.group, code = machine.heartbeat(self.group, member_id, instance_id, number, self.now)
        return code

    def leave(self, *identities: tuple[str, str | None]) -> tuple[Code, ...]:
        step, codes = machine.leave(self.group, identities, self.settings, self.now)
        self.take(step)
        return codes

    def joined(self, ticket: int) -> JoinAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, ticket: int) -> SyncAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncAnswer)
        return answer

    def assign(self, leader: str, **fields: Any) -> int:
        """The leader gives every member its own id in bytes, and the record becomes durable."""
        parts = {member_id: member_id.encode() for member_id in self.group.members}
        ticket = self.ask_sync(leader, assignments=parts, **fields)
        self.durable()
        return ticket


SESSION_MS = 10_000
REBALANCE_MS = 30_000
#: A first join may wait for the new member's timeout; then come a rebalance, a sync and a session, once each.
ANSWERED_WITHIN_MS = 300_000 + 2 * REBALANCE_MS + SESSION_MS
RANGE: Protocols = (("range", b"r"), ("sticky", b"s"))
STICKY: Protocols = (("sticky", b"s2"),)
protocols = st.sampled_from([RANGE, STICKY, (("sticky", b"s"), ("range", b"r"))])
#: Which of the members, by a number that is taken modulo how many there are.
some = st.integers(0, 5)


class Recorder(GroupScript):
    """Keeps what every generation was said to be, and what the leaders assigned."""

    def __init__(self) -> None:
        super().__init__(BrokerProperties(group_initial_rebalance_delay_ms=3_000, group_max_size=4))
        self.generations: dict[int, tuple[str | None, str]] = {}
        self.assigned: dict[tuple[int, str], set[bytes]] = {}
        self.asked_at_ms: dict[int, int] = {}
        self.syncing: dict[int, str] = {}

    def take(self, step: GroupStep) -> None:
        super().take(step)
        for ticket, answer in step.replies:
            if isinstance(answer, JoinAnswer) and answer.code is Code.NONE:
                self._joined(answer)
            if isinstance(answer, SyncAnswer) and answer.code is Code.NONE:
                self._synced(self.syncing[ticket], answer)  # type: ignore[index]

    def _joined(self, answer: JoinAnswer) -> None:
        assert answer.generation == self.group.generation
        protocol, leader = self.generations.setdefault(answer.generation, (answer.protocol, answer.leader))
        assert answer.protocol == protocol
        if answer.members and not answer.skip_assignment:
            assert answer.leader == answer.member_id
        # A static leader that came back has another member id in the same generation.
        assert answer.leader == leader or self.group.static_member("i1") or self.group.static_member("i2")

    def _synced(self, member_id: str, answer: SyncAnswer) -> None:
        group = self.group
        assert group.state is GroupState.STABLE
        assert member_id not in group.pending_sync
        assert answer.protocol == group.protocol
        given = set().union(*(parts for (number, _), parts in self.assigned.items() if number == group.generation))
        assert answer.assignment in given | {b""}


class GroupRules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.script = Recorder()
        self.ids: list[str] = []

    def chosen(self, number: int) -> str:
        return self.ids[number % len(self.ids)] if self.ids else "nobody"

    def instance_of(self, member_id: str) -> str | None:
        member = self.script.group.members.get(member_id)
        return None if member is None else member.instance_id

    def asked(self, ticket: int) -> None:
        self.script.asked_at_ms[ticket] = self.script.now_ms
        answer = self.script.answers.get(ticket)
        if isinstance(answer, JoinAnswer) and answer.member_id and answer.member_id not in self.ids:
            self.ids.append(answer.member_id)
        self.ids += [key for key in self.script.group.members if key not in self.ids]

    def join(self, member_id: str, **fields: Any) -> None:
        timeouts = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS}
        self.asked(self.script.ask_join(member_id, **timeouts, **fields))

    @rule(protocols=protocols, version=st.sampled_from([3, 9]))
    def a_stranger_joins(self, protocols: Protocols, version: int) -> None:
        self.join("", protocols=protocols, version=version)

    @rule(protocols=protocols, name=st.sampled_from(["i1", "i2"]), version=st.sampled_from([8, 9]))
    def a_static_member_joins(self, protocols: Protocols, name: str, version: int) -> None:
        self.join("", protocols=protocols, instance_id=name, version=version)

    @rule(number=some, protocols=protocols)
    def a_member_joins(self, number: int, protocols: Protocols) -> None:
        member_id = self.chosen(number)
        self.join(member_id, protocols=protocols, instance_id=self.instance_of(member_id))

    @rule(number=some, back=st.sampled_from([0, 0, 0, 1]))
    def a_member_syncs(self, number: int, back: int) -> None:
        member_id, group = self.chosen(number), self.script.group
        generation = group.generation - back
        tag = f"{len(self.script.asked_at_ms)}:".encode()
        parts = {key: tag + key.encode() for key in list(group.members)[:3]}
        if group.leader == member_id:
            self.script.assigned.setdefault((generation, member_id), set()).update(parts.values())
        self.script.syncing[len(self.script.asked_at_ms) + 1] = member_id
        ticket = self.script.ask_sync(member_id, generation, instance_id=self.instance_of(member_id), assignments=parts)
        self.asked(ticket)

    @rule(number=some)
    def a_member_beats(self, number: int) -> None:
        self.script.heartbeat(self.chosen(number), instance_id=self.instance_of(self.chosen(number)))

    @rule(numbers=st.lists(some, min_size=1, max_size=3))
    def members_leave(self, numbers: list[int]) -> None:
        self.script.leave(*((self.chosen(number), self.instance_of(self.chosen(number))) for number in numbers))

    @rule(span_ms=st.sampled_from([0, 1, 2_999, 5_000, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, span_ms: int) -> None:
        self.script.pass_ms(span_ms)

    @precondition(lambda self: self.script.unstored)
    @rule(code=st.sampled_from([Code.NONE, Code.NONE, Code.NONE, Code.NOT_COORDINATOR]))
    def records_become_durable(self, code: Code) -> None:
        self.script.durable(code)

    @invariant()
    def a_group_with_members_has_one_of_them_as_its_leader(self) -> None:
        group = self.script.group
        assert (group.leader in group.members) if group.members else group.leader is None
        assert (group.state is GroupState.EMPTY) <= (not group.members)
        assert group.members or group.state in {GroupState.EMPTY, GroupState.PREPARING_REBALANCE}
        assert group.pending.keys().isdisjoint(group.members)

    @invariant()
    def whoever_has_not_synced_is_waited_for_with_a_limit(self) -> None:
        group = self.script.group
        assert group.pending_sync <= group.members.keys()
        assert not group.pending_sync or group.sync_deadline_ms is not None
        if group.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            assert group.join_timer is None
        else:
            assert not group.pending_sync
            assert all(member.sync_ticket is None for member in group.members.values())

    @invariant()
    def every_request_is_answered_or_waits_in_the_group(self) -> None:
        waiting = {
            ticket
            for member in self.script.group.members.values()
            for ticket in (member.join_ticket, member.sync_ticket)
            if ticket is not None
        }
        assert waiting == self.script.asked_at_ms.keys() - self.script.answers.keys()
        assert not waiting or self.script.unstored or self.script.group.next_deadline_ms() is not None

    @invariant()
    def a_stable_generation_survives_a_restart(self) -> None:
        group = self.script.group
        if group.state is not GroupState.STABLE:
            return
        stored = encode_value(group)
        loaded = machine.loaded(decode_group("g", stored), BrokerProperties(), Now(0, 0)).group
        assert (loaded.state, loaded.generation, loaded.leader) == (group.state, group.generation, group.leader)
        assert encode_value(loaded) == stored

    def teardown(self) -> None:
        """Nobody does anything more: records become durable, time passes, and everybody is answered."""
        self.script.durable()
        self.script.pass_ms(ANSWERED_WITHIN_MS)
        self.script.durable()
        self.script.pass_ms(ANSWERED_WITHIN_MS)
        assert self.script.asked_at_ms.keys() == self.script.answers.keys()
        assert (self.script.group.state, dict(self.script.group.members)) == (GroupState.EMPTY, {})
        assert self.script.group.next_deadline_ms() is None


TestGroupRules = GroupRules.TestCase
TestGroupRules.settings = settings(stateful_step_count=40, suppress_health_check=list(HealthCheck))


def stable_pair(script: GroupScript) -> tuple[str, str]:
    """A stable group of the static members a and b, in which a leads; both are known by their member ids."""
    tickets = [script.ask_join(instance_id=name) for name in ("a", "b")]
    script.pass_ms(0)
    one, two = (script.joined(ticket).member_id for ticket in tickets)
    script.ask_sync(two, instance_id="b")
    script.assign(one, instance_id="a")
    assert script.group.state is GroupState.STABLE
    return one, two


def test_a_follower_that_comes_back_gets_its_part_without_a_rebalance() -> None:
    script = GroupScript()
    one, two = stable_pair(script)
    ticket = script.ask_join(instance_id="b", version=8)
    assert ticket not in script.answers
    script.durable()
    answer = script.joined(ticket)
    assert (answer.generation, answer.leader, answer.members) == (1, one, ())
    assert answer.member_id not in {one, two}
    assert script.group.state is GroupState.STABLE
    assert script.synced(script.ask_sync(answer.member_id, instance_id="b")).assignment == two.encode()
    assert set(script.stored[-1].value.members) == {one, answer.member_id}


def test_a_leader_that_comes_back_is_told_to_skip_the_assignment() -> None:
    """KIP-814: 'the leader must skip running the assignment', from JoinGroup v9 on."""
    script = GroupScript()
    stable_pair(script)
    ticket = script.ask_join(instance_id="a", version=9)
    script.durable()
    answer = script.joined(ticket)
    assert (answer.skip_assignment, answer.leader, len(answer.members)) == (True, answer.member_id, 2)


def test_the_replaced_member_is_fenced() -> None:
    script = GroupScript()
    _, two = stable_pair(script)
    script.ask_join(instance_id="b")
    script.durable()
    assert script.heartbeat(two, instance_id="b") is Code.FENCED_INSTANCE_ID
    assert script.synced(script.ask_sync(two, instance_id="b")).code is Code.FENCED_INSTANCE_ID
    assert script.joined(script.ask_join(two, instance_id="b")).code is Code.FENCED_INSTANCE_ID
    assert script.leave((two, "b")) == (Code.FENCED_INSTANCE_ID,)
    assert script.heartbeat(two) is Code.UNKNOWN_MEMBER_ID
