"""Two versions of the package, in turns on the same servers: what a change costs.

    python -m benchmarks.versions /path/to/another/checkout --turns 5

Each version is measured by the benchmarks of its own checkout, which import its modules by their names of then; this
module alone is the same for both. Each turn has a process of its own for each version, with a session that has run
nothing before; who begins changes every turn.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import fresh, small_batches, writers
from benchmarks.figures import Spread
from benchmarks.inputs import NARROW, write_source
from benchmarks.runs import RunFigures, run
from benchmarks.workbench import ROOT, Servers, Workbench

ROWS = 1_000_000
#: The first of each query is cold, and left out.
BATCHES = 4
WARM_UP_RUNS = 2
SMALL_ROWS = 100
SMALL_BATCHES = 200
#: Queries of small batches with the history and without, in turns.
SMALL_RUNS = 2
PACKAGES = ("spark_2pc_sink", "jdbc_state", "benchmarks")
VERSIONS = ("before", "after")


def main() -> None:
    """Measure, and print the figures as a table and as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="a checkout of the version before")
    parser.add_argument("--turns", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=ROWS, help="in each large batch; default: %(default)s")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-2pc-versions-") as directory:
        roots = {"before": _assemble(given.other, Path(directory) / "before"), "after": ROOT}
        found = _take_turns(roots, turns=given.turns, rows=given.rows)
    for name in found["before"][0]:
        print(_line(name, {version: [turn[name] for turn in found[version]] for version in VERSIONS}))
    print(json.dumps(found))


def _assemble(checkout: Path, root: Path) -> Path:
    """A folder with the packages of ``checkout``, and this module among its benchmarks."""
    for package in PACKAGES:
        shutil.copytree(checkout / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(__file__, root / "benchmarks" / Path(__file__).name)
    return root


def _take_turns(roots: dict[str, Path], *, turns: int, rows: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {version: [] for version in VERSIONS}
    with Workbench() as bench:
        servers = bench.servers.json()
        for turn in range(turns):
            for version in VERSIONS if turn % 2 == 0 else reversed(VERSIONS):
                figures = fresh.call(
                    "benchmarks.versions", "measure", {"servers": servers, "rows": rows}, root=roots[version]
                )
                found[version].append(figures)
                print(f"turn {turn + 1}, {version}: {json.dumps(figures)}", flush=True)
    return found


def measure(*, servers: dict[str, Any], rows: int) -> dict[str, float]:
    """Called in a process of its own: the figures of one version in one turn, each the better the smaller."""
    with Workbench(servers=Servers(**servers)) as bench:
        return {**_large(bench, rows), **_small(bench)}


def _large(bench: Workbench, rows: int) -> dict[str, float]:
    folder = bench.directory
    new_rows = write_source(bench.spark, folder / "append", NARROW, rows=rows, batches=BATCHES)
    same_rows = write_source(bench.spark, folder / "upsert", NARROW, rows=rows, batches=BATCHES, same_ids=True)
    for _ in range(WARM_UP_RUNS):
        run(bench, new_rows, writers.ours, key="id")
    return {
        "keyed, s": _warm_s(run(bench, new_rows, writers.ours, key="id")),
        "unkeyed, s": _warm_s(run(bench, new_rows, writers.ours, key=None)),
        "upsert, s": _warm_s(run(bench, same_rows, writers.ours, key="id", upsert=True)),
        "upsert, ordered, s": _warm_s(
            run(bench, same_rows, partial(writers.ours, upsert_order_by="quantity"), key="id", upsert=True)
        ),
    }


def _warm_s(found: RunFigures) -> float:
    return Spread.of([batch.seconds for batch in found.warm]).median


def _small(bench: Workbench) -> dict[str, float]:
    """The sink's own time for batches of few rows, as it is and without the history, queries of both in turns."""
    source = small_batches.write_source(bench, SMALL_ROWS, small_batches.WARM_UP_BATCHES + SMALL_BATCHES)
    options: dict[str, dict[str, Any]] = {"small": {}, "small, no history": {"history_batches": 0}}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options}
    for _ in range(SMALL_RUNS):
        for name, given in options.items():
            runs[name].append(small_batches.measure_source(bench, source, **given))
    return {
        f"{name}, {measured}": Spread.of([one[measured] for one in found]).median
        for name, found in runs.items()
        for measured in ("sink_p50_ms", "sink_p99_ms")
    }


def _line(name: str, figures: dict[str, list[float]]) -> str:
    before, after = (Spread.of(figures[version]) for version in VERSIONS)
    paired = Spread.of([new / old for old, new in zip(figures["before"], figures["after"], strict=True)])
    return f"{name:34} before {before}, after {after}; after / before, by turns {paired}"


if __name__ == "__main__":
    main()
