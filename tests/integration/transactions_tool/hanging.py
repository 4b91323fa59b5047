"""Makes transactions that hang, on a broker that does not verify what belongs to a transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.batch_sender import ProducedTransaction
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.producer import TransactionalWriter
from spark_2pc_sink.testing import wait_until
from tests.harness.providers import Broker
from tests.harness.record_batches import batch_of, section_of
from tests.integration.writer.writers import kafka_for, options_for

HOUR_MS = 60 * 60 * 1000
#: The broker property that lets records in that no coordinator knows of, as it was before Kafka 3.6.
VERIFIES_NOTHING = {"transaction.partition.verification.enable": "false"}


def produce_raw(
    bootstrap: str, where: TopicPartition, producer: ProducerIdAndEpoch, *, sequence: int = 0, value: str = "hanging"
) -> None:
    """Append one transactional record, an hour old, behind every coordinator's back."""
    batch = batch_of(
        section_of(None, pa.array([value.encode()], pa.binary()), None),
        producer=producer,
        base_sequence=sequence,
        timestamp_ms=int(time.time() * 1000) - HOUR_MS,
        compression="none",
    )
    with Cluster(options_for(bootstrap)) as cluster:
        deadline = cluster.deadline()
        cluster.refresh([where.topic], deadline)
        # Below transaction.version 2 Produce adds no partition to the transaction.
        request = ProducedTransaction("raw", producer, version=1).request({where: batch}, timeout_ms=5_000)
        # The leader of a partition that was just made may not know yet that it is.
        wait_until(
            lambda: cluster.request(cluster.leaders[where], request, deadline)[where].error_code == 0,
            what=f"{where} to take a record",
        )


@contextmanager
def writer_on(
    broker: Broker, transactional_id: str, topic: str, *, two_phase_commit: bool = True
) -> Iterator[TransactionalWriter]:
    kafka = kafka_for(broker.bootstrap)
    with TransactionalWriter(
        transactional_id=transactional_id, kafka=kafka, topic=topic, two_phase_commit=two_phase_commit
    ) as writer:
        writer.init_transactions()
        yield writer


def open_rows(writer: TransactionalWriter, *values: str, partition: int = 0) -> None:
    writer.begin_transaction()
    writer.append(pa.table({"value": list(values), "partition": [partition] * len(values)}))
    writer.flush()
