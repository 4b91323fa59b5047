"""Throughput and CPU time compared with the pair that jobs use today: Spark's Kafka sink, then Spark's JDBC sink.

Both sides read the same parquet files as a stream, in batches of a million rows, and end with the same rows in a table
with a primary key and the same records in a topic, which is checked. Queries of both sides take turns. Warm figures
leave the first batch of each query out; cold ones are the first batch of a session that has run nothing before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import fresh, writers
from benchmarks.checks import Contents, compare
from benchmarks.figures import Spread
from benchmarks.inputs import NARROW, NARROW_WITH_ROOM, WIDE, Shape, Source, write_source
from benchmarks.runs import RunFigures, cpu_per_million, ratio, run, throughput
from benchmarks.workbench import Servers, Workbench

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.scale import Scale
    from benchmarks.writers import Task, Writer

ROWS = 1_000_000
#: Runs of each side before anything is measured. The virtual machine compiles for the first minutes, on the cores that
#: the tasks need: after two batches of each it still took more time for that than for the tasks.
WARM_UP_RUNS = 3
#: A batch of wide rows, which are about twenty times as large, has a tenth as many.
WIDE_SHARE = 10


@dataclass(frozen=True)
class Variant:
    """One row of the table.

    Attributes:
        name: of it.
        shape: of the rows.
        key: of the records.
        upsert: into a table that has all rows already.
        share: a batch has this part of the rows.
        order_by: of this sink, which of two rows with one key wins; no two have one.
    """

    name: str
    shape: Shape
    key: str | None
    upsert: bool = False
    share: int = 1
    order_by: str | None = None

    def source(self, bench: Workbench, *, rows: int, batches: int) -> Source:
        """Write its input.

        Args:
            bench: has the session and the folder.
            rows: in a batch of a variant that has all of them.
            batches: how many.
        """
        rows = max(1, rows // self.share)
        folder = bench.directory / self.name
        return write_source(bench.spark, folder, self.shape, rows=rows, batches=batches, same_ids=self.upsert)


VARIANTS = (
    Variant("keyed", NARROW, "id"),
    Variant("unkeyed", NARROW, None),
    Variant("upsert", NARROW, "id", upsert=True),
    Variant("upsert with room", NARROW_WITH_ROOM, "id", upsert=True),
    Variant("upsert by order", NARROW_WITH_ROOM, "id", upsert=True, order_by="at"),
    Variant("wide", WIDE, "id", share=WIDE_SHARE),
)


def measure(scale: Scale) -> dict[str, Any]:
    """Run everything; figures by variant."""
    rows = scale.batch_rows(ROWS)
    found: dict[str, Any] = {}
    with Workbench() as bench:
        for variant in VARIANTS:
            source = variant.source(bench, rows=rows, batches=1 + scale.pick(full=3, quick=2))
            if not found:
                _warm_up(bench, source)
            found[variant.name] = _compare(bench, source, variant, runs=scale.pick(full=5, quick=2))
            print(_line(variant.name, found[variant.name]), flush=True)
        found["cold"] = _cold(bench, rows, persist=found["keyed"]["pair_persists"], runs=scale.pick(full=5, quick=2))
        print(f"{'cold, keyed':14}{found['cold']['ratio']['median']:6.2f} x the pair", flush=True)
    return found


def _warm_up(bench: Workbench, source: Source) -> None:
    """Run both: who is measured first must not pay for loading and compiling."""
    for make_writer in (writers.ours, partial(writers.pair, persist=True)):
        for _ in range(WARM_UP_RUNS):
            run(bench, source, make_writer, key="id")


def _compare(bench: Workbench, source: Source, variant: Variant, *, runs: int) -> dict[str, Any]:
    def once(make_writer: Callable[[Workbench, Task], Writer], *, look: bool = False) -> RunFigures:
        taken = source.first(1) if look else source
        return run(bench, taken, make_writer, key=variant.key, upsert=variant.upsert, look=look)

    ways = {persist: partial(writers.pair, persist=persist) for persist in (True, False)}
    order: dict[str, Any] = {} if variant.order_by is None else {"upsert_order_by": variant.order_by}
    ours_way = partial(writers.ours, **order)
    contents = once(ours_way, look=True).contents
    for way in ways.values():
        contents = compare(contents, once(way, look=True).contents)
    ours: list[RunFigures] = []
    pairs: dict[bool, list[RunFigures]] = {persist: [] for persist in ways}
    for _ in range(runs):
        ours.append(once(ours_way))
        for persist, way in ways.items():
            pairs[persist].append(once(way))
    rates = {persist: throughput(figures, source.rows).median for persist, figures in pairs.items()}
    # The pair's best: whether to persist is judged by everything that was measured, not by a look before.
    persist = rates[True] >= rates[False]
    theirs = pairs[persist]
    return {
        **_figures(ours, theirs, source.rows),
        "rows": source.rows,
        "pair_persists": persist,
        "pair_rows_per_s_persisted": rates[True],
        "pair_rows_per_s_not_persisted": rates[False],
        "same": vars(contents),
    }


def _figures(ours: list[RunFigures], theirs: list[RunFigures], rows: int) -> dict[str, Any]:
    our_rate, their_rate = throughput(ours, rows), throughput(theirs, rows)
    our_cpu, their_cpu = cpu_per_million(ours, rows), cpu_per_million(theirs, rows)
    return {
        "ours_rows_per_s": our_rate.json(),
        "pair_rows_per_s": their_rate.json(),
        "ratio": ratio(ours, theirs, rows),
        "ours_cpu_s": our_cpu,
        "pair_cpu_s": their_cpu,
        "cpu_ratio": our_cpu["all"] / their_cpu["all"],
    }


def _cold(bench: Workbench, rows: int, *, persist: bool, runs: int) -> dict[str, Any]:
    """The first batch of sessions of their own, in turns, on servers that are warm."""
    source = write_source(bench.spark, bench.directory / "cold", NARROW, rows=rows, batches=1)
    arguments = {"servers": bench.servers.json(), "path": str(source.path), "rows": rows, "persist": persist}
    seconds: dict[str, list[float]] = {"ours": [], "pair": []}
    contents: dict[str, Contents] = {}
    for _ in range(runs):
        for side, times in seconds.items():
            found = fresh.call("benchmarks.throughput", "first_batch", {**arguments, "side": side})
            times.append(found["seconds"])
            contents[side] = Contents(**found["contents"])
            compare(contents["ours"], contents[side])
    ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["pair"], strict=True)]
    return {
        "ours_s": Spread.of(seconds["ours"]).json(),
        "pair_s": Spread.of(seconds["pair"]).json(),
        "ratio": {
            **Spread.of(ratios).json(),
            "median": Spread.of(seconds["pair"]).median / Spread.of(seconds["ours"]).median,
        },
    }


def first_batch(*, servers: dict[str, Any], path: str, rows: int, persist: bool, side: str) -> dict[str, Any]:
    """Called in a process of its own: the time of its first batch."""
    make_writer = writers.ours if side == "ours" else partial(writers.pair, persist=persist)
    with Workbench(servers=Servers(**servers)) as bench:
        found = run(bench, Source(Path(path), NARROW, rows, batches=1), make_writer, key="id", look=True)
    return {"seconds": found.cold.seconds, "contents": vars(found.contents)}


def _line(name: str, found: dict[str, Any]) -> str:
    ratio = found["ratio"]
    return (
        f"{name:14}{ratio['median']:6.2f} x the pair ({ratio['low']:.2f} to {ratio['high']:.2f}), "
        f"{found['ours_rows_per_s']['median'] / 1e3:.0f} against {found['pair_rows_per_s']['median'] / 1e3:.0f} "
        f"thousand rows/s; CPU {found['ours_cpu_s']['all']:.1f} against {found['pair_cpu_s']['all']:.1f} s per million "
        f"rows ({found['cpu_ratio']:.2f} x); the pair {'persists' if found['pair_persists'] else 'does not persist'}"
    )
