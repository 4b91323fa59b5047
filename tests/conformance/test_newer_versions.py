"""Versions that kafka-python has no messages of: TxnOffsetCommit 6, ApiVersions 5."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.metadata import MetadataRequest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.protocol import ApiVersionsRequest, TxnOffsetCommitRequest
from spark_2pc_sink.testing import ReferenceCoordinator
from tests.conformance.operations import End, Init, Pair, ask
from tests.conformance.raw_client import RawClient
from tests.conformance.servers import KAFKA_PROPERTIES, find_coordinators, make_topics
from tests.conformance.subjects import WIRE_SUBJECTS
from tests.conftest import or_skip
from tests.harness.providers import BrokerRequest, Provider
from tests.unit.reference.batches import message

TID = "newer"
NOBODY = UUID(int=77)
_METADATA_VERSION = 12


@dataclass
class Asked:
    """A server with one topic of two partitions."""

    client: RawClient
    cluster_id: str
    topic_id: UUID

    def whom(self, cluster_id: str | None, node_id: int) -> int:
        """ApiVersions of a client that takes the server for this one; the code."""
        request = ApiVersionsRequest(
            client_software_name="test", client_software_version="1", cluster_id=cluster_id, node_id=node_id
        )
        self.client.send(request, 5)
        # The library would read an answer with an error as version 0.
        return int.from_bytes(self.client.receive_bytes()[4:6], "big")

    def commit(self, pair: Pair, *topics: tuple[UUID, list[int]], group: str = "g", **member: Any) -> Any:
        """TxnOffsetCommit; the codes by partition, topic by topic."""
        usual = {"committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
        request = message(
            TxnOffsetCommitRequest,
            transactional_id=TID,
            group_id=group,
            producer_id=pair[0],
            producer_epoch=pair[1],
            generation_id_or_member_epoch=member.get("generation", -1),
            member_id=member.get("member", ""),
            group_instance_id=None,
            topics=[
                {"topic_id": topic_id, "partitions": [{"partition_index": index, **usual} for index in indexes]}
                for topic_id, indexes in topics
            ],
        )
        answered = self.client.call(request, 6).topics
        return [
            (each.topic_id, [(one.partition_index, one.error_code) for one in each.partitions]) for each in answered
        ]


@pytest.fixture(scope="module", params=WIRE_SUBJECTS)
def asked(request: pytest.FixtureRequest, provider: Provider) -> Iterator[Asked]:
    if request.param == "reference":
        server: Any = ReferenceCoordinator(keep_prepared=False).__enter__()
    else:
        server = or_skip(request.config, lambda: provider.start_broker(BrokerRequest(properties=KAFKA_PROPERTIES)))
    with RawClient(server.bootstrap) as client:
        make_topics(client, {"orders": 2})
        find_coordinators(client)
        named = message(MetadataRequest, topics=[{"name": "orders", "topic_id": None}], allow_auto_topic_creation=False)
        found = client.call(named, _METADATA_VERSION)
        yield Asked(client, found.cluster_id, found.topics[0].topic_id)
    server.close()


def test_whom_a_client_takes_the_server_for(asked: Asked) -> None:
    """KIP-1242: another cluster or node is told so, and half a name is none."""
    own = asked.cluster_id
    assert [asked.whom(*each) for each in ((None, -1), (own, 1))] == [0, 0]
    others = [asked.whom(*each) for each in ((own, 2), ("x", 1), ("", 1), ("x", 7))]
    assert others == [Code.REBOOTSTRAP_REQUIRED] * 4
    assert [asked.whom(*each) for each in ((None, 1), (own, -1), ("x", -1))] == [Code.INVALID_REQUEST] * 3


def test_offsets_of_a_transaction_by_topic_id(asked: Asked) -> None:
    """KIP-1319: UNKNOWN_TOPIC_ID, and GROUP_ID_NOT_FOUND where older versions say ILLEGAL_GENERATION."""
    code, *pair = ask(asked.client, Init(tid=TID))
    assert code == 0
    own, at = asked.topic_id, (pair[0], pair[1])
    assert asked.commit(at, (own, [1, 9, 0])) == [(own, [(9, 3), (1, 0), (0, 0)])]
    assert asked.commit(at, (own, [0]), (NOBODY, [0, 1])) == [(NOBODY, [(0, 100), (1, 100)]), (own, [(0, 0)])]
    assert asked.commit(at, (UUID(int=0), [0])) == [(None, [(0, 100)])]
    assert asked.commit(at, (own, [0]), group="none", generation=3) == [(own, [(0, 69)])]
    assert asked.commit(at, (own, [0]), generation=3) == [(own, [(0, 25)])]
    assert asked.commit((at[0], at[1] + 1), (own, [0])) == [(own, [(0, 47)])]
    assert ask(asked.client, End(tid=TID, pair=at, commit=True, version=5))[0] == 0
