"""The transaction APIs from message to message, in all their versions."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka.protocol import producer

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, Operation, Resource
from spark_2pc_sink.reference.metadata.catalog_state import Topic
from spark_2pc_sink.reference.network.request_channel import join
from spark_2pc_sink.reference.protocol.api import handlers_of
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.coordinator.access import denied
from tests.unit.reference.node import TID, Node, batch, exchange, node
from tests.unit.reference.seeds import known, seeded

T0 = TopicPartition("t", 0)


async def test_the_versions_are_those_of_kafka_and_six_of_init_producer_id_is_unstable() -> None:
    async with node(known()) as running:
        stable = join([handlers_of(running.transactions)], unstable_versions=False)
        offered = {api: (each.version_min, each.version_max) for api, each in stable.items()}
        assert offered == {
            Api.INIT_PRODUCER_ID: (0, 5),
            Api.ADD_PARTITIONS_TO_TXN: (0, 5),
            Api.ADD_OFFSETS_TO_TXN: (0, 4),
            Api.END_TXN: (0, 5),
            Api.WRITE_TXN_MARKERS: (1, 2),
            Api.DESCRIBE_TRANSACTIONS: (0, 0),
            Api.LIST_TRANSACTIONS: (0, 2),
        }
        assert handlers_of(running.transactions)[Api.INIT_PRODUCER_ID].version_max == 6


@pytest.mark.parametrize("longest", ["x" * 32767, "\u00fc" * 16383 + "x"])
async def test_an_id_that_no_record_can_hold_is_refused_and_nothing_stays_pending(longest: str) -> None:
    """Its length stands in two bytes of the log's key (TransactionLogKey). Kafka closes the connection, too."""
    async with node() as running:
        assert (await running.init(longest)).error_code == 0
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match="more than 32767 bytes"):
                await running.init(longest + "x")
        assert running.state(longest + "x") == ""


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
async def test_what_a_client_may_not_add_to_a_transaction_it_may_not_produce_to(name: str) -> None:
    """The names are those of ``Topic.INTERNAL_TOPICS`` of Kafka 4.4.0."""
    async with node(known()) as running:
        running.disk.topics.setdefault(name, Topic(name, uuid.uuid4(), 1))
        before = running.batches(name)
        assert await running.add((42, 5), (name, 0)) == [Code.TOPIC_AUTHORIZATION_FAILED]
        answers = await running.produce({(name, 0): batch(b"v")}, tid=None)
        assert answers[name, 0].error_code == Code.INVALID_TOPIC_EXCEPTION
        assert running.batches(name) == before


@pytest.mark.parametrize("version", range(5))
async def test_add_offsets_adds_the_partition_of_the_group(version: int) -> None:
    async with node(known()) as running:

        async def add(epoch: int, access: Access = FULL_ACCESS) -> Any:
            request = producer.AddOffsetsToTxnRequest(
                transactional_id=TID, producer_id=42, producer_epoch=epoch, group_id="g"
            )
            return await exchange(
                running.transactions.add_offsets, request, producer.AddOffsetsToTxnResponse, version, access=access
            )

        fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
        assert (await add(4)).error_code == fenced
        assert (
            await add(5, denied((Operation.READ, Resource.GROUP, "g")))
        ).error_code == Code.GROUP_AUTHORIZATION_FAILED
        added = await add(5)
        assert (added.throttle_time_ms, added.error_code) == (0, 0)
        found = running.service.state.get(TID)
        assert found is not None
        assert {each.topic for each in found.partitions} == {"__consumer_offsets"}


# --- markers of others ------------------------------------------------------------------------------------------------


def _marker(pair: tuple[int, int], *topics: tuple[str, list[int]], commit: bool = False, **fields: int) -> Any:
    kind = producer.WriteTxnMarkersRequest.WritableTxnMarker
    return kind(
        producer_id=pair[0],
        producer_epoch=pair[1],
        transaction_result=commit,
        topics=[kind.WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics],
        **{"coordinator_epoch": 0, "transaction_version": 0} | fields,
    )


async def _write(
    running: Node, *markers: Any, version: int = 2, access: Access = FULL_ACCESS
) -> list[tuple[int, dict[tuple[str, int], int]]]:
    response = await exchange(
        running.transactions.write_markers,
        producer.WriteTxnMarkersRequest(markers=list(markers)),
        producer.WriteTxnMarkersResponse,
        version,
        access=access,
    )
    return [
        (
            each.producer_id,
            {(topic.name, row.partition_index): row.error_code for topic in each.topics for row in topic.partitions},
        )
        for each in response.markers
    ]


@pytest.mark.parametrize("version", [1, 2])
async def test_markers_of_another_coordinator_are_written_and_durable(version: int) -> None:
    async with node(seeded(data={T0: (42, 5)})) as running:
        marker = _marker((42, 5), ("t", [0, 7]), ("missing", [0]))
        assert await _write(running, marker, version=version) == [(42, {("t", 0): 0, ("t", 7): 3, ("missing", 0): 3})]
        assert running.markers_of() == [(42, 5, "abort")]
        got = await running.read()
        assert got.last_stable_offset == got.high_watermark == 2


# --- queries ----------------------------------------------------------------------------------------------------------
