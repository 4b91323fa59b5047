"""Curves: throughput by number of tasks, and by number of Kafka partitions. Neither may have a cliff."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import fresh, writers
from benchmarks.figures import falls
from benchmarks.inputs import NARROW, write_source
from benchmarks.runs import PARTITIONS, RunFigures, run, throughput
from benchmarks.workbench import Servers, Workbench

if TYPE_CHECKING:
    from benchmarks.scale import Scale

ROWS = 1_000_000
QUICK_ROWS = 300_000
BATCHES = 3
TASKS = (1, 2, 4, 8)
KAFKA_PARTITIONS = (1, 4, 16, 64, 128, 256, 512, 1_000)


def measure(scale: Scale) -> dict[str, Any]:
    """Two curves; tasks are measured in sessions of their own, since Spark fixes their number at its start."""
    size = {"rows": scale.batch_rows(scale.pick(full=ROWS, quick=QUICK_ROWS)), "rounds": scale.pick(full=3, quick=2)}
    tasks: dict[str, Any] = {}
    with Workbench() as bench:
        partitions = _curve(bench, list(KAFKA_PARTITIONS), **size)
        servers = bench.servers.json()
        for cores in TASKS:
            arguments = {"servers": servers, "cores": cores, **size}
            tasks |= fresh.call("benchmarks.curves", "with_tasks", arguments)
            print(f"{cores:3} tasks: {tasks[str(cores)]['median'] / 1e3:6.0f} thousand rows/s", flush=True)
    return {
        "tasks": tasks,
        "partitions": partitions,
        "tasks_steepest_fall": min(falls([point["median"] for point in tasks.values()])),
        "partitions_steepest_fall": min(falls([point["median"] for point in partitions.values()])),
        **size,
    }


def with_tasks(servers: dict[str, Any], cores: int, rows: int, rounds: int) -> dict[str, Any]:
    """Called in a process of its own: throughput with that many tasks at a time."""
    with Workbench(cores=cores, servers=Servers(**servers)) as bench:
        found = _curve(bench, [PARTITIONS], rows=rows, rounds=rounds)
    return {str(cores): found[str(PARTITIONS)]}


def _curve(bench: Workbench, counts: list[int], *, rows: int, rounds: int) -> dict[str, Any]:
    """Throughput by number of Kafka partitions, after one query to warm up.

    All counts take turns: were one measured behind the other, a slow minute of the machine would pass for a cliff.
    """
    source = write_source(bench.spark, bench.directory / "curve", NARROW, rows=rows, batches=BATCHES)
    run(bench, source, writers.ours, key="id")
    runs: dict[int, list[RunFigures]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count in counts:
            runs[count].append(run(bench, source, writers.ours, key="id", partitions=count))
    found = {str(count): throughput(figures, rows).json() for count, figures in runs.items()}
    for number, spread in found.items():
        print(f"{number:>4} partitions: {spread['median'] / 1e3:6.0f} thousand rows/s", flush=True)
    return found
