"""Two topics and two tables: one sink with one decision, compared with Spark's own sinks and with two sinks.

All write the same rows to both topics and to both tables, which is checked, and take turns. The pair keeps the batch
between its four writes (``persist``), as a careful user would. Neither the pair nor two sinks write all outputs of a
batch or none.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import writers
from benchmarks.checks import compare
from benchmarks.inputs import NARROW, write_source
from benchmarks.runs import RunFigures, cpu_per_million, ratio, run, throughput
from benchmarks.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.scale import Scale

ROWS = 1_000_000
OUTPUTS = 2
WAYS: dict[str, Callable[[Workbench, writers.Task], writers.Writer]] = {
    "ours": writers.ours,
    "two_sinks": writers.ours_each,
    "pair": partial(writers.pair, persist=True),
}


def measure(scale: Scale) -> dict[str, Any]:
    """Each way in its turn; ratios are of what one sink writes in a second."""
    rows = scale.batch_rows(ROWS)
    runs: dict[str, list[RunFigures]] = {way: [] for way in WAYS}
    with Workbench() as bench:
        batches = 1 + scale.pick(full=3, quick=1)
        source = write_source(bench.spark, bench.directory / "outputs", NARROW, rows=rows, batches=batches)
        once = partial(run, bench, key="id", outputs=OUTPUTS)
        first = {way: once(source.first(1), make_writer, look=True).contents for way, make_writer in WAYS.items()}
        for contents in first.values():
            compare(first["ours"], contents)
        for _ in range(scale.pick(full=2, quick=1)):
            for make_writer in WAYS.values():
                once(source, make_writer)
        for _ in range(scale.pick(full=5, quick=3)):
            for way, make_writer in WAYS.items():
                runs[way].append(once(source, make_writer))
    found = figures(runs, rows)
    print(
        f"{found['ratio']['median']:.2f} x the pair ({found['ratio']['low']:.2f} to {found['ratio']['high']:.2f}), "
        f"{found['ratio_to_two_sinks']['median']:.2f} x two sinks",
        flush=True,
    )
    return found


def figures(runs: Mapping[str, Sequence[RunFigures]], rows: int) -> dict[str, Any]:
    """What the runs of all ways say; those of one turn have the same index."""
    return {
        **{f"{way}_rows_per_s": throughput(those, rows).json() for way, those in runs.items()},
        **{f"{way}_cpu_s": cpu_per_million(those, rows) for way, those in runs.items()},
        "ratio": ratio(runs["ours"], runs["pair"], rows),
        "ratio_to_two_sinks": ratio(runs["ours"], runs["two_sinks"], rows),
        "rows": rows,
    }
