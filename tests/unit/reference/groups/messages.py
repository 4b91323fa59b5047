"""Requests of groups and offsets, as the fields of kafka-python's messages; what is left out has its default."""

from __future__ import annotations

from typing import Any
from uuid import UUID

#: ConsumerProtocolSubscription v0 of the topic orders.
SUBSCRIPTION = b"\0\0\0\0\0\x01\0\x06orders\xff\xff\xff\xff"


def join(group: str = "g", member_id: str = "", *protocols: str, **fields: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": SUBSCRIPTION} for name in protocols or ("range",)],
        **fields,
    }


def sync(group: str, generation: int, member_id: str, parts: dict[str, bytes] | None = None, **fields: Any) -> Any:
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": key, "assignment": part} for key, part in (parts or {}).items()],
        **fields,
    }


def heartbeat(group: str, generation: int, member_id: str, instance_id: str | None = None) -> dict[str, Any]:
    return {"group_id": group, "generation_id": generation, "member_id": member_id, "group_instance_id": instance_id}


def leave(group: str, *identities: tuple[str, str | None]) -> dict[str, Any]:
    members = [{"member_id": key, "group_instance_id": instance} for key, instance in identities]
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
        "topics": [_topic(topic, offsets, metadata)],
    }


def commit_in_transaction(
    group: str,
    pair: tuple[int, int],
    offsets: dict[int, int],
    *,
    generation: int = -1,
    member_id: str = "",
) -> dict[str, Any]:
    return {
        "transactional_id": "tid",
        "group_id": group,
        "producer_id": pair[0],
        "producer_epoch": pair[1],
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "topics": [_topic("orders", offsets, "")],
    }


def _topic(topic: str | UUID, offsets: dict[int, int], metadata: str | None) -> dict[str, Any]:
    partitions = [
        {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
        for index, offset in offsets.items()
    ]
    return {**_named(topic), "partitions": partitions}


def _named(topic: str | UUID) -> dict[str, Any]:
    return {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}


def fetch(group: str, topics: dict[Any, list[int]] | None, *, stable: bool = False) -> dict[str, Any]:
    """OffsetFetch from v8 on."""
    asked = topics and [{**_named(name), "partition_indexes": each} for name, each in topics.items()]
    return {"groups": [{"group_id": group, "topics": asked}], "require_stable": stable}


def fetch_one(topics: dict[str, list[int]] | None, *, stable: bool = False) -> dict[str, Any]:
    """OffsetFetch up to v7, of the group g."""
    asked = topics and [{"name": name, "partition_indexes": each} for name, each in topics.items()]
    return {"group_id": "g", "topics": asked, "require_stable": stable}
