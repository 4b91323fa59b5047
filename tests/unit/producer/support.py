"""Helpers of the producer's unit tests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pyarrow as pa

from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.batch_sender import OpenTransaction
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.settings import shown_name
from spark_2pc_sink.wire.record_rows import Rows
from tests.unit.fakes.cluster import FakeCluster

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
PAIR = ProducerIdAndEpoch(7, 3)
#: Options with short pauses, so that nothing waits for long.
SHORT: dict[str, Any] = {
    "compression": "none",
    "retry_backoff_ms": 2,
    "retry_backoff_max_ms": 10,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
    "request_timeout_ms": 5_000,
    "delivery_timeout_ms": 10_000,
    "max_block_ms": 10_000,
}


def options_for(cluster: FakeCluster | str, **overrides: Any) -> KafkaOptions:
    """Options of a client of this cluster: `SHORT`, and others."""
    bootstrap = cluster if isinstance(cluster, str) else cluster.bootstrap
    return KafkaOptions(**{"bootstrap_servers": (bootstrap,), **SHORT, **overrides})


def kafka_for(cluster: FakeCluster | str, **overrides: Any) -> dict[str, str | int]:
    """The properties of `options_for`, as a user writes them."""
    options = options_for(cluster, **overrides)
    names = ("bootstrap_servers", *SHORT, *overrides)
    given = {shown_name(item): getattr(options, item.name) for item in fields(options) if item.name in names}
    return given | {"bootstrap.servers": options.bootstrap_servers[0]}


def session_on(cluster: Cluster, *, transaction_version: int = 2, **overrides: Any) -> ProduceSession:
    """A session of transaction `PAIR`."""
    options = cluster.options
    if overrides:
        options = options_for(options.bootstrap_servers[0], **overrides)
    return ProduceSession(
        cluster,
        OpenTransaction("orders", PAIR, transaction_version),
        options,
        timestamp_ms=1_700_000_000_000,
    )


def rows(*values: str) -> Rows:
    """Rows whose key is their value."""
    column = pa.array([value.encode() for value in values], pa.binary())
    return Rows.of(column, column, None)


def one_batch_each(session: ProduceSession, partition: TopicPartition, *values: str) -> None:
    """Append one record per batch: each is larger than half a batch of `SMALL_BATCHES`."""
    for value in values:
        session.append(partition, rows(value.ljust(60, ".")))


def data(
    fake: FakeCluster, producer: ProducerIdAndEpoch, count: int = 1, *, at: TopicPartition = T0, timestamp_ms: int = 0
) -> int:
    """Put a batch of a transaction into a log; its first offset."""
    return fake.partitions[at].data(producer, count, timestamp_ms=timestamp_ms)


def marker(fake: FakeCluster, producer: ProducerIdAndEpoch, *, kind: int, at: TopicPartition = T0) -> int:
    """Put a control batch into a log; its offset."""
    return fake.partitions[at].marker(producer, kind=kind)


#: With these options `one_batch_each` makes one batch of each record.
SMALL_BATCHES = {"batch_bytes_max": 200, "max_request_bytes": 10_000}
