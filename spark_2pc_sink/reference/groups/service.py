"""The shell of the group machine: handles requests, answers, record appends and deadlines.

Each group has at most one timer. It is not moved when deadlines move back, as with every heartbeat, and checks
again when it fires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias
from uuid import uuid4

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.leader_answers import OFFSETS_ADD_VERSION
from spark_2pc_sink.reference.coordinator.states import Pair
from spark_2pc_sink.reference.groups import machine
from spark_2pc_sink.reference.groups.machine import GroupStep, Store
from spark_2pc_sink.reference.groups.members import (
    Group,
    GroupState,
    JoinAnswer,
    JoinRequest,
    Now,
    SyncAnswer,
    SyncRequest,
)
from spark_2pc_sink.reference.groups.records import GroupKey, GroupValue, OffsetKey, OffsetValue
from spark_2pc_sink.reference.groups.store import GroupStore
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.log.producer_state import VerificationGuard, Writer
from spark_2pc_sink.reference.transactions.service import Background

#: The shortest sleep: deadlines are whole milliseconds.
_SLEEP_MS_MIN: Final = 1
_MINUTE_MS: Final = 60_000
# First versions of OffsetCommit (of KIP-848's protocol) and TxnOffsetCommit (KIP-1319) whose clients know that a group
# may no longer exist, and are answered GROUP_ID_NOT_FOUND.
_GROUP_GONE_VERSION: Final = 9
_TRANSACTION_GROUP_GONE_VERSION: Final = 6
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

    # --- life --------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the groups from the log; every loaded member gets a whole session."""
        self.store.load(self.properties, self._now())

    def start(self) -> None:
        for group_id in self.store.groups:
            self._arm(group_id)
        self._background.every(self.properties.offsets_retention_check_interval_ms, self.remove_expired)

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

    # --- requests ----------------------------------------------------------------------------------------------------

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
            step.stores.append(Store(GroupValue(state_since_ms=group.state_since_ms)))
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

    # --- time --------------------------------------------------------------------------------------------------------

    async def remove_expired(self) -> None:
        """Remove offsets unused for the retention time, and empty groups without offsets (KIP-211)."""
        now_ms = self._now_ms()
        for group in list(self.store.groups.values()):
            offsets = self.store.offsets(group.group_id)
            expired = offsets.expired(group, now_ms, self.properties.offsets_retention_minutes * _MINUTE_MS)
            kept = len(offsets.of_group(group.group_id)) > len(expired)
            done = not kept and not offsets.has_open_transactions(group.group_id)
            deleted = [GroupKey(group.group_id)] if done and group.state is GroupState.EMPTY else []
            self.store.append_tombstones(group.group_id, (*expired, *deleted))
            self._arm(group.group_id)

    def forget_topic(self, topic: str) -> None:
        for group_id in list(self.store.groups):
            keys = self.store.offsets(group_id).keys_of_topic(topic)
            self.store.append_tombstones(group_id, (key for key in keys if key.group_id == group_id))

    def _now(self) -> Now:
        return Now(self._steady_ms(), self._now_ms())

    def _arm(self, group_id: str) -> None:
        group = self.store.groups.get(group_id)
        deadline_ms = None if group is None else group.next_deadline_ms()
        timer = self._timers.get(group_id)
        if deadline_ms is None:
            if timer is not None:
                timer.cancel()
                del self._timers[group_id]
            return
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

    # --- outcomes ----------------------------------------------------------------------------------------------------

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


class OffsetVerification(Protocol):
    """Asks the transaction coordinator; ``server.verification``."""

    async def for_offsets(self, version: int, transactional_id: str, pair: Pair, partition: TopicPartition) -> int:
        """The code for a client that commits offsets in a transaction, 0 if they may be appended."""

    def is_sealed(self, pair: Pair) -> bool: ...


#: A committed offset, or none; UNSTABLE_OFFSET_COMMIT while a transaction may still change it (KIP-447).
FetchedOffset: TypeAlias = tuple[OffsetValue | None, Code]


class OffsetService:
    """Offsets of groups; a ``request`` is an OffsetCommit, or a TxnOffsetCommit, of kafka-python."""

    def __init__(self, groups: GroupService, verification: OffsetVerification, *, now_ms: Callable[[], int]) -> None:
        self._groups = groups
        self._store = groups.store
        self._verification = verification
        self._now_ms = now_ms

    def metadata_fits(self, metadata: str | None) -> bool:
        """False if the client's metadata is too long (OFFSET_METADATA_TOO_LARGE); counted in characters, as in Java."""
        units = len((metadata or "").encode("utf-16-be", "surrogatepass")) // 2
        return units <= self._groups.properties.offset_metadata_max_bytes

    async def commit(self, request: Any, offsets: Mapping[OffsetKey, OffsetValue], *, version: int) -> Code:
        code = self._check(request, knows_gone=version >= _GROUP_GONE_VERSION)
        if code is not Code.NONE:
            return code
        self._groups.seen(request.group_id, request.member_id)
        return await self._append(request.group_id, offsets)

    def _check(self, request: Any, *, knows_gone: bool, transactional: bool = False) -> Code:
        group = self._store.groups.get(request.group_id)
        if group is not None:
            return group.check_commit(request, transactional=transactional)
        unknown = Code.GROUP_ID_NOT_FOUND if knows_gone else Code.ILLEGAL_GENERATION
        return unknown if request.generation_id_or_member_epoch >= 0 else Code.NONE

    async def _append(
        self,
        group_id: str,
        offsets: Mapping[OffsetKey, OffsetValue],
        writer: Writer | None = None,
        guard: VerificationGuard | None = None,
    ) -> Code:
        if not offsets:
            return Code.NONE
        code = self._store.append(group_id, list(offsets.items()), writer=writer, guard=guard)
        return await self._store.durable(group_id) if code is Code.NONE else code

    async def commit_in_transaction(
        self, request: Any, offsets: Mapping[OffsetKey, OffsetValue], *, version: int
    ) -> Code:
        """TxnOffsetCommit; the offsets are durable when it returns, and pending until the transaction ends."""
        if not is_group_id(request.group_id):
            return Code.INVALID_GROUP_ID
        log = self._store.log(request.group_id)
        if log is None:
            return Code.COORDINATOR_NOT_AVAILABLE
        writer = Writer(request.producer_id, request.producer_epoch)
        code, guard = await self._admitted(log, writer, request, version)
        if code:
            return code
        code = self._check(request, knows_gone=version >= _TRANSACTION_GROUP_GONE_VERSION, transactional=True)
        return code or await self._append(request.group_id, offsets, writer, guard)

    async def _admitted(
        self, log: PartitionLog, writer: Writer, request: Any, version: int
    ) -> tuple[Code, VerificationGuard | None]:
        """Whether the transaction may write to the group's partition, and the guard for that permission."""
        pair, bumps = Pair(request.producer_id, request.producer_epoch), version >= OFFSETS_ADD_VERSION
        started = log.start_verification(writer, supports_epoch_bump=bumps, now_ms=self._now_ms())
        code, guard = (Code.NONE, started) if isinstance(started, VerificationGuard) else (started, None)
        if guard is not None:
            partition = TopicPartition(GROUP_OFFSETS, self._store.partition_of(request.group_id))
            code = Code(await self._verification.for_offsets(version, request.transactional_id, pair, partition))
        if not code and self._verification.is_sealed(pair):
            code = Code.INVALID_PRODUCER_EPOCH
        return code, guard

    async def fetch(
        self, group_id: str, keys: Iterable[OffsetKey] | None, *, require_stable: bool
    ) -> tuple[Code, dict[OffsetKey, FetchedOffset]]:
        """OffsetFetch of one group; returned offsets are durable, so a crash cannot revert them.

        With ``require_stable``, offsets that an open transaction may still change are refused.
        """
        table = self._store.offsets(group_id)
        committed = table.of_group(group_id)
        wanted = committed if keys is None else keys
        found: dict[OffsetKey, FetchedOffset] = {}
        for key in wanted:
            unstable = require_stable and table.is_pending(key)
            found[key] = (None, Code.UNSTABLE_OFFSET_COMMIT) if unstable else (committed.get(key), Code.NONE)
        return await self._store.durable(group_id), found

    def delete_refusal(self, group_id: str) -> Code:
        if not is_group_id(group_id):
            return Code.INVALID_GROUP_ID
        group = self._store.groups.get(group_id)
        if group is None:
            return Code.GROUP_ID_NOT_FOUND
        kept = group.state is not GroupState.EMPTY and not group.is_consumer_group
        return Code.NON_EMPTY_GROUP if kept else Code.NONE

    async def delete(self, group_id: str, keys: Iterable[OffsetKey]) -> dict[OffsetKey, Code]:
        group = self._store.groups[group_id]
        table = self._store.offsets(group_id)
        subscribed = Code.GROUP_SUBSCRIBED_TO_TOPIC
        codes = {key: subscribed if group.subscribes_to(key.topic) else Code.NONE for key in keys}
        there = [key for key, code in codes.items() if code is Code.NONE and (table.get(key) or table.is_pending(key))]
        failed = self._store.append_tombstones(group_id, there)
        if failed is Code.NONE and there:
            failed = await self._store.durable(group_id)
        return {key: failed if key in there else code for key, code in codes.items()}
