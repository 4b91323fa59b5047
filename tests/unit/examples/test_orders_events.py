"""The generator writes the same bytes each time, and everything that makes real data awkward."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

from orders_events import order_events, write_events

EVENTS = list(order_events(5_000, seed=7))


NAMES = "".join({event["customer"]["name"] for event in EVENTS})
ITEMS = [item for event in EVENTS for item in event["items"] or ()]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("once", "twice"):
        write_events(tmp_path / name, events=500, seed=3, files=4)
    write_events(tmp_path / "other", events=500, seed=4, files=4)
    once = files(tmp_path / "once")
    assert once == files(tmp_path / "twice")
    assert not once.keys() & files(tmp_path / "other").keys()  # so both can go into one directory


def test_events_of_an_order_come_in_order_from_file_to_file_and_mixed_within(tmp_path: Path) -> None:
    write_events(tmp_path, events=2_000, seed=7, files=10)
    highest: dict[str, int] = {}
    mixed = 0
    for path in sorted(tmp_path.iterdir()):
        before = dict(highest)
        for event in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            order_id, sequence = event["order_id"], event["sequence"]
            assert sequence > before.get(order_id, 0)
            mixed += sequence < highest.get(order_id, 0)
            highest[order_id] = max(sequence, highest.get(order_id, 0))
    assert mixed > 0


FEATURES = {
    "beyond the basic plane": any(ord(letter) > 0xFFFF for letter in NAMES),
    "combining": any(unicodedata.combining(letter) for letter in NAMES),
    "joined": "\u200d" in NAMES,
    "from right to left": {"R", "AL"} <= {unicodedata.bidirectional(letter) for letter in NAMES},
    "quotes and control characters": {'"', "'", "\\", "\t", "\n"} <= set(NAMES),
    "no country": any(event["customer"]["country"] is None for event in EVENTS),
    "a country without region": any(event["customer"]["country"] == "XX" for event in EVENTS),
    "no note": any(event["note"] is None for event in EVENTS),
    "an empty note": any(event["note"] == "" for event in EVENTS),
    "no items": any(event["items"] is None for event in EVENTS),
    "an empty list of items": any(event["items"] == [] for event in EVENTS),
    "several items": any(len(event["items"] or ()) > 1 for event in EVENTS),
    "prices as text, as number, unknown": {type(item["unit_price"]) for item in ITEMS} == {str, float, type(None)},
    "times in UTC": any(event["event_time"].endswith("Z") for event in EVENTS),
    "times with an offset": any(event["event_time"].endswith("-08:00") for event in EVENTS),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_is_there(feature: str) -> None:
    assert FEATURES[feature]
