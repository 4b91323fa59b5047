"""Helpers of the writer's integration tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka.batch_sender import ProducedTransaction
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer import TransactionalWriter
from spark_2pc_sink.testing import TopicRecord, read_topic, wait_until

HOUR_NS = 3_600 * 10**9


def kafka_for(bootstrap: str, **properties: str | int) -> dict[str, str | int]:
    """Properties as a user writes them; here with underscores for dots."""
    return {"bootstrap.servers": bootstrap, **{name.replace("_", "."): value for name, value in properties.items()}}


def options_for(bootstrap: str, **properties: str | int) -> KafkaOptions:
    """The options that `kafka_for` becomes."""
    return KafkaOptions.parse(kafka_for(bootstrap, **properties))


def table_of(count: int, *, first: int = 0, prefix: str = "value") -> Any:
    """Rows with a key, a value and a header, each different."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": [f"key-{number}".encode() for number in numbers],
            "value": [f"{prefix}-{number}".encode() for number in numbers],
            "headers": pa.array(
                [[{"key": "n", "value": str(number).encode()}] for number in numbers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )


def writer_of(
    bootstrap: str,
    transactional_id: str,
    topic: str,
    *,
    two_phase_commit: bool = False,
    resume: bool = False,
    **properties: str | int,
) -> TransactionalWriter:
    """A writer; properties as for `kafka_for`."""
    kafka = kafka_for(bootstrap, **properties)
    return TransactionalWriter(
        transactional_id=transactional_id, kafka=kafka, topic=topic, two_phase_commit=two_phase_commit, resume=resume
    )


@contextmanager
def writer_on(bootstrap: str, transactional_id: str, topic: str, **options: Any) -> Iterator[TransactionalWriter]:
    """One that has taken over its id; options as for `writer_of`."""
    with writer_of(bootstrap, transactional_id, topic, **options) as writer:
        writer.init_transactions()
        yield writer


@contextmanager
def logged_in(properties: Any, transactional_id: str) -> Iterator[TransactionalWriter]:
    """A writer of the topic t that has taken over its id, with these properties of a client."""
    with TransactionalWriter(transactional_id=transactional_id, kafka=properties, topic="t") as writer:
        writer.init_transactions()
        yield writer


def commit_rows(writer: TransactionalWriter, rows: Any) -> None:
    writer.begin_transaction()
    writer.append(rows)
    writer.commit_transaction()


def values(records: list[TopicRecord]) -> list[str]:
    """The values, sorted."""
    return sorted((record.value or b"").decode() for record in records)


def committed(bootstrap: str, topic: str, writer_or_id: TransactionalWriter | str) -> list[TopicRecord]:
    """What a reader of committed records sees once the end markers of the id's last transaction are written."""
    transactional_id = writer_or_id if isinstance(writer_or_id, str) else writer_or_id._client.transactional_id
    with Cluster(options_for(bootstrap)) as cluster:
        client = TransactionClient(cluster, transactional_id, cluster.options)
        wait_until(lambda: not client.describe().state.startswith("Prepare"), what="the end markers")
    return read_topic(bootstrap, topic)


def written(bootstrap: str, transactional_id: str) -> int:
    """How many records of the topic t begin with the writer's id, and are committed."""
    found = committed(bootstrap, "t", transactional_id)
    return sum((record.value or b"").startswith(transactional_id.encode()) for record in found)


def shift_clock(monkeypatch: pytest.MonkeyPatch, by_ns: int) -> None:
    """Let the package see another time of day. Its deadlines go by the monotonic clock, which never jumps."""
    clock = SimpleNamespace(
        **{name: getattr(time, name) for name in ("monotonic", "monotonic_ns", "sleep", "perf_counter")},
        time_ns=lambda: time.time_ns() + by_ns,
        time=lambda: time.time() + by_ns / 1e9,
    )
    monkeypatch.setattr("spark_2pc_sink.clock.time", clock)


def session_of(
    cluster: Cluster, client: TransactionClient, producer: ProducerIdAndEpoch, *, timestamp_ms: int = 1_700_000_000_000
) -> ProduceSession:
    """A session of one task of the transaction of ``producer``."""
    return ProduceSession(
        cluster,
        ProducedTransaction(client.transactional_id, producer, client.transaction_version),
        cluster.options,
        timestamp_ms=timestamp_ms,
    )
