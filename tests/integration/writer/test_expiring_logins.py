"""What expires while a writer is connected to Apache Kafka: tokens (OAUTHBEARER), Kerberos tickets, certificates.

The issuer of the tokens and the realm are of this machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from spark_2pc_sink.errors import AuthorizationError, KafkaTimeoutError, TlsRefusedError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.logins.tokens import token_source
from spark_2pc_sink.options import KafkaOptions
from tests.conftest import or_skip
from tests.harness.helper_servers import KerberosKafka, KerberosRealm
from tests.harness.secure_kafka import SecureKafka
from tests.harness.token_issuer import TokenBroker
from tests.integration.writer.writers import commit_rows, committed, logged_in, table_of, values, written

pytestmark = [pytest.mark.kafka, pytest.mark.java]

#: Of a token: kafka-python takes no session for shorter than a second. Of a ticket.
LIFETIME_S, TICKET_S = 2, 4
#: Of a certificate: for a broker's start and the first transaction.
LASTS = timedelta(seconds=30)
AT_ONCE_S = 20
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
