"""Compare what the orders job has written with the events that it was given: every record and every row.

    python examples/orders_compare.py --events /tmp/events --kafka 127.0.0.1:9092 --topic orders \
        --database postgresql+psycopg2://me@127.0.0.1/shop --table orders

The topic must hold each event exactly once, as a multiset, and the table the last state of each order. What is
expected is worked out here once more, in plain Python from the files; the topic is read by librdkafka (read_committed,
to its end), the table by SQL. So neither Spark nor the sink is checked by its own code. Exit code 3: something differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from orders_events import REGIONS
from spark_2pc_sink.testing import MultisetDifference, multiset_difference, read_topic

#: Not 1, Python's exit code for an exception.
EXIT_DIFFERENT = 3
#: A minute reads some millions of records; a missing broker must not block for ever.
_READ_DEADLINE_S = 300.0
_ROWS_PER_FETCH = 10_000

#: Reads JSON, and leaves decimals as they are written, digit by digit.
_parse_json = json.JSONDecoder(parse_float=str).decode
_write_json = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode

#: An order as of one event, in canonical JSON: decimals with two digits after the point, times in UTC, sorted names,
#: no nulls.
OrderText = str


@dataclass(frozen=True)
class Expected:
    """What the events should have become.

    Attributes:
        records: one for each event.
        rows: one for each order, of its last event.
    """

    records: list[OrderText]
    rows: list[OrderText]


@dataclass(frozen=True)
class Comparison:
    """How topic and table differ from the events.

    Attributes:
        events: how many there were.
        topic: records against all events.
        table: rows against the last event of each order.
    """

    events: int
    topic: MultisetDifference
    table: MultisetDifference

    @property
    def exit_code(self) -> int:
        """0 when nothing is missing, nothing is there twice, and nothing else is there."""
        return EXIT_DIFFERENT if self.topic or self.table else 0

    def __str__(self) -> str:
        sides = {"Kafka": self.topic, "PostgreSQL": self.table}
        headings = ("rows in", "expected", "found", "duplicates", "missing", "foreign")
        lines = [f"{'':10}" + "".join(f"{heading:>12}" for heading in headings)]
        for name, side in sides.items():
            wrong = (side.duplicated.total(), side.missing.total(), side.foreign.total())
            counts = (self.events, side.expected, side.actual, *wrong)
            lines.append(f"{name:10}" + "".join(f"{count:>12,}" for count in counts))
        return "\n".join(lines + [f"\n{name}: {side}" for name, side in sides.items() if side])


def main() -> int:
    """Compare what the command line names, and print the result; the exit code."""
    parser = argparse.ArgumentParser(description="Compare topic and table with the events.")
    parser.add_argument("--events", required=True, type=Path, metavar="DIR")
    for name in ("kafka", "topic", "database", "table"):
        parser.add_argument(f"--{name}", required=True)
    comparison = compare(**vars(parser.parse_args()))
    print(comparison)
    return comparison.exit_code


def compare(*, events: Path, kafka: str, topic: str, database: str, table: str) -> Comparison:
    """Read both sides to their end and compare them with the events.

    Args:
        events: the directory of the job's input files.
        kafka: ``bootstrap.servers``.
        topic: read with isolation.level=read_committed.
        database: SQLAlchemy URL.
        table: as in SQL.
    """
    return compare_orders(
        expect(read_events(events)), records=read_records(kafka, topic), rows=read_rows(database, table)
    )


def compare_orders(expected: Expected, *, records: Iterable[OrderText], rows: Iterable[OrderText]) -> Comparison:
    """Compare both sides with the expected orders."""
    return Comparison(
        events=len(expected.records),
        topic=multiset_difference(records, expected.records),
        table=multiset_difference(rows, expected.rows),
    )


def expect(events: Iterable[Mapping[str, Any]]) -> Expected:
    """Work out what the job should make of events."""
    records: list[OrderText] = []
    last: dict[str, tuple[int, OrderText]] = {}
    for event in events:
        order_id, sequence = event["order_id"], event["sequence"]
        records.append(_order_text(order_id, _enriched(event)))
        if order_id not in last or sequence > last[order_id][0]:
            last[order_id] = sequence, records[-1]
    return Expected(records, [row for _, row in last.values()])


def read_events(directory: Path) -> Iterator[dict[str, Any]]:
    """The events in the files of a directory."""
    for path in sorted(directory.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            yield from map(_parse_json, lines)


def read_records(kafka: str, topic: str) -> Iterator[OrderText]:
    """The records of a topic."""
    for record in read_topic(kafka, topic, deadline_s=_READ_DEADLINE_S):
        yield record_text(record.key, record.value)


def read_rows(database: str, table: str) -> Iterator[OrderText]:
    """The rows of a table."""
    engine = create_engine(database, json_deserializer=_parse_json)
    try:
        with engine.connect().execution_options(yield_per=_ROWS_PER_FETCH) as connection:
            yield from map(row_text, connection.execute(text(f"SELECT * FROM {table}")).mappings())
    finally:
        engine.dispose()


def record_text(key: bytes | None, value: bytes | None) -> OrderText:
    """The order in a record; a wrong key makes it a different order."""
    return _order_text((key or b"").decode(), _parse_json((value or b"{}").decode()))


def row_text(row: Mapping[Any, Any]) -> OrderText:
    """The order in a row."""
    total = None if row["total"] is None else str(row["total"])
    return _order_text(row["order_id"], {**row, "event_time": _utc(row["event_time"]), "total": total})


def _enriched(event: Mapping[str, Any]) -> dict[str, Any]:
    """What orders_job.py should make of an event."""
    customer, items = event["customer"], event["items"]
    priced = None if items is None else [{**item, **_prices(item)} for item in items]
    lines = [Decimal(item["line_total"]) for item in priced or () if item["line_total"] is not None]
    return {
        **{name: event[name] for name in ("order_id", "sequence", "status", "currency", "note")},
        "event_time": _utc(datetime.fromisoformat(event["event_time"].replace("Z", "+00:00"))),
        "customer_id": customer["id"],
        "customer_name": customer["name"],
        "country": customer["country"],
        "region": REGIONS.get(customer["country"]),
        "items": priced,
        "total": None if priced is None else f"{sum(lines):.2f}",
    }


def _prices(item: Mapping[str, Any]) -> dict[str, str | None]:
    if item["unit_price"] is None:
        return {"unit_price": None, "line_total": None}
    price = Decimal(item["unit_price"])
    return {"unit_price": f"{price:.2f}", "line_total": f"{price * item['quantity']:.2f}"}


def _utc(instant: datetime) -> str:
    return instant.astimezone(timezone.utc).isoformat(timespec="microseconds")


def _order_text(key: str, order: Mapping[str, Any]) -> OrderText:
    items = order.get("items")
    complete = {**order, "(key)": key, "items": items and [_without_nulls(item) for item in items]}
    return _write_json(_without_nulls(complete))


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


if __name__ == "__main__":
    sys.exit(main())
