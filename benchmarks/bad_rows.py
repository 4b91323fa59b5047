"""Bad rows: a batch with one bad row compared with batches without, and the cost of the option if no row is bad.

One sink writes batches of three kinds in turns: without a bad row, with one that tasks refuse (a NUL), and with one
that PostgreSQL refuses (a CHECK). The bad row is the last of its file, so that most of the batch is written before it
is met. Each bad batch is compared with the mean of the good ones before and after it: in seconds, and in CPU seconds
of all processes, which other work on the machine changes less.

Then two sinks, one with ``bad_rows="dead_letter"`` and one with ``"fail"``, write the same batches without bad rows.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks import writers
from benchmarks.figures import Spread, quantile
from benchmarks.inputs import NARROW, write_source
from benchmarks.runs import BatchFigures, check_rows, new_tasks, timed
from benchmarks.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame

    from benchmarks.scale import Scale

ROWS: Final = 1_000_000
SMALL_SHARE: Final = 5
#: Batches before the ones that count: the first of each kind compiles code.
WARM_UP_TURNS: Final = 1
#: A turn is a good batch and one of each of these, with good ones between; the last good one begins the next turn.
KINDS: Final = ("tasks", "postgresql")
_TURN: Final = ("good", "tasks", "good", "postgresql")
#: The last row of the first of the four files of a batch.
_BAD: Final = "turn % 4 = {turn} AND id % {rows} = {last}"


def measure(scale: Scale) -> dict[str, Any]:
    """Ratios for two sizes, and the price of the option."""
    rows = scale.batch_rows(ROWS)
    turns = scale.pick(full=7, quick=3)
    found: dict[str, Any] = {"sizes": {}}
    with Workbench() as bench:
        for size in (rows // SMALL_SHARE, rows):
            found["sizes"][str(size)] = _bad_batches(bench, size, turns)
        found["price"] = _price(bench, rows, batches=1 + scale.pick(full=10, quick=6))
    return found


def _bad_batches(bench: Workbench, rows: int, turns: int) -> dict[str, Any]:
    """Seconds of each kind of batch, and their ratio to good ones."""
    batches = (WARM_UP_TURNS + turns) * len(_TURN) + 1
    nul, negative = (_BAD.format(turn=_TURN.index(kind), rows=rows, last=rows // 4 - 1) for kind in KINDS)
    select = [
        column.replace("concat('c-', id % 50000)", f"concat('c-', id % 50000, if({nul}, chr(0), ''))").replace(
            "CAST((id + turn) % 1000 AS INT)", f"CAST(if({negative}, -1, (id + turn) % 1000) AS INT)"
        )
        for column in NARROW.select
    ]
    table = NARROW.table.replace("quantity integer", "quantity integer CHECK (quantity >= 0)")
    shape = replace(NARROW, select=tuple(select), table=table)
    source = write_source(bench.spark, bench.directory / f"bad-{rows}", shape, rows=rows, batches=batches)
    [task] = new_tasks(bench, source.shape, 1)
    taken: list[BatchFigures] = []
    writer = writers.ours(bench, task, bad_rows="dead_letter")

    def write(batch: DataFrame, batch_id: int) -> None:
        taken.append(timed(bench, writer, batch, batch_id))

    source.run(bench.spark, write, bench.directory / f"checkpoint-{task.topic}")
    check_rows(bench, task.table, rows * batches - len(KINDS) * batches // len(_TURN))
    bench.execute(f"DROP TABLE {task.table}")
    counted = range(WARM_UP_TURNS * len(_TURN), batches)
    figures: dict[str, Any] = {
        "good_s": Spread.of([taken[batch].seconds for batch in counted if batch % 2 == 0]).json(),
        "load": os.getloadavg()[0],
    }
    for kind in KINDS:
        found = [batch for batch in counted if batch % len(_TURN) == _TURN.index(kind)]
        figures[kind] = {
            "seconds": Spread.of([taken[batch].seconds for batch in found]).json(),
            "ratio": _ratio([figure.seconds for figure in taken], found).json(),
            "cpu_ratio": _ratio([sum(figure.cpu_s.values()) for figure in taken], found).json(),
            "first_s": taken[_TURN.index(kind)].seconds,
        }
        print(_line(rows, kind, figures), flush=True)
    return figures


def _ratio(values: Sequence[float], bad: Iterable[int]) -> Spread:
    """Ratios of some batches to their neighbours."""
    return Spread.of([values[batch] / statistics.mean((values[batch - 1], values[batch + 1])) for batch in bad])


def _line(rows: int, kind: str, figures: dict[str, Any]) -> str:
    found = figures[kind]
    return (
        f"{rows:9} rows, one refused by {kind}: {Spread(**found['ratio'])} times as long, "
        f"{Spread(**found['cpu_ratio'])} times the CPU; {found['seconds']['median']:.2f} s against "
        f"{figures['good_s']['median']:.2f} s, the first of its session {found['first_s']:.2f} s; load "
        f"{figures['load']:.1f}"
    )


def _price(bench: Workbench, rows: int, *, batches: int) -> dict[str, Any]:
    """Both sinks write each batch, and take turns in who is first; the first batch warms up."""
    source = write_source(bench.spark, bench.directory / "price", NARROW, rows=rows, batches=batches)
    tasks = new_tasks(bench, source.shape, 2)
    choices = ("dead_letter", "fail")
    sinks = {choice: writers.ours(bench, task, bad_rows=choice) for choice, task in zip(choices, tasks, strict=True)}
    pairs: list[dict[str, BatchFigures]] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        turns = choices if batch_id % 2 else choices[::-1]
        pairs.append({choice: timed(bench, sinks[choice], batch, batch_id) for choice in turns})

    bench.settle()
    source.run(bench.spark, write, bench.directory / f"checkpoint-{tasks[0].topic}")
    for task in tasks:
        check_rows(bench, task.table, rows * batches)
        bench.execute(f"DROP TABLE {task.table}")
    more = [pair["dead_letter"].seconds / pair["fail"].seconds - 1 for pair in pairs[1:]]
    cpu_s = {choice: [sum(pair[choice].cpu_s.values()) for pair in pairs[1:]] for choice in choices}
    price = Spread(statistics.median(more), quantile(more, 0.25), quantile(more, 0.75), len(more))
    cpu = sum(cpu_s["dead_letter"]) / sum(cpu_s["fail"]) - 1
    load = os.getloadavg()[0]
    print(
        f"without bad rows, dead_letter takes {price.median * 100:+.1f} % more time than fail (middle half of "
        f"{price.count} batches of {rows} rows {price.low * 100:+.1f} to {price.high * 100:+.1f} %) and "
        f"{cpu * 100:+.1f} % more CPU; load {load:.1f}",
        flush=True,
    )
    return {"more": price.json(), "more_cpu": cpu, "rows": rows, "load": load}
