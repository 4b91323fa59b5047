"""kafka-python 3: transactions, and the versions that it is offered."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.protocol.api_key import ApiKey

from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.reference.clients.reading import DEADLINE_S, committed_values, values

# A call of kafka-python's producer has no deadline of its own.
pytestmark = pytest.mark.timeout(90)


def send(producer: Any, topic: str, *values: str, partition: int = 0) -> None:
    for future in [producer.send(topic, value.encode(), partition=partition) for value in values]:
        future.get(DEADLINE_S)


def test_transactions_commit_and_abort(client_broker: Broker, topic: MakeTopic, transactional_id: str) -> None:
    bootstrap, name = client_broker.bootstrap, topic(partitions=2, broker=client_broker)
    with closing(KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)) as producer:
        producer.init_transactions()
        for number, commit in enumerate([True, False, True]):
            producer.begin_transaction()
            for partition in range(2):
                send(producer, name, f"{number}-{partition}", partition=partition)
            producer.commit_transaction() if commit else producer.abort_transaction()
    assert committed_values(bootstrap, name, 4) == ["0-0", "2-0", "0-1", "2-1"]
    assert len(values(bootstrap, name, "read_uncommitted")) == 6


def test_server_offers_the_versions_that_clients_look_for(client_broker: Broker) -> None:
    """Old versions of Produce are named, though none is taken: librdkafka finds out about compression by them."""
    with closing(KafkaAdminClient(bootstrap_servers=client_broker.bootstrap)) as admin:
        offered = admin.get_broker_version_data(1).api_versions
    # Released versions only: v6 of InitProducerId is KIP-939's.
    assert (offered[ApiKey.Produce], offered[ApiKey.Fetch]) == ((0, 13), (4, 18))
    assert (offered[ApiKey.InitProducerId], offered[ApiKey.EndTxn]) == ((0, 5), (0, 5))
