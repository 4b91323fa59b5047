"""Requests of groups and offsets, as the fields of kafka-python's messages."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kafka.protocol.consumer import (
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

from spark_2pc_sink.reference.protocol.codec import TxnOffsetCommitRequest

#: ConsumerProtocolSubscription v0 of the topic orders.
SUBSCRIPTION = b"\0\0\0\0\0\x01\0\x06orders\xff\xff\xff\xff"


def join(group: str = "g", member_id: str = "", *protocols: str, **fields: Any) -> dict[str, Any]:
    kind = JoinGroupRequest.JoinGroupRequestProtocol
    return {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [kind(name=name, metadata=SUBSCRIPTION) for name in protocols or ("range",)],
        "reason": None,
        **fields,
    }


def sync(group: str, generation: int, member_id: str, parts: dict[str, bytes] | None = None, **fields: Any) -> Any:
    kind = SyncGroupRequest.SyncGroupRequestAssignment
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [kind(member_id=key, assignment=part) for key, part in (parts or {}).items()],
        **fields,
    }


def heartbeat(group: str, generation: int, member_id: str, instance_id: str | None = None) -> dict[str, Any]:
    return {"group_id": group, "generation_id": generation, "member_id": member_id, "group_instance_id": instance_id}


def leave(group: str, *identities: tuple[str, str | None]) -> dict[str, Any]:
    kind = LeaveGroupRequest.MemberIdentity
    members = [kind(member_id=key, group_instance_id=instance, reason=None) for key, instance in identities]
    return {"group_id": group, "members": members}


def commit(
    group: str,
    generation: int,
    member_id: str,
    offsets: dict[int, int],
    *,
    topic: str | UUID = "orders",
    instance_id: str | None = None,
    metadata: str | None = "",
) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "retention_time_ms": -1,
        "topics": [_topic(OffsetCommitRequest.OffsetCommitRequestTopic, topic, offsets, metadata)],
    }


def commit_in_transaction(
    group: str,
    pair: tuple[int, int],
    offsets: dict[int, int],
    *,
    generation: int = -1,
    member_id: str = "",
    topic: str | UUID = "orders",
    metadata: str = "",
) -> dict[str, Any]:
    kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    return {
        "transactional_id": "tid",
        "group_id": group,
        "producer_id": pair[0],
        "producer_epoch": pair[1],
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": None,
        "topics": [_topic(kind, topic, offsets, metadata)],
    }


def _topic(kind: Any, topic: str | UUID, offsets: dict[int, int], metadata: str | None) -> Any:
    partition = next(getattr(kind, name) for name in dir(kind) if name.endswith("Partition"))
    partitions = [
        partition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata
        )
        for index, offset in offsets.items()
    ]
    if isinstance(topic, UUID):
        return kind(name="", topic_id=topic, partitions=partitions)
    return kind(name=topic, partitions=partitions)


def fetch(*groups: tuple[str, dict[Any, list[int]] | None], stable: bool = False) -> dict[str, Any]:
    """OffsetFetch from v8 on."""
    kind = OffsetFetchRequest.OffsetFetchRequestGroup
    topic = kind.OffsetFetchRequestTopics
    asked = [
        kind(
            group_id=group,
            member_id=None,
            member_epoch=-1,
            topics=None
            if topics is None
            else [
                topic(name="", topic_id=name, partition_indexes=indexes)
                if isinstance(name, UUID)
                else topic(name=name, partition_indexes=indexes)
                for name, indexes in topics.items()
            ],
        )
        for group, topics in groups
    ]
    return {"groups": asked, "require_stable": stable}


def fetch_one(group: str, topics: dict[str, list[int]] | None, *, stable: bool = False) -> dict[str, Any]:
    """OffsetFetch up to v7."""
    kind = OffsetFetchRequest.OffsetFetchRequestTopic
    asked = None if topics is None else [kind(name=name, partition_indexes=each) for name, each in topics.items()]
    return {"group_id": group, "topics": asked, "require_stable": stable}
