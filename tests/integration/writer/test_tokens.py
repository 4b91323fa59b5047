"""The writer at a listener that asks for tokens (SASL/OAUTHBEARER), on Apache Kafka with an issuer of our own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.errors import AuthorizationError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.writer import TransactionalWriter
from tests.conftest import or_skip
from tests.harness.token_broker import TokenBroker
from tests.integration.writer.writers import committed

pytestmark = [pytest.mark.kafka, pytest.mark.java]

#: kafka-python takes no session for shorter than a second.
LIFETIME_S = 3
AT_ONCE_S = 20


@pytest.fixture(scope="module")
def kafka(pytestconfig: pytest.Config) -> Iterator[TokenBroker]:
    """The broker, with a topic t of three partitions, and the issuer of its tokens."""
    with or_skip(pytestconfig, TokenBroker) as broker:
        broker.create_topic("t", partitions=3)
        yield broker


@pytest.fixture(params=["oidc", "oauth_cb"])
def properties(request: pytest.FixtureRequest, kafka: TokenBroker) -> dict[str, Any]:
    """Of a client that gets its tokens in one of the two ways."""
    kafka.issuer.lifetime_s = LIFETIME_S
    if request.param == "oidc":
        return kafka.client_properties()
    from_function = kafka.client_properties(lambda config: kafka.issuer.token(subject=config))
    return from_function | {"sasl.oauthbearer.config": "orders"}


def test_tokens_expire_while_records_are_on_their_way(
    kafka: TokenBroker, properties: dict[str, Any], transactional_id: str
) -> None:
    """KIP-368: connections log in again with new tokens, those that nobody uses meanwhile too."""
    before = kafka.issuer.issued
    rows = pa.table({"value": [f"{transactional_id}-{number}".encode() for number in range(10)]})
    count, began_s = 0, time.monotonic()
    with TransactionalWriter(transactional_id=transactional_id, kafka=properties, topic="t") as writer:
        writer.init_transactions()
        while time.monotonic() - began_s < 2.5 * LIFETIME_S:
            writer.begin_transaction()
            writer.append(rows)
            writer.commit_transaction()
            count += 1
        writer.begin_transaction()
        writer.append(rows)
        writer.flush()
        time.sleep(1.2 * LIFETIME_S)  # the session of a connection that nobody uses ends, too
        writer.commit_transaction()
    found = committed(kafka.bootstrap, "t", transactional_id)
    assert sum((record.value or b"").startswith(transactional_id.encode()) for record in found) == 10 * (count + 1)
    # As many as lives have passed, and no token for each connection or request.
    assert 3 <= kafka.issuer.issued - before <= 8


def test_a_wrong_secret_is_refused_at_once(kafka: TokenBroker) -> None:
    options = KafkaOptions.parse(kafka.client_properties() | {"sasl.oauthbearer.client.secret": "wrong"})
    began_s = time.monotonic()
    text = "the token endpoint .* answered Unauthorized \\(401\\): client 'orders' gets no token: invalid_client"
    with Cluster(options) as cluster, pytest.raises(AuthorizationError, match=text):
        cluster.features()
    assert time.monotonic() - began_s < AT_ONCE_S


def test_a_token_that_the_broker_refuses_is_told_at_once(kafka: TokenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an issuer that the broker knows, for somebody else."""
    monkeypatch.setattr(kafka.issuer, "audience", "another broker")
    began_s = time.monotonic()
    options = KafkaOptions.parse(kafka.client_properties(lambda _: kafka.issuer.token()))
    with (
        Cluster(options) as cluster,
        pytest.raises(AuthorizationError, match=r"SASL_AUTHENTICATION_FAILED \(58\).*invalid_token"),
    ):
        cluster.features()
    assert time.monotonic() - began_s < AT_ONCE_S
