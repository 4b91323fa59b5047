"""Sections of RESULTS.md: sizes of batches, Flink, starts, PostgreSQL alone, many sinks, many batches, verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.report_tables import ratio_of, seconds_of, table, thousands


def _batch_sizes(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "## By the size of a batch"
    rows = [
        (
            place,
            f"{int(rows):,}",
            ratio_of(one["ratio"]),
            *(f"{int(rows) / one[f'{side}_rows_per_s']['median']:.2f}" for side in ("ours", "pair")),
        )
        for place, sizes in figures.items()
        for rows, one in sizes.items()
    ]
    yield table(("", "rows", "times the pair's throughput", "a batch of ours, s", "of the pair, s"), rows)


def _start(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Start of a query, a batch of {figures['rows']} rows"
    names = {"new": "a query that has never run", "killed": "after kill -9 with a decided batch"}
    rows = [
        (what, *(seconds_of(figures[kind][name]) for name in ("beyond_s", "sink_s", "count_s")))
        for kind, what in names.items()
    ]
    yield table(("", "beyond counting", "the sink, until both sides show the batch", "a query that counts"), rows)


def _database_bound(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Compared with PostgreSQL alone, batches of {figures['rows']:,} rows"
    names = {
        "append": ("append into a table with four indexes", "COPY"),
        "upsert": ("upsert of all rows", "INSERT … ON CONFLICT"),
    }
    rows = [
        (
            what,
            seconds_of(figures[name]["ours_s"]),
            f"{bare}: {seconds_of(figures[name]['bare_s'])}",
            f"{figures[name]['times_bare']['median']:.2f}",
            f"{figures[name]['ours_cpu_s']['postgresql']:.2f}",
            f"{figures[name]['bare_cpu_s']['postgresql']:.2f}",
        )
        for name, (what, bare) in names.items()
    ]
    head = ("", "the sink", "the bare statement", "times its time", "PostgreSQL's CPU s per million rows", "bare")
    yield table(head, rows)
    for name in names:
        steps = ", ".join(f"{step} {seconds:.2f}" for step, seconds in figures[name]["step_s"].items())
        yield f"Steps of the sink's {name}, medians in seconds: {steps}."


def _writers_bound(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## An upsert of {figures['rows']:,} rows by two backends of PostgreSQL, without Spark"
    names = {"free": "the machine as it is", "busy": "while a process keeps a core busy"}
    rows = [
        (
            what,
            seconds_of(figures[name]["one_s"]),
            seconds_of(figures[name]["two_s"]),
            f"{figures[name]['ratio']['median']:.2f}",
        )
        for name, what in names.items()
    ]
    yield table(("", "one backend", "two, prepared and decided by a third", "times as fast"), rows)


def _many_sinks(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Sinks at work in one database, batches of {figures['rows']:,} rows"
    counts = figures["sinks"]
    yield table(
        ("sinks", *counts), [("thousand rows/s of all", *(f"{point['median'] / 1e3:.1f}" for point in counts.values()))]
    )


def _many_batches(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Speed after many batches of {figures['rows']} rows, without Spark"
    rows = [
        (
            f"{int(count):,}",
            ratio_of(point["speed"]),
            f"{point['old_ms']['median']:.1f}",
            f"{sum(point['tables_mb'].values()):.1f}",
            f"{point['driver_mb']:.0f}",
            str(point["open_files"]),
        )
        for count, point in figures["batches"].items()
    ]
    head = ("batches", "times a new sink's speed", "ms a batch", "its tables, MB", "driver, MB", "open files")
    yield table(head, rows)


def _verify(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## verify of {figures['rows']:,} rows"
    yield (
        f"{figures['seconds']} s; CPU seconds: the client {figures['client_cpu_s']}, PostgreSQL "
        f"{figures['postgresql_cpu_s']}, Kafka {figures['kafka_cpu_s']}. The client's peak memory was "
        f"{figures['client_peak_mib']} MiB."
    )


def _flink(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "## Compared with Flink"
    versions = ", ".join(f"{name} {number}" for name, number in figures["versions"].items())
    yield (
        "Flink writes the same rows with its Kafka sink and its JDBC XA sink, exactly once each, in one process. The "
        "two commit independently. Flink generates its rows; DualWriteSink reads them from files. "
        f"({versions}.)"
    )
    parts = {
        "first": ("first batch of a session", "first job of a process"),
        "warm": ("warm batches", f"warm jobs of {figures['rows']:,} rows"),
        "long": ("warm batches", f"one job of {figures['warm_jobs'] * figures['rows']:,} rows"),
    }
    head = ("ours", "Flink", "ours, thousand rows/s", "Flink, thousand rows/s", "ratio")
    rates = [
        (*what, thousands(one["ours_rows_per_s"]), thousands(one["flink_rows_per_s"]), ratio_of(one["ratio"]))
        for what, one in ((what, figures[part]) for part, what in parts.items())
    ]
    yield table(head, rates)
    yield f"With a checkpoint every {figures['interval_ms']:,} ms. Flink's thousand rows/s with other intervals:"
    intervals = [
        (f"{int(interval):,} ms", *(thousands(one[f"{part}_rows_per_s"]) for part in parts))
        for interval, one in figures["intervals"].items()
    ]
    yield table(("a checkpoint every", *(what for _, what in parts.values())), intervals)
    yield (
        f"CPU seconds per million rows, warm: ours {figures['ours_cpu_s']['all']:.2f}, Flink "
        f"{figures['flink_cpu_s']['all']:.2f}."
    )
    yield (
        "Latency at 5 000 rows/s, s. Flink's rows are visible soonest with a checkpoint every "
        f"{figures['latency_interval_ms']} ms:"
    )
    names = [f"{name}_{share}_s" for name in ("visible", "kafka", "table", "apart") for share in ("p50", "p99")]
    delays = {"ours, default trigger": figures["ours_latency"]} | {
        f"Flink, a checkpoint every {interval} ms": found for interval, found in figures["flink_latency"].items()
    }
    rows = [(what, *(f"{found[name]:.3f}" for name in names)) for what, found in delays.items()]
    yield table(("", *(name.removesuffix("_s").replace("_", " ") for name in names)), rows)


#: By benchmark.
SECTIONS: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "batch_sizes": _batch_sizes,
    "flink": _flink,
    "start": _start,
    "database_bound": _database_bound,
    "writers_bound": _writers_bound,
    "many_sinks": _many_sinks,
    "many_batches": _many_batches,
    "verify": _verify,
}
