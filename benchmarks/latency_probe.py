"""The other process of `latency`: makes rows at an even pace, and sees when each side shows them, if there are sides.

Writes a JSON object to its standard output: when each row was created, or how long each side took to show it.
"""

from __future__ import annotations

import bisect
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.connections import connect

_PACE_S = 0.01
_TABLE_POLL_S = 0.003
_CONSUME_MAX = 10_000
_END_DEADLINE_S = 60.0


@dataclass
class Sightings:
    """Up to which id rows were visible, and since when; both rise.

    Attributes:
        ids: the greatest id seen.
        at_s: when, by the clock.
    """

    ids: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    def note(self, greatest: int, at_s: float) -> None:
        """Everything up to ``greatest`` is visible."""
        if not self.ids or greatest > self.ids[-1]:
            self.ids.append(greatest)
            self.at_s.append(at_s)

    def first(self, row: int) -> float:
        """When a row was first visible."""
        return self.at_s[bisect.bisect_left(self.ids, row)]


def main() -> None:
    """Make rows, watch, and report."""
    given = json.loads(sys.argv[1])
    total = given["rows_per_s"] * (given["warm_up_s"] + given["seconds"])
    rows = range(given["rows_per_s"] * given["warm_up_s"], total)
    if given["topic"] is None:
        json.dump({"created_s": _create(given, total)[rows.start :]}, sys.stdout)
        return
    seen_at: dict[int, float] = {}
    table = Sightings()
    done = threading.Event()
    watchers = [
        threading.Thread(target=_watch_topic, args=(given, seen_at, total, done), daemon=True),
        threading.Thread(target=_watch_table, args=(given, table, total, done), daemon=True),
    ]
    for watcher in watchers:
        watcher.start()
    created = _create(given, total)
    for watcher in watchers:
        watcher.join(_END_DEADLINE_S)
    done.set()
    if len(seen_at) != total or not table.ids or table.ids[-1] != total - 1:
        message = f"of {total} rows {len(seen_at)} became visible in the topic, {table.ids[-1:]} was the table's last"
        raise SystemExit(message)
    json.dump(
        {
            "kafka_s": [seen_at[row] - created[row] for row in rows],
            "table_s": [table.first(row) - created[row] for row in rows],
        },
        sys.stdout,
    )


def _create(given: dict[str, Any], total: int) -> list[float]:
    """Send rows, each when it is due; when each was created."""
    producer = Producer({"bootstrap.servers": given["bootstrap"], "linger.ms": 1, "acks": "all"})
    created: list[float] = []
    begun = time.time()
    while len(created) < total:
        due = min(total, int((time.time() - begun) * given["rows_per_s"]))
        while len(created) < due:
            row, now = len(created), time.time()
            value = {"id": row, "customer": f"customer-{row % 50000}", "quantity": row % 1000}
            producer.produce(given["source"], json.dumps({**value, "created_us": int(now * 1e6)}))
            created.append(now)
        producer.poll(0)
        time.sleep(_PACE_S)
    producer.flush(_END_DEADLINE_S)
    return created


def _watch_topic(given: dict[str, Any], seen_at: dict[int, float], total: int, done: threading.Event) -> None:
    """Note when a read_committed consumer is handed each row."""
    consumer = Consumer(
        {
            "bootstrap.servers": given["bootstrap"],
            "group.id": "never-joined",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(given["topic"], partition, 0) for partition in range(given["partitions"])])
    try:
        while len(seen_at) < total and not done.is_set():
            messages = consumer.consume(_CONSUME_MAX, timeout=_TABLE_POLL_S)
            now = time.time()
            for message in messages:
                key = message.key()
                if message.error() is None and key is not None:
                    seen_at[int(key)] = now
    finally:
        consumer.close()


def _watch_table(given: dict[str, Any], table: Sightings, total: int, done: threading.Event) -> None:
    """Note the greatest id of the table again and again."""
    connection = connect(given["url"])
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            while not done.is_set() and not (table.ids and table.ids[-1] == total - 1):
                cursor.execute(f"SELECT max(id) FROM {given['table']}")
                found = cursor.fetchone()
                if found is not None and found[0] is not None:
                    table.note(found[0], time.time())
                time.sleep(_TABLE_POLL_S)
    finally:
        connection.close()


if __name__ == "__main__":
    main()
