"""Consumer groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.admin import DescribeGroupsResponse, ListGroupsResponse
from kafka.protocol.consumer import HeartbeatResponse, JoinGroupResponse, LeaveGroupResponse, SyncGroupResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, Access, AclOperation, Resource
from spark_2pc_sink.reference.groups.members import (
    DEAD,
    Group,
    GroupState,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from spark_2pc_sink.reference.groups.service import GroupService
from spark_2pc_sink.reference.handlers.cluster import allowed
from spark_2pc_sink.reference.protocol.api import RequestContext, serves
from spark_2pc_sink.reference.protocol.codec import DeleteGroupsResponse
from spark_2pc_sink.wire.api_versions import Api

_JoinedMember: Final = JoinGroupResponse.JoinGroupResponseMember
_LeftMember: Final = LeaveGroupResponse.MemberResponse
_DescribedGroup: Final = DescribeGroupsResponse.DescribedGroup
_DescribedMember: Final = _DescribedGroup.DescribedGroupMember
_ListedGroup: Final = ListGroupsResponse.ListedGroup
_DeletedGroup: Final = DeleteGroupsResponse.DeletableGroupResult

# First versions of an API in which ...
_REBALANCE_TIMEOUT_VERSION: Final = 1  # JoinGroup has a timeout for the rebalance besides that of the session
_NO_PROTOCOL_VERSION: Final = 7  # JoinGroup's answer may omit the protocol
_SYNC_PROTOCOL_VERSION: Final = 5  # SyncGroup must state the client's expected group protocol (KIP-559)
_LEAVE_BATCH_VERSION: Final = 3  # LeaveGroup has several members
_GROUP_NOT_FOUND_VERSION: Final = 6  # DescribeGroups reports a nonexistent group (KIP-1043)
#: Supported group types, in the lower case of the filter's comparison.
_GROUP_TYPE: Final = "classic"


class GroupHandlers:
    def __init__(self, service: GroupService) -> None:
        self._service = service

    @serves(Api.JOIN_GROUP, 0, 9)
    async def join(self, context: RequestContext, request: Any) -> Any:
        """Answered when the join phase ends."""
        if not may_read(context.access, request.group_id):
            return _join_response(JoinAnswer(code=Code.GROUP_AUTHORIZATION_FAILED), context.version)
        has_timeout = context.version >= _REBALANCE_TIMEOUT_VERSION
        wanted = JoinRequest(
            ticket=None,
            version=context.version,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=context.client_id or "",
            client_host=context.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=max(request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms, 0),
            protocol_type=request.protocol_type,
            protocols=tuple({each.name: bytes(each.metadata) for each in request.protocols}.items()),
        )
        return _join_response(await self._service.join(request.group_id, wanted), context.version)

    @serves(Api.SYNC_GROUP, 0, 5)
    async def sync(self, context: RequestContext, request: Any) -> Any:
        """Answered when the leader's assignment is durable."""
        if context.version >= _SYNC_PROTOCOL_VERSION and None in {request.protocol_type, request.protocol_name}:
            return _sync_response(SyncAnswer(code=Code.INCONSISTENT_GROUP_PROTOCOL))
        if not may_read(context.access, request.group_id):
            return _sync_response(SyncAnswer(code=Code.GROUP_AUTHORIZATION_FAILED))
        wanted = SyncRequest(
            ticket=None,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments={each.member_id: bytes(each.assignment) for each in request.assignments},
        )
        return _sync_response(await self._service.sync(request.group_id, wanted))

    @serves(Api.HEARTBEAT, 0, 4)
    async def heartbeat(self, context: RequestContext, request: Any) -> Any:
        code = Code.GROUP_AUTHORIZATION_FAILED
        if may_read(context.access, request.group_id):
            code = self._service.heartbeat(
                request.group_id, request.member_id, request.group_instance_id, request.generation_id
            )
        return HeartbeatResponse(error_code=code)

    @serves(Api.LEAVE_GROUP, 0, 5)
    async def leave(self, context: RequestContext, request: Any) -> Any:
        """Below v3 the single member's code is that of the request."""
        if not may_read(context.access, request.group_id):
            return LeaveGroupResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
        identities = [(request.member_id, None)]
        if context.version >= _LEAVE_BATCH_VERSION:
            identities = [(each.member_id, each.group_instance_id) for each in request.members]
        code, codes = self._service.leave(request.group_id, identities)
        if context.version < _LEAVE_BATCH_VERSION:
            return LeaveGroupResponse(error_code=code or codes[0])
        members = [
            _LeftMember(member_id=member_id, group_instance_id=instance_id, error_code=each)
            for (member_id, instance_id), each in zip(identities, codes, strict=False)
        ]
        return LeaveGroupResponse(error_code=code, members=members)

    @serves(Api.DESCRIBE_GROUPS, 0, 6)
    async def describe(self, context: RequestContext, request: Any) -> Any:
        """Members' metadata is shown only for a stable group."""
        refused, described = [], []
        for group_id in request.groups:
            if not context.access.allows(AclOperation.DESCRIBE, Resource.GROUP, group_id):
                refused.append(_DescribedGroup(error_code=Code.GROUP_AUTHORIZATION_FAILED, group_id=group_id))
                continue
            group = self._service.store.groups.get(group_id)
            found = _DescribedGroup(group_id=group_id, group_state=DEAD) if group is None else _described(group)
            if group is None and context.version >= _GROUP_NOT_FOUND_VERSION:
                found.error_code, found.error_message = Code.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
            elif request.include_authorized_operations:
                found.authorized_operations = allowed(context.access, Resource.GROUP, group_id)
            described.append(found)
        return DescribeGroupsResponse(groups=[*refused, *described])

    @serves(Api.LIST_GROUPS, 0, 5)
    async def list(self, context: RequestContext, request: Any) -> Any:
        """By state (v4) and type (v5); groups that the principal may not describe are hidden."""
        states = {each.strip().lower() for each in request.states_filter or ()}
        types = {each.strip().lower() for each in request.types_filter or ()}
        sees_all = context.access.allows(AclOperation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
        groups = [
            _ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=_GROUP_TYPE,
            )
            for group in self._service.store.groups.values()
            if (not states or group.state.value.lower() in states)
            and (not types or _GROUP_TYPE in types)
            and (sees_all or context.access.allows(AclOperation.DESCRIBE, Resource.GROUP, group.group_id))
        ]
        return ListGroupsResponse(groups=groups)

    @serves(Api.DELETE_GROUPS, 0, 3)
    async def delete(self, context: RequestContext, request: Any) -> Any:
        """Groups with members are refused."""
        names = list(dict.fromkeys(request.groups_names))
        may = [name for name in names if context.access.allows(AclOperation.DELETE, Resource.GROUP, name)]
        codes = await self._service.delete(may)
        # Kafka has a message only for its own new code, GROUP_DELETION_FAILED.
        denied = Code.GROUP_AUTHORIZATION_FAILED
        results = [_DeletedGroup(group_id=name, error_code=codes.get(name, denied)) for name in names]
        return DeleteGroupsResponse(results=results)


def may_read(access: Access, group_id: str) -> bool:
    return access.allows(AclOperation.READ, Resource.GROUP, group_id)


def _join_response(answer: JoinAnswer, version: int) -> Any:
    return JoinGroupResponse(
        error_code=answer.code,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol or ("" if version < _NO_PROTOCOL_VERSION else None),
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            _JoinedMember(member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata)
            for each in answer.members
        ],
    )


def _sync_response(answer: SyncAnswer) -> Any:
    return SyncGroupResponse(
        error_code=answer.code,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


def _described(group: Group) -> Any:
    stable = group.state is GroupState.STABLE
    return _DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=[
            _DescribedMember(
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
