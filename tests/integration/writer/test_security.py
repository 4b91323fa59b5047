"""The writer at listeners that ask for logins and certificates, on Apache Kafka. Covers B25 (no hang)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from spark_2pc_sink.errors import AuthorizationError, KafkaTimeoutError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.batch_sender import BatchSender
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.writer import TransactionalWriter
from spark_2pc_sink.testing import KafkaBroker, free_port
from tests.conftest import or_skip
from tests.integration.writer.writers import committed, kafka_for, options_for, table_of

pytestmark = [pytest.mark.kafka, pytest.mark.java]

#: Both characters that SCRAM escapes in names (RFC 5802); passwords travel as they are.
USER, PASSWORD = "a=b,c", "pa,ss=wörd"
PLAIN_USER, PLAIN_PASSWORD = "alice", "secret"
SESSION_MS = 1_000
#: A login that is refused takes a tenth of a second (connection.failed.authentication.delay.ms); max.block.ms is 60 s.
AT_ONCE_S = 20
_MODULES = "org.apache.kafka.common.security"


class SecureKafka:
    """A broker with a listener for each protocol, all of the name localhost and of no other.

    Args:
        folder: for certificates.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._make_certificates()
        self.broker = KafkaBroker(two_phase_commit=True)
        self.ports = {name: free_port() for name in ("SASL_PLAINTEXT", "SASL_SSL", "SSL", "SESSIONS")}
        properties = self.broker.properties
        for name, port in self.ports.items():
            for listeners in ("listeners", "advertised.listeners"):
                # Not the address: what is compared with the certificate is the name in the answer to Metadata, too.
                host = "127.0.0.1" if listeners == "listeners" else "localhost"
                properties[listeners] += f",{name}://{host}:{port}"
        protocols = ",SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,SESSIONS:SASL_PLAINTEXT"
        properties["listener.security.protocol.map"] += protocols
        plain = f'{_MODULES}.plain.PlainLoginModule required user_{PLAIN_USER}="{PLAIN_PASSWORD}";'
        properties |= {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "authority.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.sessions.plain.connections.max.reauth.ms": str(SESSION_MS),
        }
        for name in ("sasl_plaintext", "sasl_ssl", "sessions"):
            properties[f"listener.name.{name}.plain.sasl.jaas.config"] = plain
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                jaas = f"{_MODULES}.scram.ScramLoginModule required;"
                properties[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = jaas

    def _make_certificates(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.folder / "authority.pem")
        for name, who in {"server.pem": "localhost", "client.pem": "client@example.org"}.items():
            issued = authority.issue_cert(who)
            key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
            # Kafka wants PKCS #8.
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            (self.folder / name).write_bytes(pem + b"".join(part.bytes() for part in issued.cert_chain_pems))

    def properties(self, listener: str, *, host: str = "localhost", **properties: str | int) -> dict[str, str | int]:
        """Properties of a client of a listener, which trusts the broker's authority where there is TLS."""
        protocol = "SASL_PLAINTEXT" if listener == "SESSIONS" else listener
        tls = {"ssl_ca_location": str(self.folder / "authority.pem")} if protocol.endswith("SSL") else {}
        address = f"{host}:{self.ports[listener]}"
        return kafka_for(address, **{"security_protocol": protocol, **tls, **properties})

    def options(self, listener: str, **properties: Any) -> KafkaOptions:
        """The options that `properties` become."""
        return KafkaOptions.parse(self.properties(listener, **properties))


@pytest.fixture(scope="module")
def kafka(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """The broker, with a topic t of three partitions, and `USER` known by both kinds of SCRAM."""
    secure = or_skip(pytestconfig, lambda: SecureKafka(tmp_path_factory.mktemp("certificates")))
    with secure.broker as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            known = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for done in admin.alter_user_scram_credentials([known]).values():
                done.result(30)
        broker.create_topic("t", partitions=3)
        yield secure


def plain_login(**changes: str) -> dict[str, str]:
    return {"sasl_mechanism": "PLAIN", "sasl_username": PLAIN_USER, "sasl_password": PLAIN_PASSWORD, **changes}


def scram_login(mechanism: str, **changes: str) -> dict[str, str]:
    return {"sasl_mechanism": mechanism, "sasl_username": USER, "sasl_password": PASSWORD, **changes}


def write_and_read(kafka: SecureKafka, properties: dict[str, str | int], transactional_id: str) -> None:
    """One transaction, read back at the listener that asks for nothing."""
    with TransactionalWriter(transactional_id=transactional_id, kafka=properties, topic="t") as writer:
        writer.init_transactions()
        writer.begin_transaction()
        writer.append(table_of(10, prefix=transactional_id))
        writer.commit_transaction()
    found = committed(kafka.broker.bootstrap, "t", transactional_id)
    assert sum((record.value or b"").startswith(transactional_id.encode()) for record in found) == 10


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login(listener: str, mechanism: str, kafka: SecureKafka, transactional_id: str) -> None:
    """Also of a name with characters that SCRAM escapes."""
    login = plain_login() if mechanism == "PLAIN" else scram_login(mechanism)
    write_and_read(kafka, kafka.properties(listener, **login), transactional_id)


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_at_once(listener: str, mechanism: str, kafka: SecureKafka) -> None:
    """B25: Kafka ends the connection together with its answer, which says why."""
    login = plain_login if mechanism == "PLAIN" else lambda **changes: scram_login(mechanism, **changes)
    began_s = time.monotonic()
    with (
        Cluster(kafka.options(listener, **login(sasl_password="wrong"))) as cluster,
        pytest.raises(AuthorizationError, match=r"SASL_AUTHENTICATION_FAILED \(58\).*[Aa]uthentication failed"),
    ):
        cluster.features()
    assert time.monotonic() - began_s < AT_ONCE_S


def test_a_client_s_certificate(kafka: SecureKafka, transactional_id: str) -> None:
    properties = kafka.properties("SSL", ssl_certificate_location=str(kafka.folder / "client.pem"))
    write_and_read(kafka, properties, transactional_id)


def test_another_name_than_the_certificate_s_is_told(kafka: SecureKafka) -> None:
    """B25: in time, and with the name."""
    options = kafka.options("SASL_SSL", host="127.0.0.1", max_block_ms=2_000, **plain_login())
    text = "security.protocol=SASL_SSL .*2000 ms.*certificate is not valid for '127.0.0.1'"
    with Cluster(options) as cluster, pytest.raises(KafkaTimeoutError, match=text):
        cluster.features()


def test_a_certificate_that_the_broker_misses_is_told(kafka: SecureKafka) -> None:
    with (
        Cluster(kafka.options("SSL", max_block_ms=2_000)) as cluster,
        pytest.raises(KafkaTimeoutError, match=r"security\.protocol=SSL .*2000 ms.*certificate"),
    ):
        cluster.features()


def test_another_protocol_than_the_listener_s_is_told(kafka: SecureKafka) -> None:
    """B25: such connections end without a reason, so the error says what was tried."""
    options = options_for(f"localhost:{kafka.ports['SASL_SSL']}", max_block_ms=2_000)
    with Cluster(options) as cluster, pytest.raises(KafkaTimeoutError, match=r"security\.protocol=PLAINTEXT .*2000 ms"):
        cluster.features()


@pytest.mark.slow
def test_sessions_end_while_records_are_on_their_way(
    kafka: SecureKafka, transactional_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-368, connections.max.reauth.ms: connections log in again, and no more is under way meanwhile than ever."""
    most, pump = 0, BatchSender.pump

    def counted(sender: BatchSender, wait_s: float) -> None:
        nonlocal most
        pump(sender, wait_s)
        most = max(most, len(sender._requests))

    monkeypatch.setattr(BatchSender, "pump", counted)
    rows = pa.table({"value": [f"{transactional_id}-{number}".ljust(200, ".").encode() for number in range(5_000)]})
    count, began_s = 0, time.monotonic()
    properties = kafka.properties("SESSIONS", batch_size=4_000, **plain_login())
    with TransactionalWriter(transactional_id=transactional_id, kafka=properties, topic="t") as writer:
        writer.init_transactions()
        writer.begin_transaction()
        while time.monotonic() - began_s < 4 * SESSION_MS / 1000:
            writer.append(rows)
            count += 1
        receipts = writer.flush()
        time.sleep(1.5 * SESSION_MS / 1000)  # the session of a connection that nobody uses ends, too
        writer.commit_transaction()
    assert sum(receipt.records for receipt in receipts.values()) == 5_000 * count
    assert 0 < most <= 5
    found = committed(kafka.broker.bootstrap, "t", transactional_id)
    assert sum((record.value or b"").startswith(transactional_id.encode()) for record in found) == 5_000 * count
