"""The cost of one more column in JSON that tasks build: each kind against the same rows without that column.

Two sinks write each batch, one of them without the column, and take turns in who is first. A ratio is of what both
write in a second, batch by batch: other work on the machine changes it less than each of them. A column has a price of
its own in the table and in the record, which the first two kinds show: Spark does nothing for their JSON.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from benchmarks import writers
from benchmarks.figures import Spread
from benchmarks.inputs import NARROW, Shape, write_source
from benchmarks.runs import BatchFigures, check_count, cpu_of_batches, new_tasks, timed
from benchmarks.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.scale import Scale

ROWS: Final = 500_000
#: Spark's share of a column falls until its virtual machine has compiled it: of a struct from 3.4 to 0.8 CPU seconds.
WARM_UP_BATCHES: Final = 6
_ZONE: Final = {"spark.sql.session.timeZone": "Europe/Berlin"}
_NESTED: Final = "struct(id % 7 AS line, concat('sku-', id % 1000) AS sku, CAST(id % 90 AS DOUBLE) / 8 AS weight)"


@dataclass(frozen=True)
class Column:
    """One kind of column.

    Attributes:
        sql: over ``id``, which makes it; '' for the column ``at`` of all rows.
        type: of the table's column.
        settings: of the session, for both sinks.
        only_with: of the session, for the sink that writes the column.
    """

    sql: str = ""
    type: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    only_with: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The column that one of the sinks leaves out; '' where both write the same."""
        return "more" if self.sql else "" if self.only_with else "at"

    @property
    def shape(self) -> Shape:
        """The rows with it."""
        if not self.sql:
            return NARROW
        return Shape("more", (*NARROW.select, f"{self.sql} AS more"), f"{NARROW.table}, more {self.type}")


COLUMNS: Final = {
    "bigint": Column("xxhash64(id)", "bigint"),
    "timestamp in UTC": Column(),
    "double of two places": Column("CAST(id % 1000000 AS DOUBLE) / 100", "double precision"),
    "double": Column("CAST(xxhash64(id) AS DOUBLE) / 9007199254740993", "double precision"),
    "float": Column("CAST(id % 1000000 / 7 AS FLOAT)", "real"),
    "decimal of 18 places": Column("CAST(xxhash64(id) AS DECIMAL(38, 18)) / 1000000000000", "numeric"),
    "16 bytes": Column("unhex(md5(CAST(id AS STRING)))", "bytea"),
    "timestamp in Europe/Berlin": Column(settings=_ZONE),
    "struct": Column(_NESTED, "jsonb"),
    "array of integers": Column("array(id % 5, id % 7, id % 9)", "bigint[]"),
    "array of structs": Column(f"array({_NESTED})", "jsonb"),
    "map": Column("map('colour', concat('c', id % 9), 'size', CAST(id % 40 AS STRING))", "jsonb"),
    "nulls are kept": Column(only_with={"spark.sql.jsonGenerator.ignoreNullFields": "false"}),
}


@dataclass(frozen=True)
class _Pair:
    """One batch, written twice."""

    having: BatchFigures
    lacking: BatchFigures

    @property
    def ratio(self) -> float:
        """What is left of the throughput."""
        return self.lacking.seconds / self.having.seconds

    @property
    def cpu_ratio(self) -> float:
        """How much more CPU time all processes take."""
        return sum(self.having.cpu_s.values()) / sum(self.lacking.cpu_s.values())


def measure(scale: Scale) -> dict[str, Any]:
    """Ratios by kind of column."""
    rows = scale.batch_rows(ROWS)
    with Workbench() as bench:
        kinds = {
            name: _figures(name, _pairs(bench, column, rows, turns=scale.pick(full=5, quick=3)), rows)
            for name, column in COLUMNS.items()
        }
    worst = min(kinds, key=lambda name: kinds[name]["ratio"]["median"])
    print(f"lowest: {worst}, {kinds[worst]['ratio']['median']:.2f}", flush=True)
    return {"kinds": kinds, "rows": rows}


def _pairs(bench: Workbench, column: Column, rows: int, *, turns: int) -> list[_Pair]:
    """Both sinks write each batch; the pairs that count."""
    shape, batches = column.shape, WARM_UP_BATCHES + turns
    tasks = new_tasks(bench, shape, 2)
    source = write_source(bench.spark, bench.directory / tasks[0].topic, shape, rows=rows, batches=batches)
    having, lacking = (writers.ours(bench, task) for task in tasks)
    pairs: list[_Pair] = []

    def with_it(batch: DataFrame, batch_id: int) -> None:
        with _settings(batch.sparkSession, {**column.settings, **column.only_with}):
            having(batch, batch_id)

    def without_it(batch: DataFrame, batch_id: int) -> None:
        with _settings(batch.sparkSession, column.settings):
            lacking(batch.drop(column.name), batch_id)

    sinks = {"having": with_it, "lacking": without_it}

    def write(batch: DataFrame, batch_id: int) -> None:
        order = sorted(sinks, reverse=batch_id % 2 == 0)
        pairs.append(_Pair(**{side: timed(bench, sinks[side], batch, batch_id) for side in order}))

    source.run(bench.spark, write, bench.directory / f"checkpoint-{tasks[0].topic}")
    for task in tasks:
        check_count(bench, task, source, len(pairs))
        bench.execute(f"DROP TABLE {task.table}")
    return pairs[WARM_UP_BATCHES:]


@contextmanager
def _settings(spark: SparkSession, changed: Mapping[str, str]) -> Iterator[None]:
    before = {name: str(spark.conf.get(name)) for name in changed}
    for name, value in changed.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def _figures(name: str, pairs: list[_Pair], rows: int) -> dict[str, Any]:
    sides = {"with": [pair.having for pair in pairs], "without": [pair.lacking for pair in pairs]}
    ratio, cpu = (Spread.of(values) for values in ([p.ratio for p in pairs], [p.cpu_ratio for p in pairs]))
    rates = {side: Spread.of([rows / batch.seconds for batch in batches]) for side, batches in sides.items()}
    load = os.getloadavg()[0]
    print(
        f"{name:28} {ratio} times the throughput, {cpu} times the CPU; {rates['with'].median / 1e3:.0f} against "
        f"{rates['without'].median / 1e3:.0f} thousand rows/s; load {load:.1f}",
        flush=True,
    )
    return {
        "ratio": ratio.json(),
        "cpu_ratio": cpu.json(),
        **{f"{side}_rows_per_s": rate.json() for side, rate in rates.items()},
        **{f"{side}_cpu_s": cpu_of_batches(batches, rows) for side, batches in sides.items()},
        "load": load,
    }
