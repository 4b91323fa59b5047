"""Commits and fetches of offsets: checks against the group, records, and the coordinator of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.leader_answers import OFFSETS_ADD_VERSION
from spark_2pc_sink.reference.coordinator.states import Pair
from spark_2pc_sink.reference.groups.members import Group
from spark_2pc_sink.reference.groups.records import OffsetKey, OffsetValue
from spark_2pc_sink.reference.groups.service import GroupService, is_group_id
from spark_2pc_sink.reference.groups.states import GroupState
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.log.producer_state import NeedsCoordinator, Refused, Writer
from spark_2pc_sink.reference.log.verification_guards import Guard


class OffsetVerification(Protocol):
    """What asks the transaction coordinator; ``server.verification``."""

    async def for_offsets(self, version: int, transactional_id: str, pair: Pair, partition: TopicPartition) -> int:
        """The code for a client that commits offsets in a transaction, 0 where they may be appended."""

    def keeps_out(self, pair: Pair) -> bool:
        """Whether the transaction of this pair was kept, so that it takes nothing more."""


@dataclass(frozen=True, kw_only=True)
class Committer:
    """Who commits.

    Args:
        generation: -1 where the client is no member.
    """

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """In which transaction.

    Args:
        version: of TxnOffsetCommit.
    """

    transactional_id: str
    pair: Pair
    version: int


@dataclass(frozen=True)
class FetchedOffset:
    """A committed offset, or none; UNSTABLE_OFFSET_COMMIT while a transaction may still change it (KIP-447)."""

    value: OffsetValue | None
    code: Code = Code.NONE


class OffsetService:
    """Offsets of groups.

    Args:
        groups: the groups.
        verification: asks the transaction coordinator.
        now_ms: milliseconds since 1970.
    """

    def __init__(self, groups: GroupService, verification: OffsetVerification, *, now_ms: Callable[[], int]) -> None:
        self._groups = groups
        self._store = groups.store
        self._verification = verification
        self._now_ms = now_ms

    def metadata_fits(self, metadata: str | None) -> bool:
        """False where a client wants more text kept than it may (OFFSET_METADATA_TOO_LARGE); Java counts characters."""
        units = len((metadata or "").encode("utf-16-be", "surrogatepass")) // 2
        return units <= self._groups.properties.offset_metadata_max_bytes

    async def commit(self, committer: Committer, offsets: Mapping[OffsetKey, OffsetValue], *, version: int) -> Code:
        """OffsetCommit; durable when it returns.

        Args:
            committer: who commits.
            offsets: those whose metadata fits; may be empty.
            version: of the request.
        """
        group = self._store.groups.get(committer.group_id)
        # v9 came with the protocol of KIP-848, whose clients know that a group can be gone.
        unknown = Code.GROUP_ID_NOT_FOUND if version >= _GROUP_GONE_VERSION else Code.ILLEGAL_GENERATION
        code = _check(group, committer, unknown=unknown)
        if code is not Code.NONE:
            return code
        self._groups.seen(committer.group_id, committer.member_id)
        if not offsets:
            return Code.NONE
        code = self._store.append(committer.group_id, list(offsets.items()))
        return await self._store.durable(committer.group_id) if code is Code.NONE else code

    async def commit_in_transaction(
        self, committer: Committer, offsets: Mapping[OffsetKey, OffsetValue], transaction: Transaction
    ) -> Code:
        """TxnOffsetCommit; the offsets are durable when it returns, and pending until the transaction ends."""
        if not is_group_id(committer.group_id):
            return Code.INVALID_GROUP_ID
        log = self._store.log(committer.group_id)
        if log is None:
            return Code.COORDINATOR_NOT_AVAILABLE
        writer = Writer(transaction.pair.producer_id, transaction.pair.epoch)
        code, guard = await self._admitted(log, writer, committer.group_id, transaction)
        if code:
            return code
        group = self._store.groups.get(committer.group_id)
        knows = transaction.version >= _TRANSACTION_GROUP_GONE_VERSION
        unknown = Code.GROUP_ID_NOT_FOUND if knows else Code.ILLEGAL_GENERATION
        code = _check(group, committer, unknown=unknown, transactional=True)
        if code is not Code.NONE or not offsets:
            return code
        code = self._store.append(committer.group_id, list(offsets.items()), writer=writer, guard=guard)
        return await self._store.durable(committer.group_id) if code is Code.NONE else code

    async def _admitted(
        self, log: PartitionLog, writer: Writer, group_id: str, transaction: Transaction
    ) -> tuple[Code, Guard | None]:
        """Whether the transaction may write to the group's partition, and the guard of the coordinator's yes."""
        bumps = transaction.version >= OFFSETS_ADD_VERSION
        standing = log.standing(writer, supports_epoch_bump=bumps, now_ms=self._now_ms())
        if isinstance(standing, Refused):
            return standing.code, None
        code: int = Code.NONE
        guard = None
        if isinstance(standing, NeedsCoordinator):
            guard = standing.guard
            partition = TopicPartition(GROUP_OFFSETS, self._store.partition_of(group_id))
            code = await self._verification.for_offsets(
                transaction.version, transaction.transactional_id, transaction.pair, partition
            )
        if not code and self._verification.keeps_out(transaction.pair):
            code = Code.INVALID_PRODUCER_EPOCH
        return Code(code), guard

    async def fetch(
        self, group_id: str, keys: Iterable[OffsetKey] | None, *, require_stable: bool
    ) -> tuple[Code, dict[OffsetKey, FetchedOffset]]:
        """OffsetFetch of one group; what it gives is durable, so that no crash takes it back.

        Args:
            group_id: of the group; one that does not exist has no offsets.
            keys: None for all that the group has.
            require_stable: refuse offsets that an open transaction may still change.
        """
        table = self._store.offsets(group_id)
        committed = table.of_group(group_id)
        wanted = committed if keys is None else keys
        unstable = FetchedOffset(None, Code.UNSTABLE_OFFSET_COMMIT)
        found = {
            key: unstable if require_stable and table.is_pending(key) else FetchedOffset(committed.get(key))
            for key in wanted
        }
        return await self._store.durable(group_id), found

    def delete_refusal(self, group_id: str) -> Code:
        """Why OffsetDelete is refused as a whole, or NONE."""
        if not is_group_id(group_id):
            return Code.INVALID_GROUP_ID
        group = self._store.groups.get(group_id)
        if group is None:
            return Code.GROUP_ID_NOT_FOUND
        kept = group.state is not GroupState.EMPTY and not group.is_consumer_group
        return Code.NON_EMPTY_GROUP if kept else Code.NONE

    async def delete(self, group_id: str, keys: Iterable[OffsetKey]) -> dict[OffsetKey, Code]:
        """OffsetDelete (KIP-496), after `delete_refusal`; offsets of topics that the group consumes stay."""
        group = self._store.groups[group_id]
        table = self._store.offsets(group_id)
        subscribed = Code.GROUP_SUBSCRIBED_TO_TOPIC
        codes = {key: subscribed if group.subscribes_to(key.topic) else Code.NONE for key in keys}
        there = [key for key, code in codes.items() if code is Code.NONE and (table.get(key) or table.is_pending(key))]
        failed = self._store.append_tombstones(group_id, there)
        if failed is Code.NONE and there:
            failed = await self._store.durable(group_id)
        return {key: failed if key in there else code for key, code in codes.items()}


#: First OffsetCommit version that answers GROUP_ID_NOT_FOUND.
_GROUP_GONE_VERSION = 9
#: First TxnOffsetCommit version that does (KIP-1319).
_TRANSACTION_GROUP_GONE_VERSION = 6


def _check(group: Group | None, committer: Committer, *, unknown: Code, transactional: bool = False) -> Code:
    if group is None:
        return unknown if committer.generation >= 0 else Code.NONE
    return group.check_commit(
        committer.member_id, committer.instance_id, committer.generation, transactional=transactional
    )
