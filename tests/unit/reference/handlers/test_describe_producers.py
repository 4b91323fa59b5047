"""DescribeProducers from message to message (KIP-664)."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeProducersRequest, DescribeProducersResponse

from spark_2pc_sink.reference.coordinator import Code, TransactionState
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, Operation, Resource
from spark_2pc_sink.reference.protocol.api import Api, handlers_of
from tests.unit.reference.coordinator.access import denied
from tests.unit.reference.coordinator.driver import metadata
from tests.unit.reference.node import START_MS, Node, exchange, node
from tests.unit.reference.seeds import seeded


async def _describe(running: Node, *topics: tuple[str, list[int]], access: Access = FULL_ACCESS) -> list[Any]:
    request = DescribeProducersRequest(
        topics=[DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics]
    )
    response = await exchange(
        running.partitions.describe_producers, request, DescribeProducersResponse, 0, access=access
    )
    assert response.throttle_time_ms == 0
    return [each for topic in response.topics for each in topic.partitions]


async def test_what_a_leader_knows_of_a_producer_during_and_after_its_transaction() -> None:
    async with node(seeded(metadata(TransactionState.COMPLETE_COMMIT))) as running:
        offered = handlers_of(running.partitions)[Api.DESCRIBE_PRODUCERS]
        assert (offered.version_min, offered.version_max) == (0, 0)
        for sequence in (0, 1):
            assert await running.write((42, 5), sequence=sequence) == 0
        found, nothing = await _describe(running, ("t", [0, 1]))
        assert (nothing.error_code, nothing.active_producers) == (0, [])
        (during,) = found.active_producers
        assert (during.producer_id, during.producer_epoch, during.last_sequence) == (42, 5, 1)
        assert (during.last_timestamp, during.coordinator_epoch) == (START_MS, -1)
        assert during.current_txn_start_offset == 0

        running.now_ms += 5
        assert (await running.end((42, 5))).error_code == 0
        await running.settled()
        (found,) = await _describe(running, ("t", [0]))
        (after,) = found.active_producers
        # The bumped epoch of the marker forgets the batches.
        assert (after.producer_epoch, after.last_sequence) == (6, -1)
        assert (after.last_timestamp, after.coordinator_epoch) == (START_MS + 5, 1)
        assert after.current_txn_start_offset == -1


async def test_errors_are_answered_for_each_partition() -> None:
    async with node() as running:
        access = denied((Operation.READ, Resource.TOPIC, "u"))
        rows = await _describe(running, ("..", [0]), ("u", [0]), ("missing", [0, 1]), ("t", [2, 3]), access=access)
        assert [each.error_code for each in rows] == [
            Code.INVALID_TOPIC_EXCEPTION,
            Code.TOPIC_AUTHORIZATION_FAILED,
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            0,
            Code.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert [each.active_producers for each in rows] == [[]] * 6
