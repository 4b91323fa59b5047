"""The writer at a listener that asks for Kerberos tickets, on Apache Kafka and a realm of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_2pc_sink.errors import KafkaTimeoutError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer import TransactionalWriter
from tests.conftest import or_skip
from tests.harness.helper_servers import KerberosKafka, KerberosRealm
from tests.integration.writer.writers import committed, table_of

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.thorough]

TICKET_S = 4
ROWS = 100


@pytest.fixture(scope="module")
def kafka(pytestconfig: pytest.Config) -> Iterator[KerberosKafka]:
    with or_skip(pytestconfig, lambda: KerberosRealm(life_s=TICKET_S)) as realm:
        secure = or_skip(pytestconfig, lambda: KerberosKafka(realm))
        with secure.broker as broker:
            broker.create_topic("t", partitions=3)
            yield secure


@pytest.fixture
def environment(kafka: KerberosKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This process belongs to the realm, and has no ticket yet."""
    for name, value in kafka.realm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    kafka.realm.environment["KRB5CCNAME"] = f"FILE:{tmp_path / 'tickets'}"
    return monkeypatch


def written(kafka: KerberosKafka, transactional_id: str) -> int:
    found = committed(kafka.broker.bootstrap, "t", transactional_id)
    return sum((record.value or b"").startswith(transactional_id.encode()) for record in found)


def test_a_keytab_renews_tickets_by_itself(
    kafka: KerberosKafka, environment: pytest.MonkeyPatch, transactional_id: str
) -> None:
    """Sessions end each second and tickets each four; the transaction outlives two of them."""
    environment.setenv("KRB5_CLIENT_KTNAME", str(kafka.client_keytab))
    began_s, count = time.monotonic(), 0
    with TransactionalWriter(transactional_id=transactional_id, kafka=kafka.properties(), topic="t") as writer:
        writer.init_transactions()
        writer.begin_transaction()
        while time.monotonic() - began_s < 2.5 * TICKET_S:
            writer.append(table_of(ROWS, first=count * ROWS, prefix=transactional_id))
            writer.flush()
            count += 1
        writer.commit_transaction()
    assert written(kafka, transactional_id) == count * ROWS


@pytest.mark.usefixtures("environment")
def test_without_a_ticket_the_error_says_so_at_the_deadline(kafka: KerberosKafka) -> None:
    """B25: the login is tried until then, since a ticket may come."""
    options = KafkaOptions.parse(kafka.properties(max_block_ms=2_000))
    with Cluster(options) as cluster, pytest.raises(KafkaTimeoutError, match=r"No Kerberos credentials available"):
        cluster.features()
