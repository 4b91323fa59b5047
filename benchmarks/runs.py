"""Running a stream into a writer, and what each batch took."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.checks import Contents, contents
from benchmarks.figures import Spread
from benchmarks.processes import per_million, spent
from benchmarks.writers import Task, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from benchmarks.inputs import Shape, Source
    from benchmarks.workbench import Workbench

PARTITIONS = 8


@dataclass(frozen=True)
class BatchFigures:
    """One batch, from the end of the one before it to its own end: planning and Spark's logs are in it.

    Attributes:
        seconds: of the clock.
        cpu_s: CPU seconds by kind of process.
    """

    seconds: float
    cpu_s: dict[str, float]


@dataclass(frozen=True)
class RunFigures:
    """One query.

    Attributes:
        cold: the first batch, with the start of the query.
        warm: the others.
        contents: what lies in both sides at the end; None when nobody looked.
    """

    cold: BatchFigures
    warm: tuple[BatchFigures, ...]
    contents: Contents | None

    def rows_per_s(self, rows: int) -> list[float]:
        """Throughput of each warm batch."""
        return [rows / batch.seconds for batch in self.warm]


class _Observer:
    """Calls the writer, and notes when each batch ended and what was spent until then."""

    def __init__(self, bench: Workbench, writer: Writer) -> None:
        self._bench = bench
        self._writer = writer
        self.batches: list[BatchFigures] = []
        self._resume()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self._writer(batch, batch_id)
        seconds = time.perf_counter() - self._begun
        before = self._cpu_s
        self._resume()
        self.batches.append(BatchFigures(seconds, spent(before, self._cpu_s)))

    def _resume(self) -> None:
        # The look at all processes is not in any batch's time.
        self._cpu_s = self._bench.tree.cpu_s()
        self._begun = time.perf_counter()


def run(
    bench: Workbench,
    source: Source,
    make_writer: Callable[[Workbench, Task], Writer],
    *,
    key: str | None,
    upsert: bool = False,
    partitions: int = PARTITIONS,
    outputs: int = 1,
    look: bool = False,
) -> RunFigures:
    """Run a query over the whole source into new topics and new tables, and remove the tables.

    Args:
        bench: servers and session.
        source: the input.
        make_writer: makes the writer.
        key: of the records.
        upsert: the table has all rows of the first batch before, and each batch replaces them.
        partitions: of a topic.
        outputs: how many topics and how many tables, each of which gets all rows.
        look: read both sides at the end.

    Raises:
        SystemExit: a table has not all rows afterwards.
    """
    name = bench.new_name()
    names = [name, *(bench.new_name() for _ in range(outputs - 1))]
    for new in names:
        bench.new_topic(new, partitions=partitions)
        bench.execute(f"CREATE TABLE {new} ({source.shape.table}) {source.shape.storage}")
        if upsert:
            fill(bench, new, source)
    task, *more = (Task(topic=new, table=new, key=key, upsert=upsert) for new in names)
    task = replace(task, more=tuple(more))
    writer = make_writer(bench, task)
    bench.settle()
    observer = _Observer(bench, writer)
    source.run(bench.spark, observer, bench.directory / f"checkpoint-{name}")
    for each in task.all:
        check_count(bench, each, source, len(observer.batches))
    found = contents(bench, task) if look else None
    for each in task.all:
        bench.execute(f"DROP TABLE {each.table}", f"DROP TABLE IF EXISTS {each.table}_staging")
    batches = ", ".join(f"{batch.seconds:.2f}" for batch in observer.batches)
    print(f"    {type(writer).__name__}: batches of {source.rows} rows took {batches} s", flush=True)
    cold, *warm = observer.batches
    return RunFigures(cold, tuple(warm), found)


def new_tasks(bench: Workbench, shape: Shape, count: int) -> list[Task]:
    """So many tasks, each with a new topic and a new table of its own for the same rows.

    Args:
        bench: servers and session.
        shape: of the rows.
        count: how many.
    """
    tasks = []
    for name in (bench.new_name() for _ in range(count)):
        bench.new_topic(name, partitions=PARTITIONS)
        bench.execute(f"CREATE TABLE {name} ({shape.table})")
        tasks.append(Task(topic=name, table=name, key="id"))
    bench.settle()
    return tasks


def timed(bench: Workbench, writer: Writer, batch: DataFrame, batch_id: int) -> BatchFigures:
    """What one batch takes, where several writers write it."""
    before, begun_s = bench.tree.cpu_s(), time.perf_counter()
    writer(batch, batch_id)
    return BatchFigures(time.perf_counter() - begun_s, spent(before, bench.tree.cpu_s()))


def throughput(runs: Sequence[RunFigures], rows: int) -> Spread:
    """Rows each second over the warm batches of several runs."""
    return Spread.of([rate for found in runs for rate in found.rows_per_s(rows)])


def ratio(ours: Sequence[RunFigures], theirs: Sequence[RunFigures], rows: int) -> dict[str, float]:
    """Of the medians over all turns, with the lowest and the highest of one turn."""
    turns = [
        throughput([first], rows).median / throughput([second], rows).median
        for first, second in zip(ours, theirs, strict=True)
    ]
    median = throughput(ours, rows).median / throughput(theirs, rows).median
    return {**Spread.of(turns).json(), "median": median}


def cpu_per_million(runs: Sequence[RunFigures], rows: int) -> dict[str, float]:
    """CPU seconds for a million rows over the warm batches of several runs, by kind of process and for all."""
    return cpu_of_batches([batch for found in runs for batch in found.warm], rows)


def cpu_of_batches(batches: Sequence[BatchFigures], rows: int) -> dict[str, float]:
    """The same over batches, of so many rows each."""
    sums: dict[str, float] = {}
    for batch in batches:
        for kind, seconds in batch.cpu_s.items():
            sums[kind] = sums.get(kind, 0.0) + seconds
    return per_million(sums, rows * len(batches))


def fill(bench: Workbench, table: str, source: Source) -> None:
    """Give a table the rows that batches replace: their ids, and nothing that a batch would leave as it is."""
    bench.execute(
        f"INSERT INTO {table} SELECT id, 'c-' || mod(id, 50000), -1, id * 0.01, "
        f"to_timestamp(1600000000 + id / 1000.0), mod(id, 3) = 0 FROM generate_series(0, {source.rows - 1}) AS id",
        f"VACUUM ANALYZE {table}",
    )


def check_count(bench: Workbench, task: Task, source: Source, batches: int) -> None:
    """See that every row of every batch has arrived.

    Raises:
        SystemExit: not so.
    """
    check_rows(bench, task.table, source.rows * (1 if task.upsert else source.batches))
    if batches != source.batches:
        message = f"{batches} batches arrived, {source.batches} were sent"
        raise SystemExit(message)


def check_rows(bench: Workbench, table: str, rows: int) -> None:
    """See that a table has so many rows.

    Raises:
        SystemExit: it has not.
    """
    with bench.engine.connect() as connection:
        found = connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()
    if found != rows:
        message = f"{found} rows arrived in {table}, {rows} were to arrive"
        raise SystemExit(message)
