"""Logins and ACLs: the Java clients of Kafka 4.4.0, librdkafka, and the sink's connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from spark_2pc_sink.errors import AuthorizationError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer import TransactionalWriter
from spark_2pc_sink.testing import KafkaBroker, ReferenceCoordinator, free_port, read_topic, wait_until
from tests.conftest import MakeTopic, or_skip
from tests.harness.providers import Broker
from tests.harness.secure_kafka import MECHANISMS, PASSWORD, SCRAM, USER, LoginBroker, write_certificate
from tests.integration.reference.clients.java_client import BROKERS, JavaClients, JavaProcess, raises_java
from tests.integration.writer.writers import table_of

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PASSWORDS = {"admin": "all may", "alice": "secret"}


class SecureBroker:
    """A broker with a listener SASL_SSL beside the plain one, whose users are super users."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.authority = folder / "authority.pem"
        self.port = free_port()
        server: Any = KafkaBroker() if kind == "kafka" else ReferenceCoordinator(two_phase_commit=False)
        for name, value in {
            "listeners": f"SECURE://127.0.0.1:{self.port}",
            "advertised.listeners": f"SECURE://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "SECURE:SASL_SSL",
        }.items():
            server.properties[name] += f",{value}"
        issuer = trustme.CA()
        issuer.cert_pem.write_to_path(self.authority)
        write_certificate(folder / "server.pem", issuer.issue_cert("127.0.0.1", "localhost"))
        users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
        server.properties |= {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f"{JAAS} {users};",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "server.pem"),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:admin",
        }
        self.server: Broker = server.__enter__()

    def login(self, user: str, password: str | None = None) -> dict[str, str]:
        given = PASSWORDS[user] if password is None else password
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_jaas_config": f'{JAAS} username="{user}" password="{given}";',
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": str(self.authority),
        }


@pytest.fixture(scope="module", params=BROKERS)
def secure(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A broker that asks for logins and knows ACLs."""
    kind: str = request.param
    broker = or_skip(request.config, lambda: SecureBroker(kind, tmp_path_factory.mktemp("certificates")))
    yield broker
    broker.server.close()


@pytest.fixture
def java(java_process: JavaProcess, secure: SecureBroker) -> Iterator[JavaClients]:
    """Java clients of the secure listener; who they are is said for each."""
    clients = JavaClients(java_process, f"127.0.0.1:{secure.port}")
    yield clients
    clients.close()


class Acls:
    """Makes ACLs for alice, as admin."""

    def __init__(self, java: JavaClients, secure: SecureBroker) -> None:
        self._java = java
        self._made: list[Any] = []
        self.admin = java.admin(**secure.login("admin"))

    def binding(self, kind: str, name: str, operation: str) -> Any:
        common = self._java.kafka.common
        pattern = common.resource.ResourcePattern(
            getattr(common.resource.ResourceType, kind), name, common.resource.PatternType.LITERAL
        )
        allow = common.acl.AclPermissionType.ALLOW
        entry = common.acl.AccessControlEntry("User:alice", "*", getattr(common.acl.AclOperation, operation), allow)
        return common.acl.AclBinding(pattern, entry)

    def allow(self, kind: str, name: str, operation: str) -> None:
        self._made.append(self.binding(kind, name, operation))
        self._java.result(self.admin.createAcls(self._made[-1:]).all())

    def take_back(self) -> int:
        """Delete all that were made; how many there were."""
        deleted = self._java.result(self.admin.deleteAcls([made.toFilter() for made in self._made]).all())
        self._made.clear()
        return len(deleted)


@pytest.fixture
def acls(java: JavaClients, secure: SecureBroker) -> Iterator[Acls]:
    made = Acls(java, secure)
    yield made
    made.take_back()


@pytest.mark.java
def test_login_is_checked(java: JavaClients, secure: SecureBroker) -> None:
    java.result(java.admin(**secure.login("alice")).describeCluster().clusterId())
    with raises_java("SaslAuthenticationException"):
        java.result(java.admin(**secure.login("alice", "wrong")).describeCluster().clusterId())


@pytest.mark.java
def test_transaction_needs_write_on_its_id_and_its_topics(
    java: JavaClients, secure: SecureBroker, acls: Acls, topic: MakeTopic, transactional_id: str
) -> None:
    name = topic(partitions=1, broker=secure.server)
    settings = {**secure.login("alice"), "transactional_id": transactional_id}
    with raises_java("TransactionalIdAuthorizationException"):
        java.producer(**settings).initTransactions()
    acls.allow("TRANSACTIONAL_ID", transactional_id, "WRITE")
    acls.allow("TOPIC", name, "DESCRIBE")
    refused = java.producer(**settings)
    refused.initTransactions()
    refused.beginTransaction()
    with raises_java("TopicAuthorizationException"):
        java.send(refused, name, 0, "no")
    refused.abortTransaction()
    acls.allow("TOPIC", name, "WRITE")
    producer = java.producer(**settings)
    producer.initTransactions()
    producer.beginTransaction()
    java.send(producer, name, 0, "yes")
    producer.commitTransaction()
    described = acls.admin.describeTransactions([transactional_id]).all()
    assert str(java.result(described)[transactional_id].state()) in {"PrepareCommit", "CompleteCommit"}


@pytest.mark.java
def test_acls_are_listed_and_deleted(
    java: JavaClients, secure: SecureBroker, acls: Acls, transactional_id: str
) -> None:
    binding = acls.binding("TRANSACTIONAL_ID", transactional_id, "TWO_PHASE_COMMIT")

    def listed() -> list[str]:
        return [str(found) for found in java.result(acls.admin.describeAcls(binding.toFilter()).values())]

    acls.allow("TRANSACTIONAL_ID", transactional_id, "TWO_PHASE_COMMIT")
    assert listed() == [str(binding)]
    assert acls.take_back() == 1
    assert listed() == []
    with raises_java("ClusterAuthorizationException"):
        java.result(java.admin(**secure.login("alice")).describeAcls(binding.toFilter()).values())


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

    wait_until(lambda: written() == 3, what="the records of the transaction")


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
    wait_until(lambda: client.poll(0.1) > 0 or bool(told), what="the broker's refusal")
    assert REFUSALS[mechanism] in told[0]
