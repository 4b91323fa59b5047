"""Servers given by address take the place of those started here, and say what they cannot do."""

from __future__ import annotations

import pytest

from spark_2pc_sink.testing import CapabilityError
from tests.harness.providers import Broker, BrokerRequest, Database, GivenBroker, GivenDatabase, GivenProvider


def test_a_given_broker_serves_requests_that_it_fulfils(kafka: Broker) -> None:
    given = GivenBroker(bootstrap=kafka.bootstrap, transaction_version=2, two_phase_commit=True)
    provider = GivenProvider(broker=given, database=None)
    assert provider.start_broker(BrokerRequest(two_phase_commit=True)).create_topic("given_topic") == "given_topic"
    with pytest.raises(CapabilityError, match="the test asks for"):
        provider.start_broker(BrokerRequest(transaction_version=0))
    with pytest.raises(CapabilityError, match="given by address"):
        given.kill()
    given.close()


def test_a_given_database_makes_databases(postgres: Database) -> None:
    given = GivenDatabase(url=postgres.url)
    provider = GivenProvider(broker=None, database=given)
    assert provider.start_postgres({}).create_database("given_database").endswith("/given_database")
    assert given.database_url("a", port=1).endswith(":1/a")
    given.drop_database("given_database")
    with pytest.raises(CapabilityError, match="fsync"):
        provider.start_postgres({"fsync": "on"})
