"""The writer at a listener that asks for tokens (SASL/OAUTHBEARER), on Apache Kafka with an issuer of our own."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_2pc_sink.errors import AuthorizationError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.logins.tokens import token_source
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer import TransactionalWriter
from tests.conftest import or_skip
from tests.harness.token_issuer import TokenBroker
from tests.integration.writer.writers import commit_rows, committed

pytestmark = [pytest.mark.kafka, pytest.mark.java]

#: kafka-python takes no session for shorter than a second.
LIFETIME_S = 2
AT_ONCE_S = 20
ROWS = 10


@pytest.fixture(scope="module")
def kafka(pytestconfig: pytest.Config) -> Iterator[TokenBroker]:
    """The broker, with a topic t of three partitions, and the issuer of its tokens."""
    with or_skip(pytestconfig, TokenBroker) as broker:
        broker.create_topic("t", partitions=3)
        broker.issuer.lifetime_s = 60
        yield broker


def rows_of(transactional_id: str) -> pa.Table:
    return pa.table({"value": [f"{transactional_id}-{number}".encode() for number in range(ROWS)]})


def written(kafka: TokenBroker, transactional_id: str) -> int:
    """How many records of this writer a reader of committed records sees."""
    found = committed(kafka.bootstrap, "t", transactional_id)
    return sum((record.value or b"").startswith(transactional_id.encode()) for record in found)


@pytest.mark.slow
def test_tokens_expire_while_records_are_on_their_way(
    kafka: TokenBroker, transactional_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-368: connections log in again with new tokens, those that nobody uses meanwhile too."""
    monkeypatch.setattr(kafka.issuer, "lifetime_s", LIFETIME_S)
    before = kafka.issuer.issued
    count, began_s = 0, time.monotonic()
    with TransactionalWriter(transactional_id=transactional_id, kafka=kafka.client_properties(), topic="t") as writer:
        writer.init_transactions()
        while time.monotonic() - began_s < 2.5 * LIFETIME_S:
            commit_rows(writer, rows_of(transactional_id))
            count += 1
        writer.begin_transaction()
        writer.append(rows_of(transactional_id))
        writer.flush()
        time.sleep(1.2 * LIFETIME_S)  # the session of a connection that nobody uses ends, too
        writer.commit_transaction()
    assert written(kafka, transactional_id) == ROWS * (count + 1)
    # As many as lives have passed, and no token for each connection or request.
    assert 3 <= kafka.issuer.issued - before <= 8


def test_a_token_that_the_broker_refuses_is_told_at_once(kafka: TokenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an issuer that the broker knows, for somebody else."""
    monkeypatch.setattr(kafka.issuer, "audience", "another broker")
    began_s = time.monotonic()
    options = KafkaOptions.parse(kafka.client_properties(lambda _: kafka.issuer.token()))
    with (
        Cluster(options) as cluster,
        pytest.raises(AuthorizationError, match=r"invalid_token.*SASL_AUTHENTICATION_FAILED, code 58"),
    ):
        cluster.features()
    assert time.monotonic() - began_s < AT_ONCE_S


def test_a_token_that_was_revoked_is_asked_for_anew(kafka: TokenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection shows the token of the one before, which brokers take no more, and gets another one."""
    options = KafkaOptions.parse(kafka.client_properties(lambda _: kafka.issuer.token()))
    with monkeypatch.context() as patch:
        patch.setattr(kafka.issuer, "audience", "another broker")
        source = token_source(options)
        assert source is not None
        source.token()
    before = kafka.issuer.issued
    with Cluster(options) as cluster:
        assert cluster.features().transaction_version == 2
    assert kafka.issuer.issued - before == 1
