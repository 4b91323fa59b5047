"""Batches of 1, 100 and 1 000 rows: time inside foreachBatch beyond a Spark job of the same plan that only counts.

The counting job reads the same files in one task and hands its rows to this process by Arrow, as the sink's does with
so few, and counts them. It runs in every `COUNT_EVERY`-th batch, in turns before and after the sink; its median is
taken off each of the sink's times.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import writers
from benchmarks.figures import Spread, quantile
from benchmarks.inputs import NARROW, Source, date_file
from benchmarks.runs import PARTITIONS, check_rows
from benchmarks.workbench import Workbench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.scale import Scale
    from benchmarks.writers import Task, Writer

SIZES = (1, 100, 1_000)
WARM_UP_BATCHES = 40
FULL_BATCHES = 600
QUICK_BATCHES = 200
COUNT_EVERY = 4


def measure(scale: Scale) -> dict[str, Any]:
    """Figures by number of rows."""
    batches = WARM_UP_BATCHES + scale.pick(full=FULL_BATCHES, quick=QUICK_BATCHES)
    found: dict[str, Any] = {}
    with Workbench() as bench:
        # A new virtual machine compiles during the first thousand jobs: the first size would pay for it.
        _run(bench, write_source(bench, 10, batches), _Timer())
        for rows in SIZES:
            found[str(rows)] = measure_source(bench, write_source(bench, rows, batches))
            print(_line(rows, found[str(rows)]), flush=True)
    return found


def measure_source(bench: Workbench, source: Source, **options: Any) -> dict[str, Any]:
    """Figures of one query.

    Args:
        bench: servers and session.
        source: of `write_source`.
        **options: of the sink, changed from its defaults.
    """
    timer = _Timer()
    _run(bench, source, timer, **options)
    return timer.figures()


class _Timer:
    """Wraps a writer; notes its time, and of some batches that of the counting job."""

    def __init__(self) -> None:
        self._written_s: list[float] = []
        self._counted_s: list[float] = []

    def around(self, writer: Writer) -> Writer:
        def write(batch: DataFrame, batch_id: int) -> None:
            counting, first = batch_id % COUNT_EVERY == 0, batch_id % (2 * COUNT_EVERY) == 0
            if counting and first:
                self._note(self._counted_s, batch_id, lambda: count_rows(batch))
            self._note(self._written_s, batch_id, lambda: writer(batch, batch_id))
            if counting and not first:
                self._note(self._counted_s, batch_id, lambda: count_rows(batch))

        return write

    def figures(self) -> dict[str, Any]:
        """In ms."""
        base = Spread.of(self._counted_s).median
        beyond = [(seconds - base) * 1000 for seconds in self._written_s]
        return {
            "batches": len(beyond),
            "beyond_p50_ms": quantile(beyond, 0.5),
            "beyond_p99_ms": quantile(beyond, 0.99),
            "sink_p50_ms": quantile(self._written_s, 0.5) * 1000,
            "sink_p99_ms": quantile(self._written_s, 0.99) * 1000,
            "count_p50_ms": base * 1000,
            "count_p99_ms": quantile(self._counted_s, 0.99) * 1000,
        }

    @staticmethod
    def _note(times: list[float], batch_id: int, work: Any) -> None:
        begun = time.perf_counter()
        work()
        if batch_id >= WARM_UP_BATCHES:
            times.append(time.perf_counter() - begun)


def count_rows(batch: DataFrame) -> int:
    """What the counting job does."""
    rows: int = batch.coalesce(1).toArrow().num_rows
    return rows


def _run(bench: Workbench, source: Source, timer: _Timer, **options: Any) -> None:
    name = bench.new_name()
    bench.new_topic(name, partitions=PARTITIONS)
    bench.execute(f"CREATE TABLE {name} ({source.shape.table})")
    writer = writers.ours(bench, _task(name), **options)
    source.run(bench.spark, timer.around(writer), bench.directory / f"checkpoint-{name}")
    check_rows(bench, name, source.rows * source.batches)


def _task(name: str) -> Task:
    return writers.Task(topic=name, table=name, key="id")


def write_source(bench: Workbench, rows: int, batches: int) -> Source:
    """One file for each batch: cut from one file that Spark has written, so that the types are Spark's.

    Args:
        bench: the session and a folder.
        rows: in each batch.
        batches: how many, those of the warm-up among them.
    """
    path = bench.directory / f"small-{rows}"
    path.mkdir()
    whole = bench.directory / f"whole-{rows}"
    frame = bench.spark.range(0, rows * batches, 1, 1).selectExpr("id", "0 AS turn")
    frame.selectExpr(*NARROW.select).write.parquet(str(whole))
    table = _with_zones(pq.read_table(next(whole.glob("*.parquet"))))
    for turn in range(batches):
        file: Path = path / f"turn-{turn:04}.parquet"
        pq.write_table(table.slice(turn * rows, rows), file)
        date_file(file, turn)
    return Source(path, NARROW, rows, batches, files=1)


def _with_zones(table: pa.Table) -> pa.Table:
    """Spark's timestamps as instants in microseconds; as they come back from its files they lack the zone."""
    fields = [
        field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _line(rows: int, found: dict[str, Any]) -> str:
    return (
        f"{rows:6} rows: beyond counting p50 {found['beyond_p50_ms']:.0f} ms, p99 {found['beyond_p99_ms']:.0f} ms; "
        f"the sink p50 {found['sink_p50_ms']:.0f} ms, p99 {found['sink_p99_ms']:.0f} ms; counting p50 "
        f"{found['count_p50_ms']:.0f} ms, p99 {found['count_p99_ms']:.0f} ms; {found['batches']} batches"
    )
