"""The shell of the group machine: handles requests, answers, record appends and deadlines.

Each group has at most one timer. It is not moved when deadlines move back or end, as with every heartbeat, and checks
again when it fires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.groups import machine, members
from spark_2pc_sink.reference.groups.machine import GroupStep, Store
from spark_2pc_sink.reference.groups.members import Group, GroupState, JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from spark_2pc_sink.reference.groups.store import GroupKey, GroupStore
from spark_2pc_sink.reference.transactions.service import Background

#: The shortest sleep: deadlines are whole milliseconds.
_SLEEP_MS_MIN: Final = 1
#: Group records store text lengths as int16. A member id is an instance id and a suffix.
TEXT_BYTES_MAX: Final = 32_767 - 64


def is_group_id(group_id: str | None) -> bool:
    """False for the empty id, and for one too long for a record."""
    return bool(group_id) and _fits(group_id)


def _fits(text: str | None) -> bool:
    return len((text or "").encode()) <= TEXT_BYTES_MAX


class GroupService:
    def __init__(
        self,
        store: GroupStore,
        properties: BrokerProperties,
        *,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        new_member_id: Callable[[str], str] = lambda prefix: f"{prefix}-{uuid4()}",
    ) -> None:
        self.store = store
        self.properties = properties
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._new_member_id = new_member_id
        self._background = Background()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def load(self) -> None:
        self.store.load(self.properties, self._now())

    def start(self) -> None:
        for group_id in self.store.groups:
            self._arm(group_id)

    async def stop(self) -> None:
        """Stop the timers, answer every waiting request with NOT_COORDINATOR, and finish work in progress."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for group in self.store.groups.values():
            for member in group.members.values():
                _answer(member.join_ticket, JoinAnswer(code=Code.NOT_COORDINATOR, member_id=member.member_id))
                _answer(member.sync_ticket, SyncAnswer(code=Code.NOT_COORDINATOR))
        await self._background.stop()

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        code = self._join_refusal(group_id, request)
        if code is not Code.NONE:
            return JoinAnswer(code=code, member_id=request.member_id)
        now = self._now()
        known = self.store.groups.get(group_id)
        group = known or Group(group_id=group_id, state_since_ms=now.day_ms)
        ticket: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        step = machine.join(group, replace(request, ticket=ticket), self.properties, now, self._new_member_id)
        if known is None and not step.stores:
            step.stores.append(Store(group))
        self._take(step)
        return await ticket

    def _join_refusal(self, group_id: str, request: JoinRequest) -> Code:
        if not is_group_id(group_id):
            return Code.INVALID_GROUP_ID
        properties, session_ms = self.properties, request.session_timeout_ms
        if not properties.group_min_session_timeout_ms <= session_ms <= properties.group_max_session_timeout_ms:
            return Code.INVALID_SESSION_TIMEOUT
        names = (request.instance_id, request.protocol_type, *(name for name, _ in request.protocols))
        if not all(map(_fits, names)):
            # Kafka fails later, when it writes the group's record.
            return Code.UNKNOWN_SERVER_ERROR
        unknown = bool(request.member_id) and group_id not in self.store.groups
        return Code.UNKNOWN_MEMBER_ID if unknown else Code.NONE

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        if not is_group_id(group_id):
            return SyncAnswer(code=Code.INVALID_GROUP_ID)
        group = self.store.groups.get(group_id)
        if group is None:
            return SyncAnswer(code=Code.UNKNOWN_MEMBER_ID)
        ticket: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        self._take(machine.sync(group, replace(request, ticket=ticket), self.properties, self._now()))
        return await ticket

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Code:
        if not is_group_id(group_id):
            return Code.INVALID_GROUP_ID
        group = self.store.groups.get(group_id)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID
        self.store.groups[group_id], code = machine.heartbeat(group, member_id, instance_id, generation, self._now())
        self._arm(group_id)
        return code

    def leave(self, group_id: str, identities: Sequence[tuple[str, str | None]]) -> tuple[Code, tuple[Code, ...]]:
        if not is_group_id(group_id):
            return Code.INVALID_GROUP_ID, ()
        group = self.store.groups.get(group_id)
        if group is None:
            return Code.NONE, (Code.UNKNOWN_MEMBER_ID,) * len(identities)
        step, codes = machine.leave(group, identities, self.properties, self._now())
        self._take(step)
        return Code.NONE, codes

    def seen(self, group_id: str, member_id: str) -> None:
        """A member has committed offsets: restart its session, if the group's state has sessions."""
        group = self.store.groups.get(group_id)
        alive = {GroupState.STABLE, GroupState.PREPARING_REBALANCE}
        if group is not None and group.state in alive and member_id in group.members:
            self.store.groups[group_id] = machine.seen(group, member_id, self._now())
            self._arm(group_id)

    async def delete(self, group_ids: Iterable[str]) -> dict[str, Code]:
        codes = {group_id: self._delete(group_id) for group_id in group_ids}
        for group_id, code in codes.items():
            if code is Code.NONE:
                codes[group_id] = await self.store.durable(group_id)
        return codes

    def _delete(self, group_id: str) -> Code:
        group = self.store.groups.get(group_id)
        if group is None:
            return Code.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return Code.NON_EMPTY_GROUP
        keys = self.store.offsets(group_id).keys_of(group_id)
        code = self.store.append_tombstones(group_id, (*keys, GroupKey(group_id)))
        self._arm(group_id)
        return code

    def forget_topic(self, topic: str) -> None:
        for group_id in list(self.store.groups):
            keys = self.store.offsets(group_id).keys_of(group_id)
            self.store.append_tombstones(group_id, (key for key in keys if key.topic == topic))

    def _now(self) -> members.Now:
        return members.Now(self._steady_ms(), self._now_ms())

    def _arm(self, group_id: str) -> None:
        group = self.store.groups.get(group_id)
        deadline_ms = None if group is None else group.next_deadline_ms()
        if deadline_ms is None:
            return
        timer = self._timers.get(group_id)
        loop = asyncio.get_running_loop()
        when_s = loop.time() + max(deadline_ms - self._steady_ms(), _SLEEP_MS_MIN) / 1000
        if timer is not None:
            if timer.when() <= when_s:
                return
            timer.cancel()
        self._timers[group_id] = loop.call_at(when_s, self.expire, group_id)

    def expire(self, group_id: str) -> None:
        self._timers.pop(group_id, None)
        group = self.store.groups.get(group_id)
        if group is not None:
            self._take(machine.expire(group, self.properties, self._now()))

    def _take(self, step: GroupStep) -> None:
        """Apply a step; records are in the log before any other step of the group."""
        group_id = step.group.group_id
        self.store.groups[group_id] = step.group
        for ticket, answer in step.replies:
            _answer(ticket, answer)
        for store in step.stores:
            code = self.store.append(group_id, [(GroupKey(group_id), store.value)])
            self._background.run(self._stored(group_id, store, code))
        self._arm(group_id)

    async def _stored(self, group_id: str, store: Store, code: Code) -> None:
        if code is Code.NONE:
            code = await self.store.durable(group_id)
        group = self.store.groups.get(group_id)
        if group is not None:
            self._take(machine.stored(group, store, code, self.properties, self._now()))


def _answer(ticket: Any, answer: JoinAnswer | SyncAnswer) -> None:
    """Deliver an answer to its waiting request, unless the client has disconnected."""
    if ticket is not None and not ticket.done():
        ticket.set_result(answer)
