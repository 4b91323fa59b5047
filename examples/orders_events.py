"""Write order events as JSON-lines files, reproducibly: the input of orders_job.py.

    python examples/orders_events.py --out /tmp/events --events 200000 --seed 7 --files 40

Each event carries its order as it is from then on: status, customer, items and prices. One order has several events,
numbered by ``sequence``. They come in order from file to file; within a file the lines are mixed.

The data are as awkward as real data: names with emoji, combining marks and from right to left; missing countries,
prices, items and notes; prices as JSON strings and as JSON numbers; times in UTC and with an offset.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import Any

#: Where a customer's country belongs. Country "XX" is in no region, as some country always is.
REGIONS = {
    "BR": "Americas",
    "DE": "Europe",
    "IL": "Middle East",
    "IN": "Asia",
    "JP": "Asia",
    "KE": "Africa",
    "NO": "Europe",
    "US": "Americas",
}

_COUNTRIES = [*REGIONS, "XX", None]
_NAMES = [
    "Ada Lovelace",
    "Søren Ångström",
    "Zoe\u0308 Nu\u0301n\u0303ez",  # letters followed by combining marks
    "Владимир Петрович",
    "李小龍",
    "さくら 🌸",
    "नरेन्द्र कुमार",
    "שרה לוי",  # right to left
    "ليلى حداد",
    "👩‍👩‍👧‍👦 & Sons",  # seven code points joined to one picture
    'Robert "Bobby" Tables\\',
    "O'Neill\tand\nDaughters",
]
_TITLES = ["Kettle", "Grüner Tee, 500 g", "Café crème ☕", "دفتر", "鉛筆 2B", "T-shirt 🦄 (L)", "Näh\u00adnadeln"]
_NOTES = ["", "leave at the door 🚪", "הקש פעמיים", "gift: don't show the price", '2nd floor,\nring "Nuñez"']
_CURRENCIES = ["EUR", "USD", "JPY", "ILS"]
_ITEMS = [0, 1, 1, 2, 2, 3, 5]
_ZONES = [timezone(timedelta(minutes=minutes)) for minutes in (-480, 60, 330)]

#: What happens to an order, and how often.
_JOURNEYS = {
    ("placed", "paid", "packed", "shipped", "delivered"): 70,
    ("placed", "paid", "packed", "shipped", "delivered", "returned"): 10,
    ("placed", "cancelled"): 15,
    ("placed", "paid", "cancelled"): 5,
}
#: Concurrent orders: few enough that one order often has several events in one micro-batch.
_ORDERS_UNDER_WAY_MAX = 500
_EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
_MICROSECONDS_BETWEEN_EVENTS_MAX = 200_000

Event = dict[str, Any]


def main() -> None:
    """Write the files that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write order events as JSON-lines files.")
    parser.add_argument("--out", type=Path, required=True, help="directory of the files")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=7, help="the same seed writes the same bytes")
    parser.add_argument("--files", type=int, default=40)
    given = parser.parse_args()
    begun = time.monotonic()
    write_events(given.out, events=given.events, seed=given.seed, files=given.files)
    print(f"{given.events:,} events in {given.files} files in {given.out}, {time.monotonic() - begun:.1f} s")


def write_events(directory: Path, *, events: int, seed: int, files: int) -> None:
    """Write ``events`` order events into ``files`` files of about the same size.

    Args:
        directory: made if it is not there.
        events: how many lines there are in all files together.
        seed: the same seed writes the same bytes; other seeds write other orders, into files with other names.
        files: how many.
    """
    directory.mkdir(parents=True, exist_ok=True)
    stream = order_events(events, seed)
    draw = random.Random(f"lines {seed}")
    for number in range(files):
        lines = [_json(event) for event in islice(stream, events * (number + 1) // files - events * number // files)]
        draw.shuffle(lines)
        path = directory / f"orders-{seed}-{number:04d}.jsonl"
        # A running stream lists the directory at any time: a file has its name, and its time, once it is complete.
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.write_text("".join(lines), encoding="utf-8")
        # Spark takes files by their modification time, so they are in order however fast they were written.
        modified_s = _EPOCH.timestamp() + number
        os.utime(unfinished, (modified_s, modified_s))
        unfinished.rename(path)


def order_events(count: int, seed: int) -> Iterator[Event]:
    """Yield ``count`` events of as many orders as that makes, in the order in which they happened."""
    draw = random.Random(seed)
    under_way: list[_Order] = []
    now = _EPOCH
    for number in range(count):
        now += timedelta(microseconds=draw.randint(1, _MICROSECONDS_BETWEEN_EVENTS_MAX))
        if not under_way or (len(under_way) < _ORDERS_UNDER_WAY_MAX and _happens(draw, percent=40)):
            under_way.append(_new_order(draw, f"{seed}-{number:07d}"))
            chosen = len(under_way) - 1
        else:
            chosen = draw.randrange(len(under_way))
        yield under_way[chosen].next_event(now, draw)
        if under_way[chosen].finished:
            under_way.pop(chosen)


@dataclass
class _Order:
    """An order under way: what stays the same, and how far it is."""

    facts: Event
    journey: tuple[str, ...]
    sequence: int = 0

    @property
    def finished(self) -> bool:
        return self.sequence == len(self.journey)

    def next_event(self, now: datetime, draw: random.Random) -> Event:
        self.sequence += 1
        return {
            **self.facts,
            "sequence": self.sequence,
            "status": self.journey[self.sequence - 1],
            "event_time": _written(now, draw),
            "note": draw.choice(_NOTES) if _happens(draw, percent=30) else None,
        }


def _new_order(draw: random.Random, order_id: str) -> _Order:
    customer = draw.randrange(10_000)
    # A customer keeps name and country.
    facts = {
        "order_id": order_id,
        "customer": {
            "id": customer,
            "name": _NAMES[customer % len(_NAMES)],
            "country": _COUNTRIES[customer % len(_COUNTRIES)],
        },
        "currency": draw.choice(_CURRENCIES),
        # An order by telephone has no items yet, which differs from an empty basket.
        "items": None if _happens(draw, percent=2) else [_item(draw) for _ in range(draw.choice(_ITEMS))],
    }
    (journey,) = draw.choices(list(_JOURNEYS), weights=list(_JOURNEYS.values()))
    return _Order(facts, journey)


def _item(draw: random.Random) -> Event:
    number = draw.randrange(2_000)
    return {
        "sku": f"SKU-{number:04d}",
        "title": _TITLES[number % len(_TITLES)],
        "quantity": draw.randint(1, 9),
        "unit_price": _price(draw),
    }


def _price(draw: random.Random) -> str | float | None:
    """A price in hundredths: mostly a string, often a number, now and then unknown."""
    if _happens(draw, percent=3):
        return None
    cents = draw.randint(1, 99_999)
    # As a number it is written with the fewest digits that read back as this float: those of the price.
    return f"{cents // 100}.{cents % 100:02d}" if _happens(draw, percent=60) else cents / 100


def _written(instant: datetime, draw: random.Random) -> str:
    """The instant as one of the shops writes it: in UTC, or in its own time zone."""
    if _happens(draw, percent=70):
        return instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return instant.astimezone(draw.choice(_ZONES)).isoformat(timespec="microseconds")


def _happens(draw: random.Random, *, percent: int) -> bool:
    return draw.random() * 100 < percent


def _json(event: Event) -> str:
    # About half of all JSON writers escape everything beyond ASCII, the others nothing.
    return json.dumps(event, ensure_ascii=event["sequence"] % 2 == 0) + "\n"


if __name__ == "__main__":
    main()
