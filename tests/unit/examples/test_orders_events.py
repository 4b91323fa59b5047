"""The generator writes the same bytes each time, and everything that makes real data awkward."""

from __future__ import annotations

import json
from pathlib import Path

from orders_events import write_events


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
