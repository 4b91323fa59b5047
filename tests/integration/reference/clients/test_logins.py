"""Logins with PLAIN and SCRAM by librdkafka and by the sink's connections: one answer, whichever broker gives it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from spark_2pc_sink.errors import AuthorizationError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer import TransactionalWriter
from spark_2pc_sink.testing import KafkaBroker, ReferenceCoordinator, read_topic, wait_until
from tests.conftest import or_skip
from tests.harness.secure_kafka import MECHANISMS, PASSWORD, SCRAM, USER, LoginBroker
from tests.integration.reference.clients.reading import BROKERS
from tests.integration.writer.writers import table_of

#: What a client is told whose password is wrong, or whose user is unknown.
REFUSALS = {
    "PLAIN": "Authentication failed: Invalid username or password",
    **{
        name: f"Authentication failed during authentication due to invalid credentials with SASL mechanism {name}"
        for name in SCRAM
    },
}


def make_scram_user(bootstrap: str) -> None:
    """Kafka keeps SCRAM's credentials in its metadata, and not with those of PLAIN."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        known = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([known]).values():
            done.result(30)


@pytest.fixture(scope="module", params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Iterator[LoginBroker]:
    kind = KafkaBroker if request.param == "kafka" else ReferenceCoordinator
    found = or_skip(request.config, lambda: LoginBroker(kind()))
    with found.server:
        if request.param == "kafka":
            make_scram_user(found.server.bootstrap)
        found.server.create_topic("t")
        yield found


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_writer_logs_in_and_writes(broker: LoginBroker, mechanism: str, transactional_id: str) -> None:
    with TransactionalWriter(
        transactional_id=transactional_id, kafka=broker.properties(mechanism), topic="t"
    ) as writer:
        writer.init_transactions()
        writer.begin_transaction()
        writer.append(table_of(3, prefix=transactional_id))
        writer.commit_transaction()

    def written() -> int:
        found = read_topic(broker.server.bootstrap, "t")
        return sum((record.value or b"").startswith(transactional_id.encode()) for record in found)

    wait_until(lambda: written() == 3, deadline_s=30, what="the records of the transaction")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("wrong", [{"password": "wrong"}, {"user": "bob"}], ids=["password", "user"])
def test_a_wrong_login_has_kafka_s_code_and_text(broker: LoginBroker, mechanism: str, wrong: dict[str, str]) -> None:
    options = KafkaOptions.parse(broker.properties(mechanism, **wrong))
    with Cluster(options) as cluster, pytest.raises(AuthorizationError) as caught:
        cluster.features()
    assert caught.value.code == 58
    assert REFUSALS[mechanism] in str(caught.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_is_told_the_same(broker: LoginBroker, mechanism: str) -> None:
    told: list[str] = []
    settings = broker.properties(mechanism, password="wrong")
    settings["error_cb"] = lambda error: told.append(error.str())
    client = AdminClient(settings)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.1)
    wait_until(lambda: client.poll(0.1) > 0 or bool(told), deadline_s=30, what="the broker's refusal")
    assert REFUSALS[mechanism] in told[0]
