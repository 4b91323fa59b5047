"""A group driven by hand: every request by name, time by a number, records durable when the script says so."""

from __future__ import annotations

from itertools import count
from typing import Any

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.groups import machine
from spark_2pc_sink.reference.groups.machine import GroupStep, Store
from spark_2pc_sink.reference.groups.members import Group, JoinAnswer, JoinRequest, Now, SyncAnswer, SyncRequest

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
        self.take(machine.join(self.group, request, self.settings, self.now, self._new_id))
        return ticket

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self._ids)}"

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
