"""A job with several outputs: three topics, three tables and dead letters in one decision, and its events."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil

from spark_2pc_sink.testing import MultisetDifference, TopicRecord, multiset_difference, read_topic
from tests.chaos.jobs import READ_DEADLINE_S, Sides, SparkJob, descendants
from tests.harness.driver_job import KAFKA_OPTIONS, SINK_OPTIONS
from tests.harness.driver_process import DriverProcess, Nursery
from tests.harness.sql import run_sql

SCHEMA = "id BIGINT, item INT, note STRING, paid BOOLEAN, gone BOOLEAN, lines ARRAY<STRUCT<sku: STRING, n: INT>>"
#: Few items: most events replace or delete what another one, of its batch or of one before, has left.
_ITEMS = 40
_LINES_MAX = 4
_GONE_SHARE = 0.2
#: Notes that PostgreSQL refuses: by a constraint, and because no text has such a character.
_BAD_NOTES = ("refused", "nul \x00 in it")
#: What a constraint refuses in a line, which is a bad row of its event.
_BAD_COUNT = -1


@dataclass(frozen=True)
class Event:
    """One row of the input; an `id` comes once.

    Attributes:
        item: that it is about; the newest event of an item is its state.
        paid: goes to the topic of these only.
        lines: each is a row of its own.
    """

    id: int
    item: int
    note: str
    paid: bool
    gone: bool
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bad(self) -> bool:
        """True where a table refuses it, so that it goes to the dead letters and to no output."""
        return self.note in _BAD_NOTES or any(line["n"] == _BAD_COUNT for line in self.lines)


def make_events(draw: random.Random, first: int, count: int, *, bad: bool) -> list[Event]:
    """Draw events with ids from ``first`` on; with ``bad`` one of them is refused by a table."""
    events = [_event(draw, number) for number in range(first, first + count)]
    if bad:
        victim = draw.choice(events)
        kind = draw.randrange(len(_BAD_NOTES) + 1)
        changed = {"note": _BAD_NOTES[kind]} if kind < len(_BAD_NOTES) else {"lines": [{"sku": "s", "n": _BAD_COUNT}]}
        events[events.index(victim)] = Event(**{**vars(victim), **changed})
    return events


def expected(events: Iterable[Event]) -> dict[str, list[tuple[Any, ...]]]:
    """What each output must hold, by its name in `tests.chaos.outputs_job`, of all of the input in its order."""
    given = list(events)
    good = [event for event in given if not event.bad]
    last = {event.item: event for event in good}
    return {
        "topic outputs": [(str(event.item), None if event.gone else (event.id, event.note)) for event in good],
        "topic outputs.lines": [(line["sku"], event.id, line["n"]) for event in good for line in event.lines],
        "topic outputs.paid": [(str(event.id), event.note) for event in good if event.paid],
        "table outputs_log": [(event.id, event.item, event.note) for event in good],
        "table outputs_state": [(event.item, event.id, event.note) for event in last.values() if not event.gone],
        "table outputs_lines": [(event.id, line["sku"], line["n"]) for event in good for line in event.lines],
        **{f"{side} of dead letters": [(event.id,) for event in given if event.bad] for side in ("topic", "table")},
    }


def _event(draw: random.Random, number: int) -> Event:
    return Event(
        id=number,
        item=draw.randrange(_ITEMS),
        note=f"n {number} äö€ ".ljust(draw.choice((20, 200)), "·"),
        paid=draw.random() < 0.5,
        gone=draw.random() < _GONE_SHARE,
        lines=[{"sku": f"sku-{line}", "n": number % 7 + line} for line in range(draw.randrange(_LINES_MAX))],
    )


#: The topic of dead letters.
LETTERS = "outputs.bad"
DDL = (
    "CREATE TABLE outputs_log (id bigint PRIMARY KEY, item int NOT NULL, note text CHECK (note <> 'refused'))",
    "CREATE TABLE outputs_state (item int PRIMARY KEY, id bigint NOT NULL, note text)",
    # No primary key: nothing but the sink keeps rows from being there twice.
    "CREATE TABLE outputs_lines (id bigint NOT NULL REFERENCES outputs_log, sku text, n int CHECK (n >= 0))",
)
_LINES = "explode(lines) AS line"
WRITES: tuple[dict[str, Any], ...] = (
    {
        "kind": "records",
        "topic": "outputs",
        "key": "cast(item AS string)",
        "tombstone_when": "gone",
        "value": "to_json(struct(id, note))",
    },
    {
        "kind": "records",
        "topic": "outputs.lines",
        "rows": _LINES,
        "key": "line.sku",
        "value": "to_json(struct(id, line.n))",
    },
    {"kind": "records", "topic": "outputs.paid", "where": "paid", "key": "cast(id AS string)", "value": "note"},
    {"kind": "rows", "table": "outputs_log", "columns": {name: name for name in ("id", "item", "note")}},
    {
        "kind": "rows",
        "table": "outputs_state",
        "columns": {name: name for name in ("item", "id", "note")},
        "mode": "upsert",
        "keys": ["item"],
        "order_by": "id",
        "delete_when": "gone",
    },
    {
        "kind": "rows",
        "table": "outputs_lines",
        "rows": _LINES,
        "columns": {"id": "id", "sku": "line.sku", "n": "line.n"},
    },
)
_FILES_PER_ROUND = 40
_EVENTS_PER_FILE = (1, 20, 60)
_BAD_SHARE = 0.2
_FILES_PER_BATCH = 2
_LETTERS = "SELECT to_jsonb(letter) - 'at' FROM kafka_transaction_state_dead_letters AS letter"


class OutputsJob(SparkJob):
    name = "outputs"
    topics: ClassVar = {"outputs": 3, "outputs.lines": 2, "outputs.paid": 1, LETTERS: 2}
    # Of several outputs it compares the topics with the history; digests also have rows that go to a table alone.
    verify_says = "inconclusive"
    # As many as a batch takes: none pile up.
    files_ahead = _FILES_PER_BATCH

    def __init__(self, sides: Sides, folder: Path, nursery: Nursery, seed: int) -> None:
        super().__init__(sides, folder, nursery, seed)
        self._draw = random.Random(f"outputs {seed}")
        self._events = 0
        for statement in DDL:
            self._sql(statement)

    def launch(self, folder: Path) -> DriverProcess:
        """Start a query. Every second one leaves its batches, small as they are, to tasks that stage their rows."""
        sink = {
            "transactional_id": self.name,
            "kafka": {"bootstrap.servers": self.sides.proxied_kafka, **KAFKA_OPTIONS},
            "database": self.sides.proxied_database,
            "writes": WRITES,
            "bad_rows": "dead_letter",
            "dead_letter_topic": LETTERS,
            **SINK_OPTIONS,
        }
        return self._launch(
            folder,
            input=str(self.input),
            sink=sink,
            schema=SCHEMA,
            files_per_batch=_FILES_PER_BATCH,
            by_tasks=len(self.drivers) % 2 == 1,
            follow=not self.finishing,
        )

    def compare(self) -> dict[str, MultisetDifference]:
        """Every topic, every table and the dead letters; and the letters of the topic with those of the table."""
        wanted = expected(self._given())
        in_topic, in_table = self._letters()
        found = {
            **self._records(),
            **self._rows(),
            "topic of dead letters": _rows_of(in_topic),
            "table of dead letters": _rows_of(in_table),
        }
        compared = {output: multiset_difference(found[output], rows) for output, rows in wanted.items()}
        same = multiset_difference(
            *([json.dumps(letter, sort_keys=True) for letter in side] for side in (in_topic, in_table))
        )
        return {**compared, "dead letters of topic and table": same}

    def python_workers(self) -> list[psutil.Process]:
        """Below the driver's virtual machine; they are forked by a daemon."""
        return descendants(self.driver.pid, command="pyspark.daemon", parent="pyspark.daemon")

    def write_round(self, folder: Path, number: int) -> None:
        """Files of few and of more events; in many of them one is bad."""
        del number  # ids go on from round to round
        folder.mkdir()
        for file in range(_FILES_PER_ROUND):
            count = self._draw.choice(_EVENTS_PER_FILE)
            events = make_events(self._draw, self._events, count, bad=self._draw.random() < _BAD_SHARE)
            self._events += count
            (folder / f"{file:06}.jsonl").write_text("".join(json.dumps(asdict(event)) + "\n" for event in events))

    def _given(self) -> list[Event]:
        lines = [line for file in sorted(self.input.glob("*.jsonl")) for line in file.read_text().splitlines()]
        return [Event(**json.loads(line)) for line in lines]

    def _records(self) -> dict[str, list[tuple[Any, ...]]]:
        whole, lines, paid = (self._read(topic) for topic in self.topics if topic != LETTERS)
        return {
            "topic outputs": [
                (_text(record.key), None if record.value is None else _fields(record, "id", "note")) for record in whole
            ],
            "topic outputs.lines": [(_text(record.key), *_fields(record, "id", "n")) for record in lines],
            "topic outputs.paid": [(_text(record.key), _text(record.value)) for record in paid],
        }

    def _rows(self) -> dict[str, list[tuple[Any, ...]]]:
        return {
            "table outputs_log": self._sql("SELECT id, item, note FROM outputs_log"),
            "table outputs_state": self._sql("SELECT item, id, note FROM outputs_state"),
            "table outputs_lines": self._sql("SELECT id, sku, n FROM outputs_lines"),
        }

    def _letters(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        told = [json.loads(record.value or b"null") for record in self._read(LETTERS)]
        return told, [letter for (letter,) in self._sql(_LETTERS)]

    def _read(self, topic: str) -> list[TopicRecord]:
        return read_topic(self.sides.broker.bootstrap, topic, deadline_s=READ_DEADLINE_S)

    def _sql(self, statement: str) -> list[tuple[Any, ...]]:
        return run_sql(self.sides.database, statement)


def _rows_of(letters: list[dict[str, Any]]) -> list[tuple[int]]:
    """The rows of the dead letters, each as often as it occurred."""
    return [(letter["row"]["id"],) for letter in letters for _ in range(letter["occurrences"])]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _fields(record: TopicRecord, *names: str) -> tuple[Any, ...]:
    value = json.loads(record.value or b"null")
    return tuple(value[name] for name in names)
