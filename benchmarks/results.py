"""Results: one line of JSON for each benchmark that was run, behind those of earlier runs, in ``.cache/benchmarks``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

DEFAULT_FILE = Path(".cache/benchmarks/results.jsonl")


@dataclass(frozen=True)
class Result:
    """What one run of one benchmark found.

    Attributes:
        benchmark: its name.
        at: when it ended, ISO 8601 in UTC.
        seconds: how long it took.
        quick: True when it was run in the sizes of ``--quick``.
        machine: what it ran on, see `machine.facts`.
        figures: its own; numbers by name, nested.
    """

    benchmark: str
    at: str
    seconds: float
    quick: bool
    machine: dict[str, Any]
    figures: dict[str, Any]


def append(file: Path, result: Result) -> None:
    """Write a result behind the others."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(vars(result)) + "\n")


def newest(file: Path) -> dict[str, Result]:
    """The newest result of each benchmark, by its name; none where nothing was run."""
    if not file.exists():
        return {}
    found = (Result(**json.loads(line)) for line in file.read_text().splitlines())
    return {result.benchmark: result for result in found}


def now() -> str:
    """The time, as results have it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
