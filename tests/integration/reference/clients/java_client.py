"""Kafka's Java clients in a Java process that tests drive from Python; and what tests of all clients share.

There may be no compiler where tests run, only a runtime. So the process runs py4j's gateway, which PySpark brings
along, with the Kafka release's jars beside it, and Python calls the clients' methods one by one. Names are Java's.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JJavaError

from spark_2pc_sink.testing import DeadlineError, ServerError, read_topic, wait_until
from spark_2pc_sink.testing.kafka_broker import QUICK_START_JVM, find_libs
from spark_2pc_sink.testing.processes import ServerProcess, find_java_home

_STOP_DEADLINE_S = 10.0
_REQUEST_DEADLINE_S = 20
_CLOSE_DEADLINE_S = 5
#: One call of poll(); short, because several consumers of a group are polled in turn from one thread.
_POLL_MS = 50

_SERIALIZATION = "org.apache.kafka.common.serialization"


class JavaProcess:
    """A Java virtual machine with Kafka's clients on its class path, from ``libs`` or as the broker has them."""

    def __init__(self, folder: Path, *, libs: Path | None = None) -> None:
        gateway_jars = sorted((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
        classpath = ":".join(str(jar) for jar in [*sorted((libs or find_libs()).glob("*.jar")), *gateway_jars])
        java = str(find_java_home() / "bin" / "java")
        command = [java, *QUICK_START_JVM, "-cp", classpath, "py4j.GatewayServer", "--enable-auth", "0"]
        self._process = ServerProcess(command, log=folder / "java.log")
        try:
            address = wait_until(self._address, what="the gateway's address")
        except DeadlineError:
            self._process.end(signal.SIGKILL, deadline_s=_STOP_DEADLINE_S)
            raise
        # auto_convert: Python's dicts and lists become Java's where a method asks for them.
        port, token = address
        parameters = GatewayParameters(port=int(port), auth_token=token, auto_convert=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        #: The root of Java's packages: ``root.java.util.HashMap()``.
        self.root: Any = self._gateway.jvm
        self.kafka: Any = self.root.org.apache.kafka

    def close(self) -> None:
        self._gateway.close()
        self._process.end(signal.SIGTERM, deadline_s=_STOP_DEADLINE_S)

    def kill(self) -> None:
        self._process.end(signal.SIGKILL, deadline_s=_STOP_DEADLINE_S)
        self._gateway.close()

    def _address(self) -> list[str]:
        """Port and token, the first two lines that the gateway prints."""
        if not self._process.running:
            raise ServerError(f"the Java process ended by itself. Its log ends:\n{self._process.log_tail()}")
        lines = self._process.log.read_text().splitlines()
        return lines[:2] if len(lines) >= 2 and lines[1] else []


@dataclass(frozen=True)
class Record:
    """What a Java consumer was given."""

    partition: int
    offset: int
    value: str | None


class JavaClients:
    """Makes clients of one cluster, and closes them in the end.

    Settings are Kafka's, with underscores in place of dots: ``java.producer(transactional_id="orders")``.
    """

    def __init__(self, process: JavaProcess, bootstrap: str) -> None:
        self.kafka, self._root = process.kafka, process.root
        self._bootstrap = bootstrap
        self._clients = contextlib.ExitStack()

    def producer(self, bootstrap: str | None = None, **settings: object) -> Any:
        serializer = f"{_SERIALIZATION}.StringSerializer"
        # Not more than the test's own deadline; Kafka's two minutes would hide a server that never answers.
        defaults = {
            "key_serializer": serializer,
            "value_serializer": serializer,
            "delivery_timeout_ms": 30_000,
            "request_timeout_ms": 10_000,
            "max_block_ms": 30_000,
        }
        configuration = self._configuration(bootstrap, {**defaults, **settings})
        return self._closed_later(self.kafka.clients.producer.KafkaProducer(configuration))

    def consumer(self, **settings: object) -> Any:
        """A KafkaConsumer of strings that starts at the beginning and commits by itself only if told to."""
        deserializer = f"{_SERIALIZATION}.StringDeserializer"
        defaults = {
            "key_deserializer": deserializer,
            "value_deserializer": deserializer,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": "false",
            "heartbeat_interval_ms": 200,
        }
        configuration = self._configuration(None, {**defaults, **settings})
        return self._closed_later(self.kafka.clients.consumer.KafkaConsumer(configuration))

    def admin(self, **settings: object) -> Any:
        return self._closed_later(self.kafka.clients.admin.Admin.create(self._configuration(None, settings)))

    def partition(self, topic: str, partition: int) -> Any:
        return self.kafka.common.TopicPartition(topic, partition)

    def result(self, future: Any) -> Any:
        """What a Java future gives within the deadline of a request."""
        return future.get(_REQUEST_DEADLINE_S, self._root.java.util.concurrent.TimeUnit.SECONDS)

    def send(self, producer: Any, topic: str, partition: int, *values: str) -> list[int]:
        """Send records to one partition, wait for all of them, and return their offsets."""
        record = self.kafka.clients.producer.ProducerRecord
        futures = [producer.send(record(topic, partition, None, value)) for value in values]
        return [self.result(future).offset() for future in futures]

    def poll(self, consumer: Any) -> list[Record]:
        found = consumer.poll(self._root.java.time.Duration.ofMillis(_POLL_MS))
        return [Record(one.partition(), one.offset(), one.value()) for one in found.iterator()]

    def take(self, consumer: Any, count: int) -> list[Record]:
        return take(lambda: self.poll(consumer), count)

    def balance(self, members: Sequence[Any], shares: Sequence[int]) -> list[Record]:
        """Poll members of a group in turn until each has its share; the records that came meanwhile."""
        return balance(
            members,
            shares,
            poll=self.poll,
            assigned=lambda member: {partition.partition() for partition in member.assignment()},
        )

    def read(self, topic: str, partitions: int, *, isolation: str = "read_committed") -> list[Record]:
        """Everything from the beginning to the end as this isolation level sees it now."""
        consumer = self.consumer(isolation_level=isolation)
        assigned = [self.partition(topic, partition) for partition in range(partitions)]
        consumer.assign(assigned)
        consumer.seekToBeginning(assigned)
        ends = {partition: consumer.endOffsets([partition])[partition] for partition in assigned}
        records: list[Record] = []

        def at_end() -> bool:
            records.extend(self.poll(consumer))
            return all(consumer.position(partition) >= end for partition, end in ends.items())

        wait_until(at_end, what=f"the end of {topic}")
        return sorted(records, key=lambda record: (record.partition, record.offset))

    def values(self, topic: str, partitions: int, *, isolation: str = "read_committed") -> list[str | None]:
        return [record.value for record in self.read(topic, partitions, isolation=isolation)]

    def transaction(self, transactional_id: str) -> Any:
        """What the coordinator says of a transaction: a TransactionDescription."""
        return self.result(self.admin().describeTransactions([transactional_id]).all())[transactional_id]

    def settle(self, transactional_id: str) -> None:
        """Wait until the markers of an ended transaction are written: EndTxn is answered before they are."""
        admin = self.admin()

        def complete() -> bool:
            found = self.result(admin.describeTransactions([transactional_id]).all())[transactional_id]
            return str(found.state()).startswith("Complete")

        wait_until(complete, what=f"the markers of {transactional_id}")

    def close(self) -> None:
        self._clients.close()

    def _configuration(self, bootstrap: str | None, settings: Mapping[str, object]) -> dict[str, str]:
        named = {name.replace("_", "."): str(value) for name, value in settings.items() if value is not None}
        return {"bootstrap.servers": bootstrap or self._bootstrap, **named}

    def _closed_later(self, client: Any) -> Any:
        deadline = self._root.java.time.Duration.ofSeconds(_CLOSE_DEADLINE_S)
        self._clients.callback(lambda: client.close(deadline))
        return client


@contextlib.contextmanager
def raises_java(name: str) -> Iterator[None]:
    """Expect a Java exception of this class, by its simple name, thrown itself or as the cause of another."""
    with pytest.raises(Py4JJavaError) as caught:
        yield
    assert name in list(_causes(caught.value.java_exception)), str(caught.value)


def _causes(exception: Any) -> Iterable[str]:
    while exception is not None:
        yield exception.getClass().getSimpleName()
        exception = exception.getCause()


T = TypeVar("T")
C = TypeVar("C")

DEADLINE_S = 30.0
#: The brokers that clients are tried on: Kafka shows that the tests are right, the other that it answers as Kafka does.
BROKERS = (
    pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.java, pytest.mark.thorough]),
    pytest.param("reference", marks=pytest.mark.kafka),
)


def take(poll: Callable[[], Iterable[T]], count: int) -> list[T]:
    records: list[T] = []

    def complete() -> bool:
        records.extend(poll())
        return len(records) >= count

    wait_until(complete, what=f"{count} records")
    assert len(records) == count, records
    return records


def balance(
    members: Sequence[C],
    shares: Sequence[int],
    *,
    poll: Callable[[C], Iterable[T]],
    assigned: Callable[[C], Iterable[int]],
) -> list[T]:
    """Poll members of a group in turn until each has its share of the partitions and no partition has two owners.

    Returns the records that arrived in the meantime.
    """
    records: list[T] = []

    def balanced() -> bool:
        for member in members:
            records.extend(poll(member))
        found = [set(assigned(member)) for member in members]
        return [len(share) for share in found] == list(shares) and len(set().union(*found)) == sum(shares)

    wait_until(balanced, what=f"shares of {shares} partitions")
    return records


def values(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[str]:
    records = read_topic(bootstrap, topic, isolation=isolation)
    return [(record.value or b"").decode() for record in records]


def committed_values(bootstrap: str, topic: str, count: int) -> list[str]:
    """What a committed reader finds once there is so much: EndTxn is answered before the markers are written."""
    found: list[str] = []

    def complete() -> bool:
        found[:] = values(bootstrap, topic)
        return len(found) >= count

    wait_until(complete, what=f"{count} committed records")
    return found
