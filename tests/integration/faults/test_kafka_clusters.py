"""A cluster of three brokers that loses one, holds clients back by quotas, or moves partitions.

Replication factor 3, of which 2 must be in sync: nothing acknowledged is lost when one broker dies, so every batch
takes one transaction, and no driver recovers in mid-run. The cluster is shared by tests, and made whole after each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka import KafkaAdminClient, TopicPartition
from kafka.protocol.admin import AlterClientQuotasRequest

from spark_2pc_sink.testing import TcpProxy, kafka_request, wait_until
from tests.conftest import StartKafka, or_skip
from tests.harness.driver_job import LARGE_INPUT, SMALL_INPUT, Job
from tests.harness.driver_process import DriverProcess
from tests.harness.kafka_cluster import KafkaCluster
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

BATCH = 1
PRODUCE = 0
#: A leader is replaced within three seconds on an idle machine; a log grows within milliseconds.
FAULT_DEADLINE_S = 120.0
#: Enough acknowledgements for one of each of the three partitions; a large batch has a hundred at this size.
ACKNOWLEDGED_OF_EACH = 20
SMALL_RECORD_BATCHES = {"batch.size": 16_384}


@pytest.fixture(scope="module")
def three_brokers(pytestconfig: pytest.Config) -> Iterator[KafkaCluster]:
    cluster = or_skip(pytestconfig, KafkaCluster)
    with cluster:
        yield cluster


@pytest.fixture
def cluster(three_brokers: KafkaCluster) -> Iterator[KafkaCluster]:
    """The three brokers, whole at the beginning and again at the end."""
    yield three_brokers
    for node in three_brokers.nodes.values():
        if node.started:
            node.resume()
        else:
            node.launch()
    three_brokers.wait_until_whole()


def make(make_job: MakeJob, cluster: KafkaCluster, sizes: tuple[int, ...] = SMALL_INPUT) -> Job:
    """A job on the cluster, without a primary key: nothing but the product keeps rows from being there twice."""
    return make_job(cast("Broker", cluster), sizes=sizes, primary_key=False)


def finished_at_once(job: Job, driver: DriverProcess) -> None:
    """The driver ends well, and neither began a batch twice nor recovered in mid-run."""
    job.ends_well(driver)
    assert [event["batch"] for event in driver.events("batch") if event["attempts"] > 1] == [], driver.log_tail()
    assert len(driver.recoveries) == 1, driver.log_tail()


@contextmanager
def behind_proxies(cluster: KafkaCluster) -> Iterator[tuple[dict[int, TcpProxy], str]]:
    """A proxy in front of each broker, and the ``bootstrap.servers`` of a client that never gets round them."""
    with ExitStack() as stack:
        proxies = {node_id: stack.enter_context(node.proxy()) for node_id, node in cluster.nodes.items()}
        yield proxies, ",".join(proxy.address for proxy in proxies.values())


# --- the leader of a partition -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(600)
def test_a_leader_dies_with_the_answer_to_records(cluster: KafkaCluster, make_job: MakeJob) -> None:
    """B5, B14: all copies have the records. The next leader is sent them again, and answers that it has them.

    The leader that dies is the coordinator as well.
    """
    job = make(make_job, cluster)
    with behind_proxies(cluster) as (proxies, bootstrap):
        driver = job.stop_at("step:BEGIN", batch=BATCH, kafka={"bootstrap.servers": bootstrap})
        coordinator = cluster.coordinator()
        leaders = [cluster.leader(job.topic, partition) for partition in range(3)]
        assert coordinator in leaders
        # The broker does what is asked, dies by SIGKILL, and its answer never arrives.
        proxy = proxies[coordinator.node_id]
        proxy.lose_answer(kafka_request(PRODUCE))
        driver.go_on()
        wait_until(lambda: proxy.answers_lost == 1, deadline_s=FAULT_DEADLINE_S, what="the answer to be lost")
        coordinator.kill()
        finished_at_once(job, driver)


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(600)
def test_a_leader_dies_with_records_that_nobody_else_has(cluster: KafkaCluster, make_job: MakeJob) -> None:
    """B14: in the middle of a transaction, records that were in flight are gone with the leader, and are sent again."""
    job = make(make_job, cluster, LARGE_INPUT)
    driver = job.stop_at("acknowledged", batch=BATCH, nth=ACKNOWLEDGED_OF_EACH, kafka=SMALL_RECORD_BATCHES)
    leader = cluster.leader(job.topic)
    others = [node for node in cluster.nodes.values() if node is not leader]
    # The leader appends to its own log, nobody copies that, and it dies by SIGKILL.
    for node in others:
        node.pause()
    folder = Path(leader.properties["log.dirs"]) / f"{job.topic}-0"

    def log_bytes() -> int:
        return sum(segment.stat().st_size for segment in folder.glob("*.log"))

    before = log_bytes()
    driver.go_on()
    wait_until(lambda: log_bytes() > before, deadline_s=FAULT_DEADLINE_S, what="the log to grow")
    leader.kill()
    for node in others:
        node.resume()
    finished_at_once(job, driver)


# --- the transaction coordinator ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(600)
def test_driver_and_coordinator_die_together(cluster: KafkaCluster, make_job: MakeJob) -> None:
    """B3, B4, B14: a new driver finds the decided transaction at a coordinator that has just taken it over."""
    job = make(make_job, cluster)
    driver = job.stop_at("end", batch=BATCH)
    cluster.coordinator().kill()
    driver.close()
    assert "committed" in job.ends_well().actions


# --- replicas ----------------------------------------------------------------------------------------------------


@contextmanager
def wanting_every_replica(admin: AdminClient, topic: str) -> Iterator[None]:
    """A topic takes records only while all of its three copies are in sync."""

    def want(replicas: int) -> None:
        entry = ConfigEntry("min.insync.replicas", str(replicas), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(FAULT_DEADLINE_S)

    want(3)
    try:
        yield
    finally:
        want(2)


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(600)
def test_replicas_are_missing_for_a_while(cluster: KafkaCluster, make_job: MakeJob) -> None:
    """B14: no records are taken, until the broker that is missing is back."""
    job = make(make_job, cluster, LARGE_INPUT)
    driver = job.stop_at("acknowledged", batch=BATCH, nth=ACKNOWLEDGED_OF_EACH, kafka=SMALL_RECORD_BATCHES)
    topic = job.topic
    coordinator = cluster.coordinator()
    missing = next(node for node in cluster.nodes.values() if node is not coordinator)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def copies_in_sync() -> set[int]:
        partitions = admin.list_topics(topic, timeout=FAULT_DEADLINE_S).topics[topic].partitions
        return {len(partition.isrs) for partition in partitions.values()}

    with wanting_every_replica(admin, topic):
        missing.kill()
        wait_until(lambda: copies_in_sync() == {2}, deadline_s=FAULT_DEADLINE_S, what="the loss to be known")
        driver.go_on()
        missing.start()
        finished_at_once(job, driver)


#: The second batch has about 600 KB of records, for some seconds of the quota.
SIZES = (10, 1_500, 10)
BYTES_PER_SECOND = 30_000.0
THROTTLED_S = 4.0


def admin(bootstrap: str) -> closing[Any]:
    return closing(KafkaAdminClient(bootstrap_servers=bootstrap))


def set_quota(bootstrap: str, key: str, value: float) -> None:
    """For every client, whatever it calls itself."""
    request = AlterClientQuotasRequest
    entry = request.EntryData(
        entity=[request.EntryData.EntityData(entity_type="client-id", entity_name=None)],
        ops=[request.EntryData.OpData(key=key, value=value, remove=False)],
    )
    with admin(bootstrap) as client:
        answer = client._manager.run(client._manager.send, request(entries=[entry], validate_only=False))
    assert [each.error_code for each in answer.entries] == [0]


@pytest.mark.thorough
def test_a_quota_slows_and_breaks_nothing(start_kafka: StartKafka, make_job: MakeJob) -> None:
    """B34: no batch is begun twice for it."""
    broker = start_kafka()
    job = make_job(broker, sizes=SIZES, primary_key=False)
    set_quota(broker.bootstrap, "producer_byte_rate", BYTES_PER_SECOND)
    begun_s = time.monotonic()
    driver = job.ends_well(kafka={"compression.type": "none", "batch.size": 20_000})
    assert time.monotonic() - begun_s > THROTTLED_S
    assert [driver.attempts(batch) for batch in range(len(SIZES))] == [1, 1, 1]
    assert len(driver.recoveries) == 1


@pytest.mark.thorough
def test_partitions_move_to_other_brokers(pytestconfig: pytest.Config, make_job: MakeJob) -> None:
    """B34: the topic, and the log of the coordinators, leave the brokers that the writer knows in mid-batch."""
    with or_skip(pytestconfig, KafkaCluster) as cluster:
        job = make_job(cast("Broker", cluster), sizes=SIZES, primary_key=False)
        driver = job.stop_at("step:PREPARE", batch=BATCH)
        leaders = {TopicPartition(job.topic, number): [1, 2] for number in range(3)}
        leaders[TopicPartition("__transaction_state", 0)] = [1, 2]
        with admin(cluster.bootstrap) as client:
            for brokers in ([1, 2], [3, 1], [2, 3]):
                moves = dict.fromkeys(leaders, brokers)
                assert set(client.alter_partition_reassignments(moves).values()) == {None}
                wait_until(lambda: not client.list_partition_reassignments(), what="the partitions to have moved")
        job.ends_well(driver)
        assert len(driver.recoveries) == 1, driver.log_tail()
