"""A Spark job whose driver logs in to Kafka by Kerberos tickets, and whose executors need none: docs/logins.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from spark_2pc_sink.testing.spark_cluster import SparkCluster
from tests.conftest import or_skip
from tests.harness import ROOT
from tests.harness.kerberos import KerberosRealm
from tests.harness.kerberos_kafka import KerberosKafka
from tests.harness.own_python_main import ROWS
from tests.harness.streams import sink_options
from tests.integration.sink.one_batch import OneBatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.thorough, pytest.mark.spark, pytest.mark.timeout(600)]

#: Shorter than a batch, with the start of its tasks.
TICKET_S: Final = 4
#: That of the driver is renewed by nobody.
DRIVER_TICKET_S: Final = 600
COMMAND_DEADLINE_S: Final = 300


@pytest.fixture(scope="module")
def kerberos(pytestconfig: pytest.Config) -> Iterator[KerberosKafka]:
    with or_skip(pytestconfig, lambda: KerberosRealm(life_s=TICKET_S)) as realm:
        secure = or_skip(pytestconfig, lambda: KerberosKafka(realm))
        with secure.broker:
            yield secure


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster"), python_path=ROOT, workers=1) as started:
        yield started


@pytest.fixture
def one_batch(kerberos: KerberosKafka, database: str, transactional_id: str, tmp_path: Path) -> OneBatch:
    kerberos.broker.create_topic(transactional_id, partitions=8)
    return OneBatch(kerberos.broker, database, transactional_id, transactional_id, tmp_path)


def drive(one_batch: OneBatch, kerberos: KerberosKafka, cluster: SparkCluster) -> str:
    """Run a driver that has a ticket; what it says on standard error when it fails."""
    tickets = one_batch.directory / "tickets"
    kept = ("-l", f"{DRIVER_TICKET_S}s", "-c", str(tickets))
    kerberos.realm.run("kinit", *kept, "-k", "-t", str(kerberos.client_keytab), "orders")
    options = sink_options(
        broker=one_batch.kafka,
        database=one_batch.database,
        topic=one_batch.topic,
        transactional_id=one_batch.transactional_id,
    )
    options["kafka"] = kerberos.properties(max_block_ms=30_000)
    arguments = [sys.executable, "{}", json.dumps(options), str(one_batch.directory)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    own = {"KRB5_CONFIG": str(kerberos.realm.configuration), "KRB5CCNAME": f"FILE:{tickets}", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.own_python_main", cluster.master, *arguments],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=COMMAND_DEADLINE_S,
        check=False,
    )
    return done.stderr if done.returncode else ""


def test_only_the_driver_needs_a_ticket(one_batch: OneBatch, kerberos: KerberosKafka, cluster: SparkCluster) -> None:
    """Executors have no configuration of Kerberos, no keytab and no ticket; sessions end each second."""
    assert drive(one_batch, kerberos, cluster) == ""
    one_batch.assert_all_there(ROWS)
