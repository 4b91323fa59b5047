"""Results: a line of JSON for each run of a benchmark.

All runs of a checkout are in ``.cache/benchmarks``. The newest results, which RESULTS.md shows, are in its folder, so
that one benchmark can be measured again without the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

DEFAULT_FILE = Path(".cache/benchmarks/results.jsonl")
#: The file in RESULTS.md's folder.
RECORDED_NAME = "results.jsonl"


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
    """Append a result."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(vars(result)) + "\n")


def newest(*files: Path) -> dict[str, Result]:
    """The newest result of each benchmark in some files, by its name; none where nothing was run."""
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    found = sorted((Result(**json.loads(line)) for line in lines), key=lambda result: result.at)
    return {result.benchmark: result for result in found}


def record(file: Path, found: Mapping[str, Result]) -> None:
    """Keep these results, and no others, in the order of their benchmarks' names."""
    file.write_text("".join(json.dumps(vars(found[name])) + "\n" for name in sorted(found)))


def now() -> str:
    """The time, as results have it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
