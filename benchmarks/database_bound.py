"""Batches bound by PostgreSQL: this sink compared with PostgreSQL's own statements for the same rows.

* ``append``: keyed rows into a table with four indexes, compared with a bare COPY … (FORMAT binary) of the same rows,
  in the order of their keys, by one client into an equal table, and COMMIT.
* ``upsert``: a batch that changes all rows of a table, compared with a bare INSERT … ON CONFLICT from a table that has
  the same rows already, in the order of their keys, and COMMIT.

The bare side reads no files, and makes and sends no records; what it is given is made before its time begins. Both
sides take turns, write as many batches one after the other into a new table, of which the first is left out, and end
with the same rows, which is checked. Spark runs two tasks at a time, and shares the cores with both servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks import writers
from benchmarks.checks import table_contents
from benchmarks.connections import connect
from benchmarks.figures import Spread
from benchmarks.inputs import NARROW, Source, write_source
from benchmarks.processes import spent
from benchmarks.runs import BatchFigures, RunFigures, cpu_per_million, fill, run
from benchmarks.workbench import Workbench

if TYPE_CHECKING:
    from psycopg2.extensions import cursor as Cursor

    from benchmarks.scale import Scale
    from spark_2pc_sink import BatchReport

ROWS: Final = 1_000_000
#: In a run, after the first.
WARM_BATCHES: Final = 3
WARM_UP_RUNS: Final = 2
#: For psycopg2, whose own 8 KB are a call of Python for each.
_COPY_BYTES: Final = 1 << 20
#: The rows of `NARROW`, by PostgreSQL.
_SELECT: Final = (
    "SELECT id, 'c-' || mod(id, 50000) AS customer, mod(id + {turn}, 1000)::integer AS quantity, "
    "(id * 0.01)::numeric(12, 2) AS amount, to_timestamp(1700000000) + id * interval '1 millisecond' AS at, "
    "mod(id, 3) = 0 AS express FROM generate_series({first}::bigint, {last}::bigint) AS id ORDER BY id"
)
_UPSERT: Final = (
    "INSERT INTO {table} SELECT * FROM {given} ON CONFLICT (id) DO UPDATE SET customer = EXCLUDED.customer, "
    "quantity = EXCLUDED.quantity, amount = EXCLUDED.amount, at = EXCLUDED.at, express = EXCLUDED.express"
)


@dataclass(frozen=True)
class Comparison:
    """What both sides do.

    Attributes:
        name: of it.
        indexes: columns of each, in addition to the primary key.
        give: makes what the bare side is given for a batch, of the SQL of its rows.
        write: writes it into a table, by the bare statement.
        upsert: into a table that has all rows.
    """

    name: str
    indexes: tuple[str, ...]
    give: Callable[[Workbench, str], Any]
    write: Callable[[Cursor, str, Any], None]
    upsert: bool = False

    def create_indexes(self, bench: Workbench, table: str) -> None:
        """Create them, in addition to the primary key's, before there are rows."""
        bench.execute(*(f"CREATE INDEX ON {table} ({columns})" for columns in self.indexes))


def measure(scale: Scale) -> dict[str, Any]:
    """Figures of both comparisons."""
    rows, turns = scale.batch_rows(ROWS), scale.pick(full=7, quick=5)
    found: dict[str, Any] = {"rows": rows}
    with Workbench() as bench:
        for comparison in COMPARISONS:
            found[comparison.name] = _compare(bench, comparison, rows, turns)
            print(_line(comparison.name, found[comparison.name]), flush=True)
    return found


def _compare(bench: Workbench, comparison: Comparison, rows: int, turns: int) -> dict[str, Any]:
    source = write_source(
        bench.spark,
        bench.directory / comparison.name,
        NARROW,
        rows=rows,
        batches=1 + WARM_BATCHES,
        same_ids=comparison.upsert,
    )
    given = [
        comparison.give(bench, _rows_sql(source, turn, same_ids=comparison.upsert)) for turn in range(source.batches)
    ]
    steps: list[Mapping[str, float]] = []
    ours_once = partial(_ours, bench, comparison, source, steps)
    bare_once = partial(_bare, bench, comparison, source, given)
    _check_same(ours_once(look=True), bare_once(look=True))
    for _ in range(WARM_UP_RUNS - 1):
        ours_once()
    steps.clear()
    ours: list[RunFigures] = []
    bare: list[RunFigures] = []
    for _ in range(turns):
        ours.append(ours_once()[0])
        bare.append(bare_once()[0])
    return _figures(ours, bare, steps, rows)


def _rows_sql(source: Source, turn: int, *, same_ids: bool) -> str:
    first = 0 if same_ids else turn * source.rows
    return _SELECT.format(turn=turn, first=first, last=first + source.rows - 1)


def _ours(
    bench: Workbench,
    comparison: Comparison,
    source: Source,
    steps: list[Mapping[str, float]],
    *,
    look: bool = False,
) -> tuple[RunFigures, tuple[int, str]]:
    """A query over all batches; with ``look`` also what lies in the table at its end."""

    def note(report: BatchReport) -> None:
        if report.batch_id:
            steps.append(report.step_seconds)

    def make(workbench: Workbench, task: writers.Task) -> writers.Writer:
        comparison.create_indexes(workbench, task.table)
        return writers.ours(workbench, task, on_batch=note)

    found = run(bench, source, make, key="id", upsert=comparison.upsert, look=look)
    contents = (0, "") if found.contents is None else (found.contents.rows, found.contents.row_digest)
    return found, contents


def _bare(
    bench: Workbench, comparison: Comparison, source: Source, given: Sequence[Any], *, look: bool = False
) -> tuple[RunFigures, tuple[int, str]]:
    """The same batches by the bare statement."""
    table = bench.new_name()
    bench.execute(f"CREATE TABLE {table} ({NARROW.table})")
    if comparison.upsert:
        fill(bench, table, source)
    comparison.create_indexes(bench, table)
    bench.settle()
    batches = []
    with closing(connect(bench.servers.url)) as connection:
        for each in given:
            before, begun_s = bench.tree.cpu_s(), time.perf_counter()
            with connection, connection.cursor() as cursor:
                comparison.write(cursor, table, each)
            batches.append(BatchFigures(time.perf_counter() - begun_s, spent(before, bench.tree.cpu_s())))
    print(f"    bare {comparison.name}: {', '.join(f'{batch.seconds:.2f}' for batch in batches)} s", flush=True)
    contents = table_contents(bench, table) if look else (0, "")
    bench.execute(f"DROP TABLE {table}")
    cold, *warm = batches
    return RunFigures(cold, tuple(warm), None), contents


def _check_same(ours: tuple[RunFigures, tuple[int, str]], bare: tuple[RunFigures, tuple[int, str]]) -> None:
    if ours[1] != bare[1]:
        message = f"the two sides did not end with the same rows: {ours[1]} and {bare[1]}"
        raise SystemExit(message)


def _give_file(bench: Workbench, rows_sql: str) -> Path:
    """The rows as COPY reads them, in a file of the client's."""
    file = bench.directory / f"{bench.new_name()}.copy"
    with closing(connect(bench.servers.url)) as connection, file.open("wb") as stream, connection.cursor() as cursor:
        cursor.copy_expert(f"COPY ({rows_sql}) TO STDOUT (FORMAT binary)", stream)
    return file


def _copy(cursor: Cursor, table: str, file: Path) -> None:
    with file.open("rb") as stream:
        cursor.copy_expert(f"COPY {table} FROM STDIN (FORMAT binary)", stream, size=_COPY_BYTES)


def _give_table(bench: Workbench, rows_sql: str) -> str:
    """The rows as they are staged: a table without indexes and without a log."""
    name = bench.new_name()
    bench.execute(f"CREATE UNLOGGED TABLE {name} AS {rows_sql}", f"VACUUM ANALYZE {name}")
    return name


def _upsert(cursor: Cursor, table: str, given: str) -> None:
    cursor.execute(_UPSERT.format(table=table, given=given))


COMPARISONS: Final = (
    Comparison("append", ("customer", "at", "quantity, customer"), _give_file, _copy),
    Comparison("upsert", (), _give_table, _upsert, upsert=True),
)


def _figures(
    ours: Sequence[RunFigures], bare: Sequence[RunFigures], steps: Sequence[Mapping[str, float]], rows: int
) -> dict[str, Any]:
    def seconds(runs: Sequence[RunFigures]) -> Spread:
        return Spread.of([batch.seconds for found in runs for batch in found.warm])

    turns = Spread.of(
        [seconds([first]).median / seconds([other]).median for first, other in zip(ours, bare, strict=True)]
    )
    ratio = seconds(ours).median / seconds(bare).median
    return {
        "ours_s": seconds(ours).json(),
        "bare_s": seconds(bare).json(),
        "times_bare": {**turns.json(), "median": ratio},
        "ours_cpu_s": cpu_per_million(ours, rows),
        "bare_cpu_s": cpu_per_million(bare, rows),
        "step_s": {name: median(each.get(name, 0.0) for each in steps) for name in steps[0]},
    }


def _line(name: str, found: Mapping[str, Any]) -> str:
    steps = ", ".join(f"{step} {seconds:.2f}" for step, seconds in found["step_s"].items())
    return (
        f"{name}: {found['times_bare']['median']:.2f} x the time of the bare statement "
        f"({found['times_bare']['low']:.2f} to {found['times_bare']['high']:.2f}), {found['ours_s']['median']:.2f} and "
        f"{found['bare_s']['median']:.2f} s; PostgreSQL's CPU {found['ours_cpu_s']['postgresql']:.2f} and "
        f"{found['bare_cpu_s']['postgresql']:.2f} s per million rows; steps: {steps}"
    )
