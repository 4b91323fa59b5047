"""The tool for transactions on a cluster of two brokers: it is told of one, and must find the other. Covers B16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_2pc_sink.errors import KafkaTimeoutError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.testing import KafkaBroker
from spark_2pc_sink.transactions import ListFilter, TransactionTool
from tests import conftest
from tests.integration.transactions_tool.hanging import VERIFIES_NOTHING, produce_raw
from tests.integration.writer.writers import options_for

IDS = 8


@pytest.fixture
def two_brokers(pytestconfig: pytest.Config, brokers: Any) -> Iterator[tuple[KafkaBroker, KafkaBroker]]:
    """A controller that is a broker too, and a second broker; each coordinates half of the transaction log."""
    properties = {**VERIFIES_NOTHING, "transaction.state.log.num.partitions": "2"}
    first, second = conftest.or_skip(
        pytestconfig, lambda: [KafkaBroker(node_id=node_id, properties=properties) for node_id in (1, 2)]
    )
    second.cluster_id = first.cluster_id
    for node in (first, second):
        node.properties["controller.quorum.voters"] = f"1@127.0.0.1:{first.controller_port}"
    second.properties["process.roles"] = "broker"
    listeners = second.properties["listeners"].split(",")
    second.properties["listeners"] = ",".join(item for item in listeners if not item.startswith("CONTROLLER"))
    try:
        first.launch()
        second.launch()
        first.wait_until_ready()
        second.wait_until_ready()
        yield first, second
    finally:
        second.close()
        first.close()


@pytest.mark.slow
def test_every_broker_is_asked_and_a_missing_one_is_missed(two_brokers: tuple[KafkaBroker, KafkaBroker]) -> None:
    """Leaders and coordinators are spread over two brokers. With one of them gone, nothing is called unknown."""
    first, second = two_brokers
    name = first.create_topic("spread", partitions=2)
    options = options_for(first.bootstrap)
    with Cluster(options) as cluster:
        for number in range(IDS):
            TransactionClient(cluster, f"id-{number}", options).init_producer_id()
    with TransactionTool(kafka={"bootstrap.servers": first.bootstrap}) as tool:
        listed = tool.list_transactions()
        assert [row.transactional_id for row in listed] == [f"id-{number}" for number in range(IDS)]
        assert {row.coordinator for row in listed} == {1, 2}
        for node in (1, 2):
            of_one = tool.list_transactions(ListFilter(broker_id=node))
            assert of_one == tuple(row for row in listed if row.coordinator == node)
        for partition in (0, 1):
            produce_raw(first.bootstrap, TopicPartition(name, partition), ProducerIdAndEpoch(2**40 + partition, 0))
        hanging = tool.find_hanging()
        assert [(row.partition, row.producer_id) for row in hanging] == [(0, 2**40), (1, 2**40 + 1)]
        here, there = (tool.find_hanging(broker_id=node) for node in (1, 2))
        assert sorted(row.partition for row in (*here, *there)) == [0, 1]
        assert len(here) == 1
        for row in listed:
            assert tool.force_terminate(row.transactional_id).producer_epoch == 1
        tool.abort(name, there[0].partition, start_offset=0)
        (left,) = tool.find_hanging()
        assert left.partition == here[0].partition
    second.stop()
    with (
        TransactionTool(kafka={"bootstrap.servers": first.bootstrap, "max.block.ms": "8000"}) as tool,
        pytest.raises(KafkaTimeoutError, match=r"__transaction_state have no leader|no answer"),
    ):
        tool.abort(name, here[0].partition, start_offset=0)
