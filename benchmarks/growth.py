"""Growth: 0.1, 1 and 10 million rows in one batch. Time must grow with the rows, memory must not.

The cost of a row is compared where it is all that differs: seconds added from 0.1 to 1 million rows, and from 1 to 10
million, each for a million rows. All sizes take turns: the seconds of small batches would otherwise be those of another
minute of the machine than the seconds of large ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import writers
from benchmarks.figures import Spread, slope
from benchmarks.inputs import NARROW, write_source
from benchmarks.processes import PeakMemory
from benchmarks.runs import run
from benchmarks.workbench import DRIVER_MEMORY, Workbench

if TYPE_CHECKING:
    from benchmarks.scale import Scale

LARGEST_ROWS = 10_000_000
SHARES = (100, 10, 1)
#: Of each size in a turn, from the smallest: a short batch says less than a long one.
RUNS = (5, 3, 1)


def measure(scale: Scale) -> dict[str, Any]:
    """Figures by number of rows."""
    sizes = [max(1, scale.batch_rows(LARGEST_ROWS) // share) for share in SHARES]
    seconds: dict[int, list[float]] = {rows: [] for rows in sizes}
    peaks: dict[int, dict[str, int]] = {rows: {} for rows in sizes}
    with Workbench() as bench:
        warm_up = write_source(bench.spark, bench.directory / "warm-up", NARROW, rows=sizes[1], batches=3)
        run(bench, warm_up, writers.ours, key="id")
        sources = {
            rows: write_source(bench.spark, bench.directory / str(rows), NARROW, rows=rows, batches=1) for rows in sizes
        }
        one_turn = [rows for rows, times in zip(sizes, RUNS, strict=True) for _ in range(times)]
        for turn in range(scale.pick(full=3, quick=1)):
            for rows in one_turn:
                with PeakMemory(bench.tree) as memory:
                    found = run(bench, sources[rows], writers.ours, key="id")
                seconds[rows].append(found.cold.seconds)
                # Behind a larger batch, a smaller one finds processes that have kept what that one needed.
                if turn == 0 or rows == sizes[-1]:
                    peaks[rows] = {kind: max(size, peaks[rows].get(kind, 0)) for kind, size in memory.peaks.items()}
        for rows in sizes:
            print(_line(rows, seconds[rows], peaks[rows]), flush=True)
    return _figures(seconds, peaks)


def _figures(seconds: dict[int, list[float]], peaks: dict[int, dict[str, int]]) -> dict[str, Any]:
    small, middle, large = ((rows / 1e6, Spread.of(times).median) for rows, times in seconds.items())
    first, second = slope(small, middle), slope(middle, large)
    print(f"seconds for each million rows more: {first:.2f} up to 1 million, {second:.2f} up to 10 million")
    return {
        "sizes": {
            str(rows): {
                "seconds": Spread.of(times).json(),
                "peak_mb": {kind: size / 1e6 for kind, size in peaks[rows].items()},
            }
            for rows, times in seconds.items()
        },
        "s_per_million_first": first,
        "s_per_million_second": second,
        "growth": second / first,
        "driver_heap": DRIVER_MEMORY,
    }


def _line(rows: int, seconds: list[float], peaks: dict[str, int]) -> str:
    memory = ", ".join(f"{kind} {peaks.get(kind, 0) / 1e6:.0f} MB" for kind in ("driver", "spark", "workers"))
    return f"{rows:9} rows: {Spread.of(seconds)} s; peak of the largest process: {memory}"
