"""What those who run Kafka do under a job that writes: quotas that hold it back, and partitions that move."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, cast

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.protocol.admin import AlterClientQuotasRequest

from spark_2pc_sink.testing import wait_until
from tests.conftest import StartKafka, or_skip
from tests.harness.kafka_cluster import KafkaCluster
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

pytestmark = pytest.mark.thorough

BATCH = 1
DEADLINE_S = 60.0
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
                wait_until(
                    lambda: not client.list_partition_reassignments(),
                    deadline_s=DEADLINE_S,
                    what="the partitions to have moved",
                )
        job.ends_well(driver)
        assert len(driver.recoveries) == 1, driver.log_tail()
