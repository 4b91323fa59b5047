"""The writer at a listener that asks for Kerberos tickets, on Apache Kafka and a realm of this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_2pc_sink.errors import KafkaTimeoutError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer import TransactionalWriter
from tests.conftest import or_skip
from tests.harness.kerberos import KerberosKafka, KerberosRealm
from tests.integration.writer.writers import committed, table_of

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.thorough]

TICKET_S = 4
ROWS = 100
#: How long an expired ticket stays the only one, at most twice.
LATE_S = 0.5


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


class LateRenewal:
    """Gets a new ticket when the one before has expired, as somebody does who is always too late.

    Args:
        kafka: the realm and the keys.
    """

    def __init__(self, kafka: KerberosKafka) -> None:
        self._kafka = kafka
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._renew)
        self.tickets = 0

    def _renew(self) -> None:
        while not self._ends.wait(LATE_S):
            if not self._kafka.realm.has_ticket:
                self._kafka.realm.run("kinit", "-k", "-t", str(self._kafka.client_keytab), "orders")
                self.tickets += 1

    def __enter__(self) -> LateRenewal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


@pytest.mark.usefixtures("environment")
def test_tickets_expire_in_the_middle_of_a_transaction_and_are_renewed_by_kinit(
    kafka: KerberosKafka, transactional_id: str
) -> None:
    """The writer waits for each new one, as for a broker that is away."""
    count = 0
    with (
        LateRenewal(kafka) as renewal,
        TransactionalWriter(transactional_id=transactional_id, kafka=kafka.properties(), topic="t") as writer,
    ):
        writer.init_transactions()
        writer.begin_transaction()
        tickets_before, began_s = renewal.tickets, time.monotonic()
        while renewal.tickets < tickets_before + 2:
            assert time.monotonic() - began_s < 20 * TICKET_S
            writer.append(table_of(ROWS, first=count * ROWS, prefix=transactional_id))
            writer.flush()
            count += 1
        writer.commit_transaction()
    assert written(kafka, transactional_id) == count * ROWS


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


def test_a_service_name_that_the_realm_does_not_know_is_told(
    kafka: KerberosKafka, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("KRB5_CLIENT_KTNAME", str(kafka.client_keytab))
    options = KafkaOptions.parse(kafka.properties(max_block_ms=2_000, sasl_kerberos_service_name="kafka"))
    with Cluster(options) as cluster, pytest.raises(KafkaTimeoutError, match=r"kafka/localhost.*not found"):
        cluster.features()
