"""Programs of Kafka that write exactly once, each with input and output, to be killed and started again.

Kafka Streams, Connect's source of a file (`make kafka-streams`), and the copier of Kafka's own system tests, which is
among its tools. Each is fed values, and each value is to come out once.
"""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from spark_2pc_sink.testing import read_topic
from spark_2pc_sink.testing.kafka_broker import QUICK_START_JVM, LocalBroker
from spark_2pc_sink.testing.processes import ServerProcess, find_java_home, free_port
from tests.harness.kafka_tools import find_jars, find_tools
from tests.integration.reference.clients.java_client import JavaProcess

LIBS_VARIABLE: Final = "SPARK_2PC_KAFKA_STREAMS"
_LIBS_DEFAULT: Final = ".cache/kafka-streams-4.4.0/libs"
_STOP_DEADLINE_S: Final = 20.0
_FLUSH_DEADLINE_S: Final = 60.0
_REST_DEADLINE_S: Final = 5.0
#: Keys of the records that Streams counts.
KEYS: Final = 7
#: Session of members of a group: the least that brokers take by default.
_SESSION_MS: Final = 6_000


def find_streams() -> Path:
    """The folder of the jars of Kafka Streams, and of Connect's file source."""
    return find_jars(LIBS_VARIABLE, _LIBS_DEFAULT, jar="kafka-streams-", target="kafka-streams")


class CopyingApp(ABC):
    """One application on a broker, with topics of its own."""

    outputs: Sequence[str] = ("out",)

    def __init__(self, broker: LocalBroker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        for topic in ("in", *self.outputs):
            broker.create_topic(topic)

    def feed(self, values: Sequence[str]) -> None:
        """Hand over values; the broker runs."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "enable.idempotence": True})
        for value in values:
            producer.produce("in", key=str(int(value) % KEYS), value=value)
        assert producer.flush(_FLUSH_DEADLINE_S) == 0

    @abstractmethod
    def keep_running(self) -> None:
        """Start it where it does not run, be it that it was never started, was killed, or has given up."""

    @abstractmethod
    def kill(self) -> None:
        """End it with SIGKILL."""

    def check(self, values: Sequence[str]) -> None:
        """Each value came out once."""
        assert Counter(self.committed("out")) == Counter(values)

    def committed(self, topic: str) -> list[str]:
        return [(record.value or b"").decode() for record in read_topic(self.broker.bootstrap, topic)]


class _Program(CopyingApp):
    def __init__(self, broker: LocalBroker, folder: Path) -> None:
        super().__init__(broker, folder)
        self._process: ServerProcess | None = None

    def keep_running(self) -> None:
        if self._process is None or not self._process.running:
            jars = ":".join([f"{find_tools()}/*", *map(str, find_streams().glob("connect-file-*.jar"))])
            command = [str(find_java_home() / "bin" / "java"), *QUICK_START_JVM, "-cp", jars, *self._arguments()]
            self._process = ServerProcess(command, log=self.folder / "application.log")

    def kill(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGKILL, deadline_s=_STOP_DEADLINE_S)

    @abstractmethod
    def _arguments(self) -> list[str]:
        """Main class and its arguments."""


class MessageCopier(_Program):
    """TransactionalMessageCopier: copies what is there, aborting some transactions on purpose, and ends."""

    def _arguments(self) -> list[str]:
        arguments = {
            "broker-list": self.broker.bootstrap,
            "transactional-id": "copier",
            "consumer-group": "copier",
            "input-topic": "in",
            "input-partition": "0",
            "output-topic": "out",
            "transaction-size": "20",
            "transaction-timeout": "10000",
        }
        named = [part for name, value in arguments.items() for part in (f"--{name}", value)]
        return ["org.apache.kafka.tools.TransactionalMessageCopier", *named, "--enable-random-aborts"]


class FileSource(_Program):
    """Connect's file source in a distributed worker with ``exactly.once.source.support``: the lines of a file."""

    def __init__(self, broker: LocalBroker, folder: Path) -> None:
        super().__init__(broker, folder)
        self._port = free_port()
        self._lines = folder / "lines.txt"
        self._lines.touch()

    def feed(self, values: Sequence[str]) -> None:
        with self._lines.open("a") as file:
            file.writelines(f"{value}\n" for value in values)

    def keep_running(self) -> None:
        """The worker, and its one task too, which fails for good when the broker was away too long."""
        super().keep_running()
        try:
            if not self._ask("GET", "/connectors"):
                self._ask("PUT", "/connectors/lines/config", self._connector())
            status = self._ask("GET", "/connectors/lines/status")
            if "FAILED" in {each["state"] for each in [status["connector"], *status["tasks"]]}:
                self._ask("POST", "/connectors/lines/restart?includeTasks=true&onlyFailed=true", {})
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return  # it starts, or its group is being balanced: asked again

    def _arguments(self) -> list[str]:
        settings = {
            "bootstrap.servers": self.broker.bootstrap,
            "group.id": "connect",
            "exactly.once.source.support": "enabled",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            **{f"{name}.storage.topic": f"connect-{name}" for name in ("offset", "config", "status")},
            **{f"{name}.storage.replication.factor": "1" for name in ("offset", "config", "status")},
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            "listeners": f"http://127.0.0.1:{self._port}",
            "plugin.discovery": "hybrid_warn",
            "session.timeout.ms": str(_SESSION_MS),
            "rebalance.timeout.ms": str(_SESSION_MS),
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
            "offset.flush.interval.ms": "500",
        }
        file = self.folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return ["org.apache.kafka.connect.cli.ConnectDistributed", str(file)]

    def _connector(self) -> dict[str, str]:
        return {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(self._lines),
            "topic": "out",
            # More lines than are ever fed at once: what is over stays in its buffer until the file grows.
            "batch.size": "10000",
            "exactly.once.support": "required",
            "transaction.boundary": "poll",
        }

    def _ask(self, method: str, path: str, content: dict[str, str] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            method=method,
            data=None if content is None else json.dumps(content).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_REST_DEADLINE_S) as answer:  # noqa: S310 - http, made above
            return json.loads(answer.read() or b"{}")


class StreamsApp(CopyingApp):
    """Kafka Streams with exactly_once_v2: copies the records, and counts them by key in a state store."""

    outputs = ("out", "counts")

    def __init__(self, broker: LocalBroker, folder: Path) -> None:
        super().__init__(broker, folder)
        self._process: JavaProcess | None = None
        self._starts = 0
        self._streams: Any = None

    def keep_running(self) -> None:
        """Started anew where its threads have given up."""
        if self._process is not None and self._streams.state().toString() in {"ERROR", "NOT_RUNNING", "PENDING_ERROR"}:
            self.kill()
        if self._process is None:
            # Its address is read from its log, which has to be a new one.
            self._starts += 1
            (logs := self.folder / f"process-{self._starts}").mkdir()
            self._process = JavaProcess(logs, libs=find_streams())
            self._streams = self._started(self._process.root)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def check(self, values: Sequence[str]) -> None:
        """Each value came out once, and each number of each key, which what is in the store decides."""
        super().check(values)
        expected: Counter[tuple[str, int]] = Counter()
        totals: Counter[str] = Counter(str(int(value) % KEYS) for value in values)
        for key, total in totals.items():
            expected.update((key, number) for number in range(1, total + 1))
        found = read_topic(self.broker.bootstrap, "counts")
        assert (
            Counter(((each.key or b"").decode(), int.from_bytes(each.value or b"", "big")) for each in found)
            == expected
        )

    def _started(self, java: Any) -> Any:
        kafka = java.org.apache.kafka
        serdes, counted = kafka.common.serialization.Serdes, kafka.streams.kstream.Produced
        builder = kafka.streams.StreamsBuilder()
        source = builder.stream("in", getattr(kafka.streams.kstream.Consumed, "with")(serdes.String(), serdes.String()))
        source.to("out")
        source.groupByKey().count().toStream().to("counts", getattr(counted, "with")(serdes.String(), serdes.Long()))
        settings = java.java.util.Properties()
        for name, value in {
            "bootstrap.servers": self.broker.bootstrap,
            "application.id": "streams",
            "processing.guarantee": "exactly_once_v2",
            "replication.factor": "1",
            "commit.interval.ms": "100",
            "statestore.cache.max.bytes": "0",
            "state.dir": str(self.folder / "state"),
            "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
            "default.value.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
            "consumer.auto.offset.reset": "earliest",
            "consumer.max.poll.records": "20",
            "consumer.session.timeout.ms": str(_SESSION_MS),
            "consumer.heartbeat.interval.ms": "1000",
        }.items():
            settings.put(name, value)
        streams = kafka.streams.KafkaStreams(builder.build(), settings)
        streams.start()
        return streams
