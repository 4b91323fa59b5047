"""Consumer groups, from JoinGroup to DeleteGroups, and their offsets: OffsetCommit to OffsetDelete, TxnOffsetCommit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from kafka.protocol import admin, consumer

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.add_partitions import OFFSETS_ADD_VERSION, offsets_code
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, AclOperation, Resource
from spark_2pc_sink.reference.coordinator.states import Pair
from spark_2pc_sink.reference.groups import members
from spark_2pc_sink.reference.groups.service import GroupService, is_group_id
from spark_2pc_sink.reference.groups.store import UNKNOWN, OffsetKey, OffsetValue
from spark_2pc_sink.reference.handlers.cluster import allowed
from spark_2pc_sink.reference.handlers.topics import find_topic
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from spark_2pc_sink.reference.log.producer_state import VerificationGuard
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol import DeleteGroupsResponse, RequestContext, TxnOffsetCommitResponse, serves
from spark_2pc_sink.reference.transactions.service import Verification
from spark_2pc_sink.wire.api_versions import Api

_DescribedGroup: Final = admin.DescribeGroupsResponse.DescribedGroup
_CommitTopic: Final = consumer.OffsetCommitResponse.OffsetCommitResponseTopic
_TxnTopic: Final = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_DeleteTopic: Final = consumer.OffsetDeleteResponse.OffsetDeleteResponseTopic
_FetchTopic: Final = consumer.OffsetFetchResponse.OffsetFetchResponseTopic
_FetchGroup: Final = consumer.OffsetFetchResponse.OffsetFetchResponseGroup
_GroupTopic: Final = _FetchGroup.OffsetFetchResponseTopics
#: The classes that answer for a topic and for its partitions.
_COMMITTED: Final = _CommitTopic, _CommitTopic.OffsetCommitResponsePartition
_COMMITTED_IN_TXN: Final = _TxnTopic, _TxnTopic.TxnOffsetCommitResponsePartition
_DELETED: Final = _DeleteTopic, _DeleteTopic.OffsetDeleteResponsePartition

# First versions of an API in which ...
_REBALANCE_TIMEOUT_VERSION: Final = 1  # JoinGroup has a timeout for the rebalance besides that of the session
_NO_PROTOCOL_VERSION: Final = 7  # JoinGroup's answer may omit the protocol
_SYNC_PROTOCOL_VERSION: Final = 5  # SyncGroup must state the client's expected group protocol (KIP-559)
_LEAVE_BATCH_VERSION: Final = 3  # LeaveGroup has several members
_GROUP_NOT_FOUND_VERSION: Final = 6  # DescribeGroups reports a nonexistent group (KIP-1043)
_TOPIC_ID_VERSION: Final = 10  # OffsetCommit and OffsetFetch identify topics by id
_TXN_TOPIC_ID_VERSION: Final = 6  # TxnOffsetCommit does (KIP-1319)
_GROUPS_VERSION: Final = 8  # OffsetFetch has several groups
_FETCH_CODE_VERSION: Final = 2  # OffsetFetch has a code for the whole request
_GROUP_GONE_VERSION: Final = 9  # OffsetCommit's client, of KIP-848, knows GROUP_ID_NOT_FOUND
_TXN_GROUP_GONE_VERSION: Final = 6  # TxnOffsetCommit's does (KIP-1319)
#: Supported group types, in the lower case of the filter's comparison.
_GROUP_TYPE: Final = "classic"
_NO_OFFSET: Final = -1
#: A committed offset, or none; UNSTABLE_OFFSET_COMMIT while a transaction may still change it (KIP-447).
_Fetched: TypeAlias = tuple[OffsetValue | None, Code]
#: Name and id of a topic, its code, and the partitions to fetch.
_FetchTarget: TypeAlias = tuple[str, UUID | None, Code, list[int]]


class _Accepted(NamedTuple):
    key: OffsetKey
    topic_id: UUID | None
    asked: Any
    answer: Any


class GroupHandlers:
    def __init__(
        self, groups: GroupService, verification: Verification, catalog: Catalog, *, now_ms: Callable[[], int]
    ) -> None:
        self._groups = groups
        self._store = groups.store
        self._verification = verification
        self._catalog = catalog
        self._now_ms = now_ms

    @serves(Api.JOIN_GROUP, 0, 9)
    async def join(self, context: RequestContext, request: Any) -> Any:
        """Answered when the join phase ends."""
        answer = members.JoinAnswer(code=_refusal(context, request.group_id))
        if not answer.code:
            has_timeout = context.version >= _REBALANCE_TIMEOUT_VERSION
            timeout_ms = request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms
            wanted = members.JoinRequest(
                ticket=None,
                version=context.version,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                client_id=context.client_id or "",
                client_host=context.client_host,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=max(timeout_ms, 0),
                protocol_type=request.protocol_type,
                protocols=tuple({each.name: bytes(each.metadata) for each in request.protocols}.items()),
            )
            answer = await self._groups.join(request.group_id, wanted)
        return consumer.JoinGroupResponse(
            error_code=answer.code,
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol or ("" if context.version < _NO_PROTOCOL_VERSION else None),
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=[
                consumer.JoinGroupResponse.JoinGroupResponseMember(
                    member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata
                )
                for each in answer.members
            ],
        )

    @serves(Api.SYNC_GROUP, 0, 5)
    async def sync(self, context: RequestContext, request: Any) -> Any:
        """Answered when the leader's assignment is durable."""
        answer = members.SyncAnswer(code=_refusal(context, request.group_id))
        if context.version >= _SYNC_PROTOCOL_VERSION and None in {request.protocol_type, request.protocol_name}:
            answer = members.SyncAnswer(code=Code.INCONSISTENT_GROUP_PROTOCOL)
        if not answer.code:
            wanted = members.SyncRequest(
                ticket=None,
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocol=request.protocol_name,
                assignments={each.member_id: bytes(each.assignment) for each in request.assignments},
            )
            answer = await self._groups.sync(request.group_id, wanted)
        return consumer.SyncGroupResponse(
            error_code=answer.code,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            assignment=answer.assignment,
        )

    @serves(Api.HEARTBEAT, 0, 4)
    async def heartbeat(self, context: RequestContext, request: Any) -> Any:
        code = _refusal(context, request.group_id) or self._groups.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        return consumer.HeartbeatResponse(error_code=code)

    @serves(Api.LEAVE_GROUP, 0, 5)
    async def leave(self, context: RequestContext, request: Any) -> Any:
        """Below v3 the single member's code is that of the request."""
        if refusal := _refusal(context, request.group_id):
            return consumer.LeaveGroupResponse(error_code=refusal)
        identities = [(request.member_id, None)]
        if context.version >= _LEAVE_BATCH_VERSION:
            identities = [(each.member_id, each.group_instance_id) for each in request.members]
        code, codes = self._groups.leave(request.group_id, identities)
        if context.version < _LEAVE_BATCH_VERSION:
            return consumer.LeaveGroupResponse(error_code=code or codes[0])
        member = consumer.LeaveGroupResponse.MemberResponse
        left = [
            member(member_id=member_id, group_instance_id=instance_id, error_code=each)
            for (member_id, instance_id), each in zip(identities, codes, strict=False)
        ]
        return consumer.LeaveGroupResponse(error_code=code, members=left)

    @serves(Api.DESCRIBE_GROUPS, 0, 6)
    async def describe(self, context: RequestContext, request: Any) -> Any:
        """Members' metadata is shown only for a stable group."""
        refused, described = [], []
        for group_id in request.groups:
            if refusal := _refusal(context, group_id, AclOperation.DESCRIBE):
                refused.append(_DescribedGroup(error_code=refusal, group_id=group_id))
                continue
            group = self._store.groups.get(group_id)
            found = _DescribedGroup(group_id=group_id, group_state=members.DEAD) if group is None else _described(group)
            if group is None and context.version >= _GROUP_NOT_FOUND_VERSION:
                found.error_code, found.error_message = Code.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
            elif request.include_authorized_operations:
                found.authorized_operations = allowed(context.access, Resource.GROUP, group_id)
            described.append(found)
        return admin.DescribeGroupsResponse(groups=[*refused, *described])

    @serves(Api.LIST_GROUPS, 0, 5)
    async def list_groups(self, context: RequestContext, request: Any) -> Any:
        """By state (v4) and type (v5); groups that the principal may not describe are hidden."""
        states = {each.strip().lower() for each in request.states_filter or ()}
        types = {each.strip().lower() for each in request.types_filter or ()}
        sees_all = context.access.allows(AclOperation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
        groups = [
            admin.ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=_GROUP_TYPE,
            )
            for group in self._store.groups.values()
            if (not states or group.state.value.lower() in states)
            and (not types or _GROUP_TYPE in types)
            and (sees_all or not _refusal(context, group.group_id, AclOperation.DESCRIBE))
        ]
        return admin.ListGroupsResponse(groups=groups)

    @serves(Api.DELETE_GROUPS, 0, 3)
    async def delete_groups(self, context: RequestContext, request: Any) -> Any:
        """Groups with members are refused."""
        names = list(dict.fromkeys(request.groups_names))
        refusals = {name: _refusal(context, name, AclOperation.DELETE) for name in names}
        codes = refusals | await self._groups.delete([name for name in names if not refusals[name]])
        # Kafka has a message only for its own new code, GROUP_DELETION_FAILED.
        result = DeleteGroupsResponse.DeletableGroupResult
        return DeleteGroupsResponse(results=[result(group_id=name, error_code=codes[name]) for name in names])

    @serves(Api.OFFSET_COMMIT, 2, 10)
    async def commit(self, context: RequestContext, request: Any) -> Any:
        refusal, by_id = _refusal(context, request.group_id), context.version >= _TOPIC_ID_VERSION
        topics, accepted = self._sifted(context, request, refusal, _COMMITTED, by_id=by_id)
        if accepted:
            code = self._check(request, knows_gone=context.version >= _GROUP_GONE_VERSION)
            if not code:
                self._groups.seen(request.group_id, request.member_id)
                code = await self._append(request.group_id, self._offsets(accepted))
            self._settle(accepted, code)
        return consumer.OffsetCommitResponse(topics=topics)

    @serves(Api.TXN_OFFSET_COMMIT, 0, 6)
    async def commit_in_transaction(self, context: RequestContext, request: Any) -> Any:
        refusal, by_id = _refusal(context, request.group_id), context.version >= _TXN_TOPIC_ID_VERSION
        if not context.access.allows(AclOperation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            refusal = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        topics, accepted = self._sifted(context, request, refusal, _COMMITTED_IN_TXN, by_id=by_id)
        if accepted:
            code = await self._commit_in_txn(request, self._offsets(accepted), context.version)
            self._settle(accepted, Code(offsets_code(context.version, code)))
        return TxnOffsetCommitResponse(topics=topics)

    async def _commit_in_txn(self, request: Any, offsets: Mapping[OffsetKey, OffsetValue], version: int) -> Code:
        """The offsets are durable when it returns, and pending until the transaction ends."""
        if not is_group_id(request.group_id):
            return Code.INVALID_GROUP_ID
        pair = Pair(request.producer_id, request.producer_epoch)
        log, bumps = self._store.log(request.group_id), version >= OFFSETS_ADD_VERSION
        started = log.start_verification(pair, supports_epoch_bump=bumps, now_ms=self._now_ms())
        code, guard = (Code.NONE, started) if isinstance(started, VerificationGuard) else (started, None)
        if guard is not None:
            partition = TopicPartition(GROUP_OFFSETS, self._store.partition_of(request.group_id))
            code = Code(await self._verification.for_offsets(version, request.transactional_id, pair, partition))
        if not code and self._verification.is_sealed(pair):
            code = Code.INVALID_PRODUCER_EPOCH
        code = code or self._check(request, knows_gone=version >= _TXN_GROUP_GONE_VERSION, transactional=True)
        return code or await self._append(request.group_id, offsets, pair, guard)

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
        writer: Pair | None = None,
        guard: VerificationGuard | None = None,
    ) -> Code:
        if not offsets:
            return Code.NONE
        code = self._store.append(group_id, list(offsets.items()), writer=writer, guard=guard)
        return code or await self._store.durable(group_id)

    def _sifted(
        self, context: RequestContext, request: Any, refusal: Code, kinds: tuple[Any, Any], *, by_id: bool = False
    ) -> tuple[list[Any], list[_Accepted]]:
        """The answers by topic, which begin with those that are refused as in Kafka, and the accepted partitions."""
        topic_kind, partition_kind = kinds
        topics, accepted = [], []
        for topic in request.topics:
            name, topic_id, code = self._find(context, AclOperation.READ, topic, by_id=by_id)
            code = refusal or code
            known = None if code else self._catalog.topic(name)
            rows = []
            for each in topic.partitions:
                index = each.partition_index
                exists = known is not None and 0 <= index < known.partitions
                missing = Code.NONE if exists else Code.UNKNOWN_TOPIC_OR_PARTITION
                rows.append(partition_kind(partition_index=index, error_code=code or missing))
                if exists:
                    accepted.append(_Accepted(OffsetKey(request.group_id, name, index), topic_id, each, rows[-1]))
            rows.sort(key=lambda row: not row.error_code)
            topics.append(topic_kind(name=name, partitions=rows))
            if by_id:
                topics[-1].topic_id = topic_id
        topics.sort(key=lambda answer: not any(row.error_code for row in answer.partitions))
        return topics, accepted

    def _find(
        self, context: RequestContext, operation: AclOperation, topic: Any, *, by_id: bool
    ) -> tuple[str, UUID | None, Code]:
        topic_id = topic.topic_id if by_id else None
        name, refusal = find_topic(self._catalog, context, operation, topic.name, topic_id, by_id=by_id)
        return name, topic_id, refusal

    def _offsets(self, accepted: Iterable[_Accepted]) -> dict[OffsetKey, OffsetValue]:
        now_ms = self._now_ms()
        return {
            key: OffsetValue(
                offset=asked.committed_offset,
                leader_epoch=UNKNOWN if asked.committed_leader_epoch is None else asked.committed_leader_epoch,
                metadata=asked.committed_metadata or "",
                commit_ms=now_ms,
                topic_id=topic_id,
            )
            for key, topic_id, asked, _ in accepted
            if self._fits(asked.committed_metadata)
        }

    def _settle(self, accepted: Iterable[_Accepted], code: Code) -> None:
        for each in accepted:
            fits = self._fits(each.asked.committed_metadata)
            each.answer.error_code = code or (Code.NONE if fits else Code.OFFSET_METADATA_TOO_LARGE)

    def _fits(self, metadata: str | None) -> bool:
        """False if the client's metadata is too long; counted in characters, as in Java."""
        units = len((metadata or "").encode("utf-16-be", "surrogatepass")) // 2
        return units <= self._groups.properties.offset_metadata_max_bytes

    @serves(Api.OFFSET_FETCH, 1, 10)
    async def fetch(self, context: RequestContext, request: Any) -> Any:
        """Without topics (from v2 on) every offset of the group."""
        stable = bool(request.require_stable)
        if context.version >= _GROUPS_VERSION:
            groups = []
            for group in request.groups:
                code, topics = await self._fetch_group(context, group.group_id, group.topics, require_stable=stable)
                groups.append(_FetchGroup(group_id=group.group_id, topics=topics, error_code=code))
            return consumer.OffsetFetchResponse(groups=groups)
        code, topics = await self._fetch_group(context, request.group_id, request.topics, require_stable=stable)
        if code and context.version < _FETCH_CODE_VERSION:
            asked = ((each.name, None, code, list(each.partition_indexes)) for each in request.topics)
            topics = [_fetched(request.group_id, each, {}, context.version) for each in asked]
        return consumer.OffsetFetchResponse(topics=topics, error_code=code)

    async def _fetch_group(
        self, context: RequestContext, group_id: str, topics: Iterable[Any] | None, *, require_stable: bool
    ) -> tuple[Code, list[Any]]:
        if refusal := _refusal(context, group_id, AclOperation.DESCRIBE):
            return refusal, []
        find = partial(self._find, context, AclOperation.DESCRIBE, by_id=context.version >= _TOPIC_ID_VERSION)
        asked = keys = None
        if topics is not None:
            asked = [(*find(each), list(each.partition_indexes)) for each in topics]
            keys = [OffsetKey(group_id, name, at) for name, _, code, indexes in asked if not code for at in indexes]
        table = self._store.offsets(group_id)
        committed = table.of_group(group_id)
        found: dict[OffsetKey, _Fetched] = {}
        for key in committed if keys is None else keys:
            unstable = require_stable and table.is_pending(key)
            found[key] = (None, Code.UNSTABLE_OFFSET_COMMIT) if unstable else (committed.get(key), Code.NONE)
        # A crash must not revert offsets that were shown.
        if code := await self._store.durable(group_id):
            return code, []
        wanted = self._all_topics(context, found) if asked is None else asked
        return Code.NONE, [_fetched(group_id, topic, found, context.version) for topic in wanted]

    def _all_topics(self, context: RequestContext, found: Iterable[OffsetKey]) -> list[_FetchTarget]:
        """Every topic with offsets of the group that the principal may see; by id only those that exist."""
        partitions: dict[str, list[int]] = {}
        for key in found:
            if context.access.allows(AclOperation.DESCRIBE, Resource.TOPIC, key.topic):
                partitions.setdefault(key.topic, []).append(key.partition)
        wanted: list[_FetchTarget] = []
        for name, indexes in partitions.items():
            topic = self._catalog.topic(name)
            if topic is not None or context.version < _TOPIC_ID_VERSION:
                wanted.append((name, None if topic is None else topic.id, Code.NONE, sorted(indexes)))
        return wanted

    @serves(Api.OFFSET_DELETE, 0, 0)
    async def delete_offsets(self, context: RequestContext, request: Any) -> Any:
        """KIP-496."""
        group = self._store.groups.get(request.group_id)
        if refusal := _refusal(context, request.group_id, AclOperation.DELETE):
            return consumer.OffsetDeleteResponse(error_code=refusal)
        if not is_group_id(request.group_id):
            return consumer.OffsetDeleteResponse(error_code=Code.INVALID_GROUP_ID)
        if group is None:
            return consumer.OffsetDeleteResponse(error_code=Code.GROUP_ID_NOT_FOUND)
        if group.state is not members.GroupState.EMPTY and not group.is_consumer_group:
            return consumer.OffsetDeleteResponse(error_code=Code.NON_EMPTY_GROUP)
        topics, accepted = self._sifted(context, request, Code.NONE, _DELETED)
        table = self._store.offsets(request.group_id)
        removed = []
        for each in accepted:
            if group.subscribes_to(each.key.topic):
                each.answer.error_code = Code.GROUP_SUBSCRIBED_TO_TOPIC
            elif table.get(each.key) or table.is_pending(each.key):
                removed.append(each)
        code = self._store.append_tombstones(request.group_id, [each.key for each in removed])
        if removed:
            code = code or await self._store.durable(request.group_id)
        for each in removed:
            each.answer.error_code = code
        return consumer.OffsetDeleteResponse(topics=topics)


def _fetched(group_id: str, topic: _FetchTarget, found: Mapping[OffsetKey, _Fetched], version: int) -> Any:
    name, topic_id, code, indexes = topic
    grouped = version >= _GROUPS_VERSION
    kind = _GroupTopic.OffsetFetchResponsePartitions if grouped else _FetchTopic.OffsetFetchResponsePartition
    partitions = []
    for index in indexes:
        value, row_code = found.get(OffsetKey(group_id, name, index), (None, code))
        if value is not None and value.topic_id and topic_id and value.topic_id != topic_id:
            # Committed for a deleted topic of the same name.
            value = None
        partitions.append(
            kind(
                partition_index=index,
                committed_offset=_NO_OFFSET if value is None else value.offset,
                committed_leader_epoch=UNKNOWN if value is None else value.leader_epoch,
                metadata="" if value is None else value.metadata,
                error_code=row_code,
            )
        )
    if grouped:
        return _GroupTopic(name=name, topic_id=topic_id, partitions=partitions)
    return _FetchTopic(name=name, partitions=partitions)


def _refusal(context: RequestContext, group_id: str, operation: AclOperation = AclOperation.READ) -> Code:
    return Code.NONE if context.access.allows(operation, Resource.GROUP, group_id) else Code.GROUP_AUTHORIZATION_FAILED


def _described(group: members.Group) -> Any:
    stable = group.state is members.GroupState.STABLE
    return _DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=[
            _DescribedGroup.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
