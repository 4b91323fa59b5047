"""In a standalone cluster, compared with the pair and a bare COPY: the first batch of a query, and later ones.

A master and two workers of one core each; their executors are processes of their own, so that rows and records go the
ways of a cluster. All read the same parquet files and end with the same rows in a table with a primary key, and the
sink and the pair with the same records in a topic, which is checked. They take turns, with a new query in each turn
and another one first; a ratio is that of one turn, and of the turns the median counts. A first batch has the start of
its query: for the sink also its checks, its claim and its connections.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import writers
from benchmarks.bare_copy import copy_bytes, run_copy
from benchmarks.checks import compare, table_contents
from benchmarks.figures import Spread
from benchmarks.inputs import NARROW, NARROW_DOUBLE, WIDE
from benchmarks.runs import cpu_of_batches, run
from benchmarks.throughput import WARM_UP_RUNS, WIDE_SHARE, Variant
from benchmarks.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.inputs import Source
    from benchmarks.runs import BatchFigures, RunFigures
    from benchmarks.scale import Scale
    from benchmarks.writers import Task, Writer
    from spark_2pc_sink import BatchReport

ROWS = 1_000_000
QUICK_ROWS = 300_000
TURNS = 5
WARM_BATCHES = 2
#: Turns of each variant that do not count, after those of the first one: each variant has code of its own, which three
#: virtual machines compile on the cores that the tasks need. A job that runs for days is past that.
WARM_UP_TURNS = 2

VARIANTS = (
    Variant("keyed", NARROW, "id"),
    Variant("keyed with a double", NARROW_DOUBLE, "id"),
    Variant("unkeyed", NARROW, None),
    Variant("wide", WIDE, "id", share=WIDE_SHARE),
    Variant("upsert", NARROW, "id", upsert=True),
)
#: Which of them is compared with a bare COPY.
COPIED = "keyed"
OURS, COPY = "ours", "copy"
#: The pair reads its batch twice, or keeps it between its writes: whichever is faster counts, of each batch by itself.
PAIRS = {"pair": False, "pair_persisted": True}


def measure(scale: Scale) -> dict[str, Any]:
    """Run everything; figures by variant."""
    rows = scale.batch_rows(scale.pick(full=ROWS, quick=QUICK_ROWS))
    found: dict[str, Any] = {}
    with Workbench(cluster=True) as bench:
        for variant in VARIANTS:
            source = variant.source(bench, rows=rows, batches=1 + WARM_BATCHES)
            turns = Turns(bench, source, variant)
            turns.check()
            for _ in range(WARM_UP_TURNS if found else WARM_UP_RUNS):
                turns.take()
            turns.forget()
            for _ in range(TURNS):
                turns.take()
            found[variant.name] = figures(turns.runs, turns.steps, source.rows)
            print(_line(variant.name, found[variant.name]), flush=True)
    return found


class Turns:
    """The runs of a variant, all sides in turns.

    Args:
        bench: with a cluster.
        source: the input.
        variant: what is written.

    Attributes:
        runs: of each side; those of one turn have the same index.
        steps: of the sink, seconds by step, for the first batch and for the others.
    """

    def __init__(self, bench: Workbench, source: Source, variant: Variant) -> None:
        self._bench = bench
        self._source = source
        self._variant = variant
        self._reports: list[BatchReport] = []
        self._files: list[Path] = copy_bytes(bench, source) if variant.name == COPIED else []
        self._taken = 0
        self.forget()

    def forget(self) -> None:
        """What was measured so far does not count."""
        self.runs: dict[str, list[RunFigures]] = defaultdict(list)
        self.steps: dict[str, list[dict[str, float]]] = {"first": [], "warm": []}

    def check(self) -> None:
        """See that all sides end with the same.

        Raises:
            SystemExit: they do not.
        """
        source = self._source.first(1)
        contents = self._run(source, self._ours, look=True).contents
        for persist in PAIRS.values():
            contents = compare(contents, self._run(source, partial(writers.pair, persist=persist), look=True).contents)
        if self._files:
            _, table = run_copy(self._bench, source, self._files[:1])
            copied = table_contents(self._bench, table)
            self._bench.execute(f"DROP TABLE {table}")
            if contents is None or copied != (contents.rows, contents.row_digest):
                message = f"COPY did not end with the same: {copied} and {contents}"
                raise SystemExit(message)

    def take(self) -> None:
        """Run each side once, beginning with another one than the last time."""
        sides: list[tuple[str, Callable[[], RunFigures]]] = [(OURS, self._run_ours)]
        for name, persist in PAIRS.items():
            sides.append((name, partial(self._run, self._source, partial(writers.pair, persist=persist))))
        if self._files:
            sides.append((COPY, self._copy))
        begin = self._taken % len(sides)
        self._taken += 1
        for name, once in sides[begin:] + sides[:begin]:
            self.runs[name].append(once())

    def _run_ours(self) -> RunFigures:
        self._reports.clear()
        found = self._run(self._source, self._ours)
        first, *warm = (dict(report.step_seconds) for report in self._reports)
        self.steps["first"].append({"outside": found.cold.seconds - sum(first.values()), **first})
        between = [batch.seconds - sum(each.values()) for batch, each in zip(found.warm, warm, strict=True)]
        self.steps["warm"] += [{"outside": other, **each} for other, each in zip(between, warm, strict=True)]
        return found

    def _copy(self) -> RunFigures:
        found, table = run_copy(self._bench, self._source, self._files)
        self._bench.execute(f"DROP TABLE {table}")
        return found

    def _ours(self, bench: Workbench, task: Task) -> Writer:
        return writers.ours(bench, task, on_batch=self._reports.append)

    def _run(
        self, source: Source, make_writer: Callable[[Workbench, Task], Writer], *, look: bool = False
    ) -> RunFigures:
        variant = self._variant
        return run(self._bench, source, make_writer, key=variant.key, upsert=variant.upsert, look=look)


def figures(runs: dict[str, list[RunFigures]], steps: dict[str, list[dict[str, float]]], rows: int) -> dict[str, Any]:
    """What the runs of all sides say, of first batches and of warm ones."""
    found: dict[str, Any] = {"rows": rows}
    for part in ("first", "warm"):
        batches = {name: [_batches(each, part) for each in those] for name, those in runs.items()}
        rates = {name: [[rows / each.seconds for each in turn] for turn in those] for name, those in batches.items()}
        pair = max(PAIRS, key=lambda name: _spread(rates[name]).median)
        found[part] = {
            "ours_rows_per_s": _spread(rates[OURS]).json(),
            "pair_rows_per_s": _spread(rates[pair]).json(),
            "pair_persists": PAIRS[pair],
            "ratio": ratio_of_turns(rates[OURS], rates[pair]),
            "ours_cpu_s": cpu_of_batches(_flat(batches[OURS]), rows),
            "pair_cpu_s": cpu_of_batches(_flat(batches[pair]), rows),
            "steps_s": _medians(steps[part]),
        }
        if COPY in rates:
            found[part]["copy_rows_per_s"] = _spread(rates[COPY]).json()
            found[part]["copy_ratio"] = ratio_of_turns(rates[OURS], rates[COPY])
            found[part]["copy_cpu_s"] = cpu_of_batches(_flat(batches[COPY]), rows)
    return found


def ratio_of_turns(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> dict[str, float]:
    """The spread of the ratios of the turns; each is that of the medians of one turn."""
    ratios = [statistics.median(first) / statistics.median(second) for first, second in zip(ours, theirs, strict=True)]
    return Spread.of(ratios).json()


def _batches(found: RunFigures, part: str) -> list[BatchFigures]:
    return [found.cold] if part == "first" else list(found.warm)


def _flat(turns: Sequence[Sequence[BatchFigures]]) -> list[BatchFigures]:
    return [batch for turn in turns for batch in turn]


def _spread(turns: Sequence[Sequence[float]]) -> Spread:
    return Spread.of([rate for turn in turns for rate in turn])


def _medians(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each step; not every batch needs to have all."""
    names = list(dict.fromkeys(name for each in steps for name in each))
    return {name: statistics.median(each.get(name, 0.0) for each in steps) for name in names}


def _line(name: str, found: dict[str, Any]) -> str:
    parts = []
    for part in ("first", "warm"):
        one = found[part]
        text = (
            f"{part} {one['ratio']['median']:.2f} x the pair ({one['ratio']['low']:.2f} to {one['ratio']['high']:.2f})"
        )
        if "copy_ratio" in one:
            text += f", {one['copy_ratio']['median']:.2f} x COPY"
        cpu = f"CPU {one['ours_cpu_s']['all']:.1f} against {one['pair_cpu_s']['all']:.1f} s per million rows"
        parts.append(f"{text}, {cpu}")
    return f"{name:20}{'; '.join(parts)}"
