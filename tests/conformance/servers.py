"""What a server needs before cases or the fuzzer can begin: topics, coordinators, producer ids."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from spark_2pc_sink.testing import wait_until
from tests.conformance.leader_operations import Producers
from tests.conformance.operations import Add, End, Init, Partition, ask
from tests.conformance.raw_client import RawClient
from tests.unit.reference.batches import message

#: For Kafka alone. On a busy machine its controller would take the broker for dead, and elect it again under the next
#: epoch, which every end marker shows.
KAFKA_PROPERTIES: Final = {"broker.session.timeout.ms": "60000"}
#: For a machine that is busy with something else.
READY_DEADLINE_S: Final = 60.0
_CREATE_VERSION, _METADATA_VERSION, _FIND_VERSION = 7, 9, 4
_COORDINATOR_OF_GROUP, _COORDINATOR_OF_TRANSACTION = 0, 1
_NOT_READY: Final = frozenset({14, 15, 16})


def make_topics(client: RawClient, topics: Mapping[str, int], *, configs: Mapping[str, str] | None = None) -> None:
    """Create topics with so many partitions and these configs, and wait until every partition has a leader."""
    set_for_all = [{"name": name, "value": value} for name, value in (configs or {}).items()]
    usual = {"replication_factor": 1, "assignments": [], "configs": set_for_all}
    wanted = [{"name": name, "num_partitions": partitions, **usual} for name, partitions in topics.items()]
    deadline_ms = int(READY_DEADLINE_S * 1000)
    request = message(CreateTopicsRequest, topics=wanted, timeout_ms=deadline_ms, validate_only=False)
    answered = client.call(request, _CREATE_VERSION)
    assert {each.error_code for each in answered.topics} == {0}, answered
    wait_until(lambda: _have_leaders(client, topics), what=f"leaders of {sorted(topics)}")


def find_coordinators(client: RawClient) -> None:
    """Have the internal topics made, and wait until their leader has loaded them and has producer ids."""
    for kind in (_COORDINATOR_OF_GROUP, _COORDINATOR_OF_TRANSACTION):
        wait_until(lambda kind=kind: _is_found(client, kind), what="a coordinator")  # type: ignore[misc]
    for ready in (Init(tid=f"ready-{time.time_ns()}"), Init(tid=None)):
        wait_until(
            lambda ready=ready: ask(client, ready)[0] not in _NOT_READY,  # type: ignore[misc]
            what="the transaction coordinator",
        )


def coordinator_epoch(client: RawClient, partition: Partition) -> int:
    """What the coordinator, as it runs now, writes into its end markers."""
    tid = f"look-{time.time_ns()}"
    code, producer, epoch = ask(client, Init(tid=tid))
    assert code == 0
    assert set(ask(client, Add(tid=tid, pair=(producer, epoch), partitions=(partition,))).values()) == {0}
    assert ask(client, End(tid=tid, pair=(producer, epoch), commit=False, version=3)) == 0
    only = Producers(partition=partition, only=(producer,))
    (entry,) = wait_until(lambda: ask(client, only), what="an end marker")
    return int(entry[3])


def _is_found(client: RawClient, kind: int) -> bool:
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["any"])
    found: Any = client.call(request, _FIND_VERSION).coordinators[0]
    return bool(found.error_code == 0)


def _have_leaders(client: RawClient, topics: Mapping[str, int]) -> bool:
    asked = [{"name": name, "topic_id": None} for name in topics]
    request = message(MetadataRequest, topics=asked, allow_auto_topic_creation=False)
    found = {each.name: each for each in client.call(request, _METADATA_VERSION).topics}
    return all(
        found[name].error_code == 0
        and len(found[name].partitions) == partitions
        and all(each.error_code == 0 and each.leader_id >= 0 for each in found[name].partitions)
        for name, partitions in topics.items()
    )
