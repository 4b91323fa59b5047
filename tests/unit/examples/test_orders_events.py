"""The generator writes the same bytes each time."""

from __future__ import annotations

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
