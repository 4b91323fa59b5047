"""Beside Apache Flink: its Kafka sink and its JDBC XA sink, exactly once each, on the same servers.

Flink has one process, as many tasks at a time as Spark, and a heap of the same size. Its sinks have the settings of the
pair. A job writes as many rows as a batch of this sink has. Flink makes these rows itself, by the formula that made the
files of this sink; it reads no file, which is less work. A job ends when both sides have committed its last row. One
more job writes as many rows as all warm jobs together, as a stream that runs all day. Checkpoints commit, so several
intervals are tried, and the best one counts.

This sink is measured before Flink and after it, never at the same time. What both have written is compared.

Each of Flink's sinks is exactly once by itself. Nothing decides for both: a failure between their commits leaves one
side ahead until the job is restarted.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import fresh, latency, writers
from benchmarks.checks import compare, contents
from benchmarks.figures import Spread
from benchmarks.flink_process import FlinkProcess, compile_jobs, find_flink, flink_versions
from benchmarks.inputs import NARROW, Source, write_source
from benchmarks.processes import ProcessTree, spent
from benchmarks.runs import BatchFigures, check_rows, cpu_of_batches, cpu_per_million, new_tasks, run
from benchmarks.workbench import Servers, Workbench, start_servers

if TYPE_CHECKING:
    from benchmarks.scale import Scale
    from benchmarks.writers import Task

ROWS: Final = 1_000_000
FULL_WARM, QUICK_WARM = 5, 2
INTERVALS_MS: Final = (1_000, 10_000)
LATENCY_INTERVALS_MS: Final = (50, 100, 500)
#: Each writer of a job has a transaction open, and may have others that wait for their checkpoint.
_POSTGRES: Final = {"max_prepared_transactions": "64"}


def measure(scale: Scale) -> dict[str, Any]:
    """Figures of both; those of Flink by interval of its checkpoints too."""
    libs = find_flink()
    rows, warm = scale.batch_rows(ROWS), scale.pick(full=FULL_WARM, quick=QUICK_WARM)
    seconds = scale.pick(full=latency.FULL_S, quick=latency.QUICK_S)
    with ExitStack() as stack:
        classes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-2pc-bench-")))
        compile_jobs(libs, classes)
        bench = stack.enter_context(Workbench(servers=start_servers(stack, _POSTGRES)))
        source = write_source(bench.spark, bench.directory / "narrow", NARROW, rows=rows, batches=1 + warm)
        before = run(bench, source, writers.ours, key="id")
        # Both at once would take the cores from each other.
        bench.spark.stop()
        jobs = {str(interval): _jobs(bench, libs, classes, interval, source) for interval in INTERVALS_MS}
        delays = {str(interval): _latency(bench, libs, classes, interval, seconds) for interval in LATENCY_INTERVALS_MS}
        flink = {interval: found for interval, (_, found) in jobs.items()}
        tasks = [task.topic for task, _ in jobs.values()]
        arguments = {"path": str(source.path), "rows": rows, "batches": source.batches, "written": tasks}
        arguments |= {"servers": bench.servers.json(), "seconds": seconds}
        after = fresh.call("benchmarks.flink", "ours_after", arguments)
    ours = {
        "first": [rows / before.cold.seconds, *after["first"]],
        "warm": [*before.rows_per_s(rows), *after["warm"]],
    }
    found = {
        "rows": rows,
        "warm_jobs": warm,
        "versions": flink_versions(libs),
        "ours_cpu_s": cpu_per_million([before], rows),
        "same": after["same"],
        **throughput_figures(ours, flink),
        **latency_figures(after["latency"], delays),
    }
    print(_line(found), flush=True)
    return found


def _jobs(bench: Workbench, libs: Path, classes: Path, interval_ms: int, source: Source) -> tuple[Task, dict[str, Any]]:
    """Jobs of one process with one interval: the first, the warm ones, and the long one.

    Returns:
        what the last warm job has written, which is compared later, and the figures.
    """
    *jobs, long = new_tasks(bench, NARROW, source.batches + 1)
    batches = source.batches - 1
    with FlinkProcess(libs, classes, bench.servers) as process:
        tree = ProcessTree({**bench.tree.servers, process.pid: "flink"})

        def job(task: Task, rows: int) -> BatchFigures:
            bench.settle()
            before = tree.cpu_s()
            seconds = process.append(task.topic, task.table, rows=rows, interval_ms=interval_ms)
            found = BatchFigures(seconds, spent(before, tree.cpu_s()))
            check_rows(bench, task.table, rows)
            return found

        first, *warm = [job(task, source.rows) for task in jobs]
        longest = job(long, source.rows * batches)
    times = ", ".join(f"{each.seconds:.2f}" for each in (first, *warm))
    print(
        f"    Flink, a checkpoint each {interval_ms} ms: jobs of {source.rows} rows took {times} s, one of "
        f"{source.rows * batches} took {longest.seconds:.2f} s",
        flush=True,
    )
    bench.execute(*(f"DROP TABLE {task.table}" for task in (*jobs[:-1], long)))
    return jobs[-1], {
        "first_rows_per_s": Spread.of([source.rows / first.seconds]).json(),
        "warm_rows_per_s": Spread.of([source.rows / each.seconds for each in warm]).json(),
        "long_rows_per_s": Spread.of([source.rows * batches / longest.seconds]).json(),
        "cpu_s": cpu_of_batches(warm, source.rows),
    }


def _latency(bench: Workbench, libs: Path, classes: Path, interval_ms: int, seconds: int) -> dict[str, float]:
    """Latency of a job that reads the probe's topic."""
    name = latency.new_sides(bench)
    source = f"{name}_in"
    bench.new_topic(source, partitions=1)
    with FlinkProcess(libs, classes, bench.servers) as process:
        process.follow(source, name, name, interval_ms=interval_ms)
        try:
            seen = latency.watch(bench, source, {"topic": name, "table": name, "seconds": seconds})
        except subprocess.SubprocessError as error:
            message = f"not all rows became visible; Flink's log ends:\n{process.log_tail()}"
            raise SystemExit(message) from error
        process.stop()
    found = latency.quantiles(latency.both_sides(seen))
    print(
        f"    Flink, a checkpoint each {interval_ms} ms: visible in both p50 {found['visible_p50_s']:.3f} s, "
        f"p99 {found['visible_p99_s']:.3f} s; apart p50 {found['apart_p50_s']:.3f} s",
        flush=True,
    )
    return found


def ours_after(
    *, servers: dict[str, Any], path: str, rows: int, batches: int, written: list[str], seconds: int
) -> dict[str, Any]:
    """Called in a process of its own, after Flink: this sink once more, and what both have written.

    Raises:
        SystemExit: the two have not written the same.
    """
    source = Source(Path(path), NARROW, rows, batches)
    with Workbench(servers=Servers(**servers)) as bench:
        found = run(bench, source, writers.ours, key="id")
        same = run(bench, source.first(1), writers.ours, key="id", look=True).contents
        for name in written:
            same = compare(same, contents(bench, writers.Task(topic=name, table=name, key="id")))
        seen = latency.written(bench, seconds)
    return {
        "first": [rows / found.cold.seconds],
        "warm": found.rows_per_s(rows),
        "same": vars(same),
        "latency": latency.quantiles(latency.both_sides(seen)),
    }


def throughput_figures(ours: Mapping[str, list[float]], flink: Mapping[str, Any]) -> dict[str, Any]:
    """Both sides, with the fastest interval of Flink; pure.

    Args:
        ours: rows each second of batches, ``first`` and ``warm``.
        flink: figures of its jobs by interval, ms.
    """

    def rate(interval: str) -> float:
        found: float = max(flink[interval][f"{part}_rows_per_s"]["median"] for part in ("warm", "long"))
        return found

    best = max(flink, key=rate)
    found: dict[str, Any] = {"intervals": flink, "interval_ms": int(best), "flink_cpu_s": flink[best]["cpu_s"]}
    for part, batches in {"first": "first", "warm": "warm", "long": "warm"}.items():
        our_rate, their_rate = Spread.of(ours[batches]).json(), flink[best][f"{part}_rows_per_s"]
        ratio = quotient(our_rate, their_rate)
        found[part] = {"ours_rows_per_s": our_rate, "flink_rows_per_s": their_rate, "ratio": ratio}
    return found


def latency_figures(ours: Mapping[str, float], flink: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Both sides, and the interval of Flink that shows rows the soonest; pure."""
    soonest = min(flink, key=lambda interval: flink[interval]["visible_p50_s"])
    return {"ours_latency": ours, "flink_latency": flink, "latency_interval_ms": int(soonest)}


def quotient(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Of the medians of two spreads, and as low and as high as their ends allow."""
    return {
        "median": first["median"] / second["median"],
        "low": first["low"] / second["high"],
        "high": first["high"] / second["low"],
    }


def _line(found: dict[str, Any]) -> str:
    first, warm = found["first"], found["warm"]
    ours, flink = found["ours_latency"], found["flink_latency"][str(found["latency_interval_ms"])]
    return (
        f"warm {warm['ratio']['median']:.2f} x Flink ({warm['ratio']['low']:.2f} to {warm['ratio']['high']:.2f}), "
        f"{warm['ours_rows_per_s']['median'] / 1e3:.0f} against {warm['flink_rows_per_s']['median'] / 1e3:.0f} "
        f"thousand rows/s with a checkpoint every {found['interval_ms']} ms; compared with one long job "
        f"{found['long']['ratio']['median']:.2f} x; first {first['ratio']['median']:.2f} x; CPU "
        f"{found['ours_cpu_s']['all']:.1f} against {found['flink_cpu_s']['all']:.1f} s per million rows; visible p50 "
        f"{ours['visible_p50_s']:.3f} against {flink['visible_p50_s']:.3f} s, p99 {ours['visible_p99_s']:.3f} against "
        f"{flink['visible_p99_s']:.3f} s with a checkpoint every {found['latency_interval_ms']} ms"
    )
