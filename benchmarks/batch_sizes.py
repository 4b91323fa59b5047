"""Batches of 1 000 to 150 000 rows compared with the pair, in one process and on a cluster: warm batches of a query.

As in `cluster`, both sides take turns with a new query each, and a ratio is that of one turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.cluster import Turns, figures
from benchmarks.inputs import NARROW, write_source
from benchmarks.report_tables import ratio_of
from benchmarks.throughput import Variant
from benchmarks.workbench import Workbench

if TYPE_CHECKING:
    from benchmarks.scale import Scale

SIZES = (1_000, 5_000, 20_000, 50_000, 150_000)
WARM_BATCHES = 8
#: Turns before anything is measured: both sides must have been compiled before the first size is.
WARM_UP_TURNS = 3
PLACES = {"one process": False, "cluster": True}
VARIANT = Variant("sizes", NARROW, "id")


def measure(scale: Scale) -> dict[str, Any]:
    """Figures by place and number of rows."""
    return {place: _by_size(scale, place, cluster=cluster) for place, cluster in PLACES.items()}


def _by_size(scale: Scale, place: str, *, cluster: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with Workbench(cluster=cluster) as bench:
        for rows in SIZES:
            source = write_source(
                bench.spark, bench.directory / f"rows-{rows}", NARROW, rows=rows, batches=1 + WARM_BATCHES
            )
            turns = Turns(bench, source, VARIANT)
            turns.check()
            for _ in range(1 if found else WARM_UP_TURNS):
                turns.take()
            turns.forget()
            for _ in range(scale.pick(full=5, quick=3)):
                turns.take()
            found[str(rows)] = figures(turns.runs, turns.steps, rows)["warm"]
            print(_line(place, rows, found[str(rows)]), flush=True)
    return found


def _line(place: str, rows: int, found: dict[str, Any]) -> str:
    seconds = rows / found["ours_rows_per_s"]["median"]
    return f"{place}, {rows:,} rows: {ratio_of(found['ratio'])} the pair, {seconds:.2f} s"
