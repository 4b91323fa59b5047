"""The other process of `start`: sees when a read_committed reader and the table show all rows of a batch.

Told by a line of JSON what to look at; it answers ``ready`` when it looks, and then with the two times as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.connections import connect
from benchmarks.workbench import ROOT

_POLL_S: Final = 0.003
_CONSUME_MAX: Final = 1_000
#: For the rows of one small batch, on a machine that is busy with other things.
_DEADLINE_S: Final = 120.0
_METADATA_DEADLINE_S: Final = 30.0
_CLOSE_DEADLINE_S: Final = 10.0


@dataclass(frozen=True)
class Seen:
    """When each side first showed all rows, by the clock of the machine, s.

    Attributes:
        kafka_s: a read_committed reader of the topic.
        table_s: a reader of the table.
    """

    kafka_s: float
    table_s: float

    @property
    def both_s(self) -> float:
        """When both did."""
        return max(self.kafka_s, self.table_s)


class Watcher:
    """The process, from the side of the benchmark. Use it as a context manager.

    Args:
        bootstrap: of Kafka.
        url: SQLAlchemy's, of the database.
    """

    def __init__(self, bootstrap: str, url: str) -> None:
        self._given = {"bootstrap": bootstrap, "url": url}

    def __enter__(self) -> Watcher:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.start_watch", json.dumps(self._given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        # They are there: both are pipes.
        self._requests: Any = self._process.stdin
        self._answers: Any = self._process.stdout
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.close()
        self._process.wait(_CLOSE_DEADLINE_S)

    def look_at(self, name: str, *, partitions: int, rows: int) -> Callable[[], Seen]:
        """Begin to look at a topic and the table of its name; call the answer to wait until both have all rows."""
        self._requests.write(json.dumps({"name": name, "partitions": partitions, "rows": rows}) + "\n")
        self._requests.flush()
        self._read("ready")
        return lambda: Seen(**json.loads(self._read("{")))

    def _read(self, wanted: str) -> str:
        line: str = self._answers.readline()
        if not line.startswith(wanted):
            message = f"the rows of a batch did not become visible; the watcher says {line!r}"
            raise SystemExit(message)
        return line


def main() -> None:
    """Look at what each line of the input names."""
    given = json.loads(sys.argv[1])
    for line in sys.stdin:
        wanted = json.loads(line)
        print(json.dumps(_look(given, **wanted)), flush=True)


def _look(given: dict[str, str], *, name: str, partitions: int, rows: int) -> dict[str, float]:
    seen: dict[str, float] = {}
    with (
        closing(_consumer(given["bootstrap"], name, partitions)) as consumer,
        closing(connect(given["url"])) as connection,
    ):
        connection.autocommit = True
        topic = threading.Thread(target=_watch_topic, args=(consumer, rows, seen), daemon=True)
        topic.start()
        print("ready", flush=True)
        _watch_table(connection, name, rows, seen)
        topic.join(_DEADLINE_S)
    return seen


def _consumer(bootstrap: str, topic: str, partitions: int) -> Consumer:
    """A reader that has its metadata, so that nothing but the rows is waited for."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.list_topics(topic, timeout=_METADATA_DEADLINE_S)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    consumer.consume(1, timeout=_POLL_S)
    return consumer


def _watch_topic(consumer: Consumer, rows: int, seen: dict[str, float]) -> None:
    found, deadline_s = 0, time.monotonic() + _DEADLINE_S
    while found < rows and time.monotonic() < deadline_s:
        messages = consumer.consume(_CONSUME_MAX, timeout=_POLL_S)
        found += sum(1 for message in messages if message.error() is None)
        if found >= rows:
            seen["kafka_s"] = time.time()


def _watch_table(connection: Any, table: str, rows: int, seen: dict[str, float]) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    with connection.cursor() as cursor:
        while "table_s" not in seen and time.monotonic() < deadline_s:
            cursor.execute(f"SELECT count(*) FROM {table}")
            if cursor.fetchone()[0] >= rows:
                seen["table_s"] = time.time()
            time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
