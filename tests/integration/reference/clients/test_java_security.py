"""The Java clients of Kafka 4.4.0 over SASL_SSL: logins, and ACLs that admit, refuse and are listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from spark_2pc_sink.testing import KafkaBroker, ReferenceCoordinator, free_port
from tests.conftest import MakeTopic, or_skip
from tests.harness.providers import Broker
from tests.harness.secure_kafka import write_certificate
from tests.integration.reference.clients.java_client import JavaClients, JavaProcess, raises_java
from tests.integration.reference.clients.reading import BROKERS

pytestmark = pytest.mark.java

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PASSWORDS = {"admin": "all may", "alice": "secret"}


class SecureBroker:
    """A broker with a listener SASL_SSL beside the plain one, whose users are super users.

    Args:
        kind: ``kafka`` or ``reference``.
        folder: for certificates.
    """

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
        """Settings of a client that logs in."""
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


def test_login_is_checked(java: JavaClients, secure: SecureBroker) -> None:
    java.result(java.admin(**secure.login("alice")).describeCluster().clusterId())
    with raises_java("SaslAuthenticationException"):
        java.result(java.admin(**secure.login("alice", "wrong")).describeCluster().clusterId())


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
