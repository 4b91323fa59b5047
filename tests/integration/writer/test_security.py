"""The writer at listeners that ask for logins and certificates, and what expires meanwhile. Covers B25 (no hang)."""

from __future__ import annotations

import logging
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from spark_2pc_sink.cli import main, output
from spark_2pc_sink.errors import (
    AuthorizationError,
    ConfigurationError,
    KafkaTimeoutError,
    TlsRefusedError,
    UnknownTopicError,
)
from spark_2pc_sink.kafka.batch_sender import BatchSender
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.logins.tokens import token_source
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.testing import TcpProxy, free_port
from spark_2pc_sink.testing.processes import find_java_home
from tests.conftest import or_skip
from tests.harness.acts import later
from tests.harness.helper_servers import KerberosKafka, KerberosRealm
from tests.harness.kafka_tools import make_scripts
from tests.harness.secure_kafka import PLAIN_PASSWORD, PLAIN_USER, SESSION_MS, SecureKafka, plain_login
from tests.harness.token_issuer import TokenBroker
from tests.integration.writer.writers import commit_rows, committed, logged_in, table_of, values, written

pytestmark = [pytest.mark.kafka, pytest.mark.java]

#: Both characters that SCRAM escapes in names (RFC 5802); passwords travel as they are.
USER, PASSWORD = "a=b,c", "pa,ss=wörd"
#: A login that is refused takes a tenth of a second (connection.failed.authentication.delay.ms); max.block.ms is 60 s.
AT_ONCE_S = 20
NAMED = ["--transactional-id", "x"]


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


def scram_login(mechanism: str, **changes: str) -> dict[str, str]:
    return {"sasl_mechanism": mechanism, "sasl_username": USER, "sasl_password": PASSWORD, **changes}


def write_and_read(kafka: SecureKafka, properties: dict[str, str | int], transactional_id: str) -> None:
    """One transaction, read back at the listener that asks for nothing."""
    with logged_in(properties, transactional_id) as writer:
        commit_rows(writer, table_of(10, prefix=transactional_id))
    assert written(kafka.broker.bootstrap, transactional_id) == 10


def test_a_login(kafka: SecureKafka, transactional_id: str) -> None:
    """Of a name with characters that SCRAM escapes."""
    write_and_read(kafka, kafka.properties("SASL_SSL", **scram_login("SCRAM-SHA-512")), transactional_id)


@pytest.mark.parametrize(
    ("listener", "mechanism"), [("SASL_PLAINTEXT", "PLAIN"), ("SASL_SSL", "PLAIN"), ("SASL_SSL", "SCRAM-SHA-512")]
)
def test_a_wrong_password_is_refused_at_once(listener: str, mechanism: str, kafka: SecureKafka) -> None:
    """B25: Kafka ends the connection together with its answer, which says why. User and mechanism are named."""
    login = plain_login if mechanism == "PLAIN" else lambda **changes: scram_login(mechanism, **changes)
    error = str(refused(kafka, listener, **login(sasl_password="wr0ng")))
    user = login()["sasl_username"]
    assert f"refused the login of user {user!r} with {mechanism}: Authentication failed" in error
    assert "SASL_AUTHENTICATION_FAILED, code 58" in error
    assert "wr0ng" not in error


def test_a_client_s_certificate(kafka: SecureKafka, transactional_id: str) -> None:
    properties = kafka.properties("SSL", ssl_certificate_location=str(kafka.folder / "client.pem"))
    write_and_read(kafka, properties, transactional_id)


def refused(kafka: SecureKafka, listener: str, **properties: Any) -> AuthorizationError:
    """The error of a client that no repetition would let in."""
    began_s = time.monotonic()
    with Cluster(kafka.options(listener, **properties)) as cluster, pytest.raises(AuthorizationError) as caught:
        cluster.features()
    assert time.monotonic() - began_s < AT_ONCE_S
    assert caught.value.__suppress_context__ or caught.value.__cause__ is None
    return caught.value


@pytest.mark.parametrize(
    ("listener", "properties", "says"),
    [
        ("SASL_SSL", {"ssl_ca_location": "stranger.pem"}, "set ssl.ca.location to a PEM file"),
        ("SASL_SSL", {"host": "127.0.0.1"}, "certificate is not valid for '127.0.0.1'"),
        ("EXPIRED", {}, "its certificate is refused (certificate has expired)"),
        ("FUTURE", {}, "its certificate is refused (certificate is not yet valid)"),
        ("SSL", {}, "set ssl.certificate.location"),
        ("SSL", {"ssl_certificate_location": "strange_client.pem"}, "refused the client's certificate"),
    ],
    ids=["unknown authority", "other name", "expired", "not valid yet", "no client's", "client's refused"],
)
def test_a_certificate_that_is_refused_ends_it_at_once(
    listener: str, properties: dict[str, str], says: str, kafka: SecureKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """B25: with the option that mends it, and what shows the certificate. The log has no line of its own."""
    login = plain_login() if listener.startswith("SASL") else {}
    files = {name: str(kafka.folder / value) if value.endswith(".pem") else value for name, value in properties.items()}
    error = refused(kafka, listener, **login, **files)
    assert isinstance(error, TlsRefusedError)
    assert re.search(r"localhost:\d+|127\.0\.0\.1:\d+", str(error))
    assert says in str(error)
    assert ("openssl s_client -showcerts -connect" in str(error)) is (listener != "SSL")
    assert "\n" not in str(error)
    assert PLAIN_PASSWORD not in str(error)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def type_in(command: str, *lines: str) -> str:
    """Run a command as in a shell, with these lines as what is typed where it asks; its output."""
    path = os.pathsep.join([str(find_java_home() / "bin"), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        input="".join(f"{line}\n" for line in lines),
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        start_new_session=True,  # without a terminal, programs read passwords from standard input
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.thorough
def test_a_java_key_store_is_converted_by_what_the_error_prints(
    kafka: SecureKafka, tmp_path: Path, transactional_id: str
) -> None:
    """Both stores, as Kafka's Java clients have them, in a folder whose name needs quotes."""
    folder = tmp_path / "it's here"
    folder.mkdir()
    trusted, own = folder / "trust.jks", folder / "own.jks"
    pkcs12, word = tmp_path / "own.p12", "changeit"
    type_in(
        f"keytool -importcert -noprompt -alias ca -file {kafka.folder / 'authority.pem'} -storepass {word} "
        f"-keystore {shlex.quote(str(trusted))} -storetype JKS && "
        f"openssl pkcs12 -export -in {kafka.folder / 'client.pem'} -out {pkcs12} -passout pass:{word} && "
        f"keytool -importkeystore -srckeystore {pkcs12} -srcstorepass {word} -deststorepass {word} "
        f"-destkeystore {shlex.quote(str(own))} -deststoretype JKS"
    )
    properties = kafka.properties("SSL")
    del properties["ssl.ca.location"]
    for store, path in (("ssl.truststore", trusted), ("ssl.keystore", own)):
        with pytest.raises(ConfigurationError) as refused_:
            KafkaOptions.parse(properties | {f"{store}.location": str(path)})
        for command in re.findall("`(.*?)`", refused_.value.remedy):
            type_in(command, *[word] * 3)
        [(option, pem)] = re.findall(r"set (\S+)=(.*) in place of", refused_.value.remedy)
        properties[option] = pem
    write_and_read(kafka, properties, transactional_id)


@pytest.mark.parametrize(
    ("listener", "properties", "says"),
    [
        ("SASL_SSL", {"security_protocol": "PLAINTEXT"}, "uses TLS.* set security.protocol=SSL"),
        ("SASL_PLAINTEXT", {"security_protocol": "SASL_SSL", **plain_login()}, "does not use TLS.*=SASL_PLAINTEXT"),
        ("PLAINTEXT", {"security_protocol": "SSL"}, "does not use TLS.* set security.protocol=PLAINTEXT"),
        ("PLAINTEXT", {"security_protocol": "SASL_PLAINTEXT", **plain_login()}, "not accept logins.*=PLAINTEXT"),
        ("SASL_PLAINTEXT", {"security_protocol": "PLAINTEXT"}, "requires a login by .*PLAIN.*=SASL_PLAINTEXT"),
        ("SASL_SSL", {"security_protocol": "SSL"}, "requires a login by .*SCRAM.*=SASL_SSL"),
    ],
    ids=["plain to TLS", "TLS to SASL", "TLS to plain", "login to plain", "no login", "no login with TLS"],
)
def test_another_protocol_than_the_listener_s_ends_it_at_once(
    listener: str, properties: dict[str, str], says: str, kafka: SecureKafka
) -> None:
    """B25: brokers end such connections without a word, and a probe finds out what they want."""
    assert re.search(says, str(refused(kafka, listener, **properties)))


def test_a_mechanism_that_the_broker_lacks(kafka: SecureKafka) -> None:
    properties = kafka.properties("SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER")
    options = KafkaOptions.parse({**properties, "oauth_cb": lambda _: ("a.b.c", time.time() + 60)})
    says = "does not support sasl.mechanism=OAUTHBEARER.* sasl.enabled.mechanisms"
    with Cluster(options) as cluster, pytest.raises(AuthorizationError, match=says):
        cluster.features()


def test_a_connection_that_is_reset_in_the_handshake_is_made_again(kafka: SecureKafka) -> None:
    """It may be temporary: the client gets through when the broker does, and else ends at its deadline."""
    with TcpProxy(target_port=kafka.ports["SASL_SSL"]) as proxy:
        properties: dict[str, Any] = kafka.properties("SASL_SSL", **plain_login())
        properties["bootstrap.servers"] = f"localhost:{proxy.port}"
        proxy.target_port = free_port()
        reachable = later(1.0, setattr, proxy, "target_port", kafka.ports["SASL_SSL"])
        with Cluster(KafkaOptions.parse(properties)) as cluster, reachable:
            began_s = time.monotonic()
            cluster.features()
            assert time.monotonic() - began_s > 0.9
        proxy.target_port = free_port()
        short = KafkaOptions.parse({**properties, "max.block.ms": 1_000})
        with Cluster(short) as cluster, pytest.raises(KafkaTimeoutError, match="1000 ms"):
            cluster.features()


@pytest.mark.parametrize(
    "words",
    [["status"], ["check", "--topic", "t", "--table", "target", *NAMED], ["transactions", "list"]],
    ids=lambda words: words[0],
)
def test_the_commands_tell_the_same(
    words: list[str],
    kafka: SecureKafka,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """B25: in one line, without a traceback."""
    properties = tmp_path / "client.properties"
    given = kafka.properties("SASL_SSL", host="127.0.0.1", **plain_login())
    properties.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    monkeypatch.setenv("SPARK_2PC_DATABASE", database)
    began_s = time.monotonic()
    code = main([*words, "--command-config", str(properties)])
    assert time.monotonic() - began_s < AT_ONCE_S
    assert code == (output.EXIT_IN_DOUBT if words[0] == "check" else output.EXIT_FAILED)
    told = capsys.readouterr()
    text = " ".join((told.out + told.err).split())  # check wraps its lines
    assert "Traceback" not in text
    assert text.count("is not valid for '127.0.0.1'") == text.count("ssl.endpoint.identification.algorithm=none") == 1
    assert [each for each in told.err.splitlines() if "WARNING" in each or "ERROR" in each] == []


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
    with logged_in(properties, transactional_id) as writer:
        writer.begin_transaction()
        while time.monotonic() - began_s < 4 * SESSION_MS / 1000:
            writer.append(rows)
            count += 1
        receipts = writer.flush()
        time.sleep(1.5 * SESSION_MS / 1000)  # the session of a connection that nobody uses ends, too
        writer.commit_transaction()
    assert sum(receipt.records for receipt in receipts.values()) == 5_000 * count
    assert 0 < most <= 5
    assert written(kafka.broker.bootstrap, transactional_id) == 5_000 * count


def test_a_topic_that_is_missing_is_created_by_what_the_error_prints(
    kafka: SecureKafka, pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Kafka's own script, with FILE for the properties of a client."""
    or_skip(pytestconfig, lambda: make_scripts(tmp_path))
    with Cluster(kafka.options("SASL_SSL", **plain_login())) as cluster:
        with pytest.raises(UnknownTopicError) as missing:
            cluster.partition_counts(["missing"])
        [command] = re.findall(r"kafka-topics\.sh .*?--create --topic \w+ --command-config FILE", str(missing.value))
        java = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="{PLAIN_USER}" password="{PLAIN_PASSWORD}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(kafka.folder / "authority.pem"),
        }
        (tmp_path / "FILE").write_text("".join(f"{name}={value}\n" for name, value in java.items()))
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        type_in(f"cd {tmp_path} && {command}")
        assert cluster.partition_counts(["missing"]) == {"missing": 1}


#: Of a token: kafka-python takes no session for shorter than a second. Of a ticket.
LIFETIME_S, TICKET_S = 2, 4
#: Of a certificate: for a broker's start and the first transaction.
LASTS = timedelta(seconds=30)
ROWS = 10


@pytest.fixture(scope="module")
def tokens(pytestconfig: pytest.Config) -> Iterator[TokenBroker]:
    """The broker, with a topic t of three partitions, and the issuer of its tokens."""
    with or_skip(pytestconfig, TokenBroker) as broker:
        broker.create_topic("t", partitions=3)
        broker.issuer.lifetime_s = 60
        yield broker


def rows_of(transactional_id: str) -> pa.Table:
    return pa.table({"value": [f"{transactional_id}-{number}".encode() for number in range(ROWS)]})


@pytest.mark.slow
def test_tokens_expire_while_records_are_on_their_way(
    tokens: TokenBroker, transactional_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-368: connections log in again with new tokens, those that nobody uses meanwhile too."""
    monkeypatch.setattr(tokens.issuer, "lifetime_s", LIFETIME_S)
    before = tokens.issuer.issued
    count, began_s = 0, time.monotonic()
    with logged_in(tokens.client_properties(), transactional_id) as writer:
        while time.monotonic() - began_s < 2.5 * LIFETIME_S:
            commit_rows(writer, rows_of(transactional_id))
            count += 1
        writer.begin_transaction()
        writer.append(rows_of(transactional_id))
        writer.flush()
        time.sleep(1.2 * LIFETIME_S)  # the session of a connection that nobody uses ends, too
        writer.commit_transaction()
    assert written(tokens.bootstrap, transactional_id) == ROWS * (count + 1)
    # As many as lives have passed, and no token for each connection or request.
    assert 3 <= tokens.issuer.issued - before <= 8


def test_a_token_that_the_broker_refuses_is_told_at_once(tokens: TokenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an issuer that the broker knows, for somebody else."""
    monkeypatch.setattr(tokens.issuer, "audience", "another broker")
    began_s = time.monotonic()
    options = KafkaOptions.parse(tokens.client_properties(lambda _: tokens.issuer.token()))
    with (
        Cluster(options) as cluster,
        pytest.raises(AuthorizationError, match=r"invalid_token.*SASL_AUTHENTICATION_FAILED, code 58"),
    ):
        cluster.features()
    assert time.monotonic() - began_s < AT_ONCE_S


def test_a_token_that_was_revoked_is_asked_for_anew(tokens: TokenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection shows the token of the one before, which brokers take no more, and gets another one."""
    options = KafkaOptions.parse(tokens.client_properties(lambda _: tokens.issuer.token()))
    with monkeypatch.context() as patch:
        patch.setattr(tokens.issuer, "audience", "another broker")
        source = token_source(options)
        assert source is not None
        source.token()
    before = tokens.issuer.issued
    with Cluster(options) as cluster:
        assert cluster.features().transaction_version == 2
    assert tokens.issuer.issued - before == 1


@pytest.fixture(scope="module")
def realm(pytestconfig: pytest.Config) -> Iterator[KerberosKafka]:
    with or_skip(pytestconfig, lambda: KerberosRealm(life_s=TICKET_S)) as made:
        secure = or_skip(pytestconfig, lambda: KerberosKafka(made))
        with secure.broker as broker:
            broker.create_topic("t", partitions=3)
            yield secure


@pytest.fixture
def environment(realm: KerberosKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This process belongs to the realm, and has no ticket yet."""
    for name, value in realm.realm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    realm.realm.environment["KRB5CCNAME"] = f"FILE:{tmp_path / 'tickets'}"
    return monkeypatch


@pytest.mark.thorough
def test_a_keytab_renews_tickets_by_itself(
    realm: KerberosKafka, environment: pytest.MonkeyPatch, transactional_id: str
) -> None:
    """Sessions end each second and tickets each four; the transaction outlives two of them."""
    environment.setenv("KRB5_CLIENT_KTNAME", str(realm.client_keytab))
    began_s, count = time.monotonic(), 0
    with logged_in(realm.properties(), transactional_id) as writer:
        writer.begin_transaction()
        while time.monotonic() - began_s < 2.5 * TICKET_S:
            writer.append(table_of(ROWS, first=count * ROWS, prefix=transactional_id))
            writer.flush()
            count += 1
        writer.commit_transaction()
    assert written(realm.broker.bootstrap, transactional_id) == count * ROWS


@pytest.mark.thorough
@pytest.mark.usefixtures("environment")
def test_without_a_ticket_the_error_says_so_at_the_deadline(realm: KerberosKafka) -> None:
    """B25: the login is tried until then, since a ticket may come."""
    options = KafkaOptions.parse(realm.properties(max_block_ms=2_000))
    with Cluster(options) as cluster, pytest.raises(KafkaTimeoutError, match=r"No Kerberos credentials available"):
        cluster.features()


@pytest.mark.thorough
def test_a_certificate_expires_in_mid_run(pytestconfig: pytest.Config, tmp_path: Path, transactional_id: str) -> None:
    """B25: what is connected goes on, as TLS asks at its beginning only; a new connection names the date."""
    secure = or_skip(pytestconfig, lambda: SecureKafka(tmp_path))
    last = datetime.now(timezone.utc) + LASTS
    secure.date("EXPIRED", last)
    properties = secure.properties("EXPIRED")
    with secure.broker as broker:
        broker.create_topic("t", partitions=2)
        with logged_in(properties, transactional_id) as writer:
            writer.begin_transaction()
            writer.append(table_of(10))
            writer.flush()
            left_s = (last - datetime.now(timezone.utc)).total_seconds()
            assert left_s > 0, "the certificate expired before the transaction began"
            time.sleep(left_s + 1.5)
            writer.append(table_of(10, first=10))
            writer.commit_transaction()
        with Cluster(secure.options("EXPIRED")) as cluster, pytest.raises(TlsRefusedError, match="has expired"):
            cluster.features()
        secure.date("EXPIRED", last + timedelta(days=1))
        broker.restart()
        with logged_in(properties, transactional_id) as writer:
            commit_rows(writer, table_of(10, first=20))
        assert values(committed(broker.bootstrap, "t", transactional_id)) == sorted(f"value-{n}" for n in range(30))
