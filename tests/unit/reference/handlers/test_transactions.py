"""The transaction APIs from message to message, in all their versions."""

from __future__ import annotations

import uuid

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.metadata.catalog_state import Topic
from spark_2pc_sink.reference.network.request_channel import join
from spark_2pc_sink.reference.protocol.api import handlers_of
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.node import batch, node
from tests.unit.reference.seeds import known


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
