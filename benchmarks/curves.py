"""Curves: throughput by number of tasks, and by number of Kafka partitions. Neither may have a cliff.

The partitions are compared with a bare producer: librdkafka in one process writes the same records in transactions,
without Spark and PostgreSQL. Where it gets slower too, the broker or this machine is the cause.

A new topic has a price of its own, which is apart: the broker makes its logs, and the first entries of their indexes
touch pages of files that nobody has touched. A query's first two batches meet all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import bare_producer, fresh, writers
from benchmarks.figures import Spread, falls
from benchmarks.inputs import NARROW, write_source
from benchmarks.runs import PARTITIONS, BatchFigures, cpu_of_batches, run
from benchmarks.workbench import Servers, Workbench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.scale import Scale

ROWS = 1_000_000
QUICK_ROWS = 300_000
#: The first two of each query are those of a new topic.
NEW_BATCHES = 2
BATCHES = 5
TASKS = (1, 2, 4, 8)
KAFKA_PARTITIONS = (1, 4, 16, 64, 128, 256, 512, 1_000)


def measure(scale: Scale) -> dict[str, Any]:
    """Two curves; tasks are measured in sessions of their own, since Spark fixes their number at its start."""
    size = {"rows": scale.batch_rows(scale.pick(full=ROWS, quick=QUICK_ROWS)), "rounds": scale.pick(full=3, quick=2)}
    tasks: dict[str, Any] = {}
    with Workbench() as bench:
        curve = _curve(bench, list(KAFKA_PARTITIONS), bare=True, **size)
        servers = bench.servers.json()
        for cores in TASKS:
            arguments = {"servers": servers, "cores": cores, **size}
            tasks |= fresh.call("benchmarks.curves", "with_tasks", arguments)
            print(f"{cores:3} tasks: {tasks[str(cores)]['median'] / 1e3:6.0f} thousand rows/s", flush=True)
    return {
        "tasks": tasks,
        "partitions": curve.rates,
        "partitions_cpu_s": curve.cpu_s,
        "partitions_new_topic_s": curve.new_topic_s,
        "bare_producer": curve.bare.rates,
        "bare_producer_cpu_s": curve.bare.cpu_s,
        "bare_producer_new_topic_s": curve.bare.new_topic_s,
        "tasks_steepest_fall": min(falls([point["median"] for point in tasks.values()])),
        "partitions_steepest_fall": min(falls([point["median"] for point in curve.rates.values()])),
        "bare_producer_steepest_fall": min(falls([point["median"] for point in curve.bare.rates.values()])),
        **size,
    }


def with_tasks(servers: dict[str, Any], cores: int, rows: int, rounds: int) -> dict[str, Any]:
    """Called in a process of its own: throughput with that many tasks at a time."""
    with Workbench(cores=cores, servers=Servers(**servers)) as bench:
        found = _curve(bench, [PARTITIONS], rows=rows, rounds=rounds)
    return {str(cores): found.rates[str(PARTITIONS)]}


class _Curve:
    """Batches by number of partitions."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._batches: dict[int, list[BatchFigures]] = {}
        self._new: dict[int, list[float]] = {}

    def add(self, count: int, batches: Sequence[BatchFigures]) -> None:
        """Those of one query, or the transactions of one producer, into a new topic."""
        self._new.setdefault(count, []).append(sum(batch.seconds for batch in batches[:NEW_BATCHES]))
        self._batches.setdefault(count, []).extend(batches[NEW_BATCHES:])

    @property
    def rates(self) -> dict[str, Any]:
        """Rows per second, after the first batches."""
        return {
            str(count): Spread.of([self._rows / batch.seconds for batch in batches]).json()
            for count, batches in self._batches.items()
        }

    @property
    def cpu_s(self) -> dict[str, Any]:
        """CPU seconds of the same batches for a million rows, by kind of process."""
        return {str(count): cpu_of_batches(batches, self._rows) for count, batches in self._batches.items()}

    @property
    def new_topic_s(self) -> dict[str, Any]:
        """Seconds of the first batches together."""
        return {str(count): Spread.of(seconds).json() for count, seconds in self._new.items()}


class _Curves(_Curve):
    """This sink's, and a bare producer's."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.bare = _Curve(rows)


def _curve(bench: Workbench, counts: list[int], *, rows: int, rounds: int, bare: bool = False) -> _Curves:
    """Both curves, after one query to warm up.

    All counts take turns: measured one after the other, a slow minute of the machine would look like a cliff.
    """
    source = write_source(bench.spark, bench.directory / "curve", NARROW, rows=rows, batches=BATCHES)
    records = bare_producer.records_of(bench, source) if bare else None
    run(bench, source, writers.ours, key="id")
    curves = _Curves(rows)
    for _ in range(rounds):
        for count in counts:
            found = run(bench, source, writers.ours, key="id", partitions=count)
            curves.add(count, (found.cold, *found.warm))
            if records is not None:
                curves.bare.add(count, bare_producer.transactions(bench, records, partitions=count, number=BATCHES))
    for side, curve in {"ours": curves, "bare producer": curves.bare}.items():
        for number, spread in curve.rates.items():
            first = curve.new_topic_s[number]["median"]
            print(f"{number:>4} partitions, {side}: {spread['median'] / 1e3:6.0f} thousand rows/s, ", end="")
            print(
                f"CPU s per million {curve.cpu_s[number]}, {first:.1f} s for the first {NEW_BATCHES} batches",
                flush=True,
            )
    return curves
