"""The targets, and what the newest results say of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: A curve has a cliff if a point is below this share of the one before.
CLIFF_SHARE = 0.75
_Spread = Callable[[Mapping[str, Any]], Mapping[str, float]]
#: Driver memory at 10 million rows, above that at 100 000, at most, MB.
DRIVER_GROWTH_MB = 200.0

#: The least ratio to the pair at any batch size.
SIZE_RATIO = 1.8
#: The least share of the throughput that is left with one more column.
COLUMN_SHARE = 0.85


@dataclass(frozen=True)
class Target:
    """One row of the table.

    Attributes:
        what: is measured.
        wanted: the target in words.
        benchmark: which one measures it.
        measured: the figure in words, from that benchmark's figures.
        met: whether it meets the target.
    """

    what: str
    wanted: str
    benchmark: str
    measured: Callable[[Mapping[str, Any]], str]
    met: Callable[[Mapping[str, Any]], bool]

    def verdict(self, figures: Mapping[str, Any] | None) -> tuple[str, str]:
        """What was measured, and ``met``, ``MISSED`` or ``not measured``."""
        if figures is None:
            return "", "not measured"
        return self.measured(figures), "met" if self.met(figures) else "MISSED"


def _times(
    what: str,
    least: float,
    benchmark: str,
    ratio: Callable[[Mapping[str, Any]], Mapping[str, float]],
    of: str = "the pair's throughput",
) -> Target:
    def shown(found: Mapping[str, Any]) -> str:
        return "{median:.2f} x ({low:.2f} to {high:.2f})".format(**ratio(found))

    def met(found: Mapping[str, Any]) -> bool:
        return ratio(found)["median"] >= least

    return Target(what, f">= {least:g} x {of}", benchmark, shown, met)


def _variant(variant: str, what: str, least: float) -> Target:
    return _times(what, least, "throughput", lambda found: found[variant]["ratio"])


def _on_cluster(variant: str, what: str, *, first: float, warm: float) -> tuple[Target, Target]:
    """Compared with the pair on a cluster: the first batch of a query, and later ones."""
    return (
        _times(
            f"cluster, {what}: first batch of a query", first, "cluster", lambda found: found[variant]["first"]["ratio"]
        ),
        _times(f"cluster, {what}: warm", warm, "cluster", lambda found: found[variant]["warm"]["ratio"]),
    )


def _of_bare_copy(part: str, what: str, least: float) -> Target:
    of = "the throughput of a bare COPY"
    return _times(what, least, "cluster", lambda found: found["keyed"][part]["copy_ratio"], of)


def _every_size(place: str) -> Target:
    """The batch size with the lowest ratio."""

    def lowest(found: Mapping[str, Any]) -> tuple[float, str]:
        return min((float(one["ratio"]["median"]), f"{int(rows):,}") for rows, one in found[place].items())

    return Target(
        f"batches of 1 000 to 150 000 rows, {place}: warm",
        f"none below {SIZE_RATIO:g} x the pair's throughput",
        "batch_sizes",
        lambda found: "lowest {:.2f} x ({} rows)".format(*lowest(found)),
        lambda found: lowest(found)[0] >= SIZE_RATIO,
    )


def _at_most(what: str, benchmark: str, limits: Mapping[str, float], unit: str, factor: float = 1.0) -> Target:
    """Each of some figures, times ``factor``, is at most its limit."""
    names = {name: name.split("_")[-2] if "_p" in name else "" for name in limits}
    return Target(
        what,
        ", ".join(f"{names[name]} <= {limit:g} {unit}".strip() for name, limit in limits.items()),
        benchmark,
        lambda found: ", ".join(f"{names[name]} {found[name] * factor:.3g} {unit}".strip() for name in limits),
        lambda found: all(found[name] * factor <= limit for name, limit in limits.items()),
    )


def _worst_small_batch(found: Mapping[str, Any]) -> tuple[float, float]:
    return max(size["beyond_p50_ms"] for size in found.values()), max(size["beyond_p99_ms"] for size in found.values())


def _worst_column(found: Mapping[str, Any]) -> tuple[str, float]:
    ratios = {name: float(kind["ratio"]["median"]) for name, kind in found["kinds"].items()}
    return min(ratios.items(), key=lambda kind: kind[1])


def _driver_mb(found: Mapping[str, Any]) -> list[float]:
    """Peaks of the driver's Python process, by growing number of rows."""
    return [found["sizes"][rows]["peak_mb"]["driver"] for rows in sorted(found["sizes"], key=int)]


def _worker_mb(found: Mapping[str, Any]) -> float:
    return max(float(size["peak_mb"]["workers"]) for size in found["sizes"].values())


def _median_of(what: str, limit: float, unit: str, benchmark: str, spread: _Spread, *, least: bool = False) -> Target:
    """A median is at most its limit, or at least; its spread is shown."""
    return Target(
        what,
        f"{'>=' if least else '<='} {limit:g} {unit}",
        benchmark,
        lambda found: "{median:.2f} {unit} ({low:.2f} to {high:.2f})".format(unit=unit, **spread(found)),
        lambda found: bool(spread(found)["median"] >= limit if least else spread(found)["median"] <= limit),
    )


def _of_bare_throughput(found: Mapping[str, Any]) -> dict[str, float]:
    """The share of a throughput, of the times of both."""
    times = found["append"]["times_bare"]
    return {"median": 1 / times["median"], "low": 1 / times["high"], "high": 1 / times["low"]}


def _service(way: str) -> Target:
    """Transactions without Spark, by one setting of ``kafka_commit``."""

    def of(found: Mapping[str, Any]) -> tuple[float, float]:
        ways = found["kafka, 8 clients"]
        return float(ways[way]["per_s"]["median"]), float(ways[way]["p99_beyond_commit_ms"])

    return Target(
        f"a service, one row and one record a transaction, 8 clients, `{way}`",
        ">= 1 000/s, p99 <= that of COMMIT + 10 ms",
        "service",
        lambda found: "{:.0f}/s, p99 {:+.1f} ms".format(*of(found)),
        lambda found: of(found)[0] >= 1000 and of(found)[1] <= 10,
    )


def _curve(name: str, what: str, benchmark: str = "curves") -> Target:
    return Target(
        what,
        f"no cliff: no point below {CLIFF_SHARE:g} x the one before",
        benchmark,
        lambda found: f"lowest {found[f'{name}_steepest_fall']:.2f} x the one before",
        lambda found: bool(found[f"{name}_steepest_fall"] >= CLIFF_SHARE),
    )


TARGETS = (
    *_on_cluster("keyed", "rows of 6 columns, keyed, append", first=1.6, warm=2.0),
    *_on_cluster("keyed with a double", "the same with a double column", first=1.9, warm=2.2),
    *_on_cluster("unkeyed", "unkeyed", first=1.75, warm=2.2),
    *_on_cluster("wide", "wide rows (30 columns, 2 KB values)", first=1.6, warm=1.8),
    *_on_cluster("upsert", "upsert into a table that has all rows", first=1.5, warm=1.6),
    *map(_every_size, ("one process", "cluster")),
    _of_bare_copy("first", "cluster, keyed, append, with Kafka: first batch of a query", 0.6),
    _of_bare_copy("warm", "cluster, keyed, append, with Kafka: warm", 0.8),
    _variant("keyed", "rows of 6 columns, keyed, append", 1.6),
    _variant("unkeyed", "the same, unkeyed", 2.0),
    _variant("wide", "wide rows (30 columns, 2 KB values)", 1.3),
    _times("two topics and two tables, each with all rows", 2.0, "outputs", lambda found: found["ratio"]),
    Target(
        "price of exactly once",
        "<= 3 % throughput",
        "price",
        lambda found: (
            f"{found['price']['median'] * 100:.1f} % (middle half of batches "
            f"{found['price']['low'] * 100:.1f} to {found['price']['high'] * 100:.1f} %)"
        ),
        lambda found: bool(found["price"]["median"] <= 0.03),
    ),
    Target(
        "small batches (1, 100, 1 000 rows): time inside foreachBatch beyond a counting job",
        "p50 <= 25 ms, p99 <= 70 ms",
        "small_batches",
        lambda found: "worst size: p50 {:.0f} ms, p99 {:.0f} ms".format(*_worst_small_batch(found)),
        lambda found: _worst_small_batch(found)[0] <= 25 and _worst_small_batch(found)[1] <= 70,
    ),
    Target(
        "encoding alone, one core, zstd",
        ">= 4 million records/s",
        "encoding",
        lambda found: f"{found['zstd_records_per_s']['median'] / 1e6:.2f} million records/s",
        lambda found: bool(found["zstd_records_per_s"]["median"] >= 4e6),
    ),
    _at_most(
        "encoding of 1 KB values, uncompressed, compared with a copy", "encoding", {"large_times_copy": 2}, "x its time"
    ),
    Target(
        "CPU seconds per million rows, all processes, warm (keyed append)",
        "<= 0.42 x the pair's",
        "throughput",
        lambda found: (
            f"{found['keyed']['cpu_ratio']:.2f} x ({found['keyed']['ours_cpu_s']['all']:.1f} s against "
            f"{found['keyed']['pair_cpu_s']['all']:.1f} s)"
        ),
        lambda found: bool(found["keyed"]["cpu_ratio"] <= 0.42),
    ),
    _at_most(
        "5 000 rows/s, default trigger: creation to visible in both",
        "latency",
        {"visible_p50_s": 0.3, "visible_p99_s": 0.6},
        "s",
    ),
    _at_most(
        "the same, beyond a foreachBatch that only counts",
        "latency",
        {"beyond_p50_s": 0.06, "beyond_p99_s": 0.06},
        "s",
    ),
    _at_most("the same: how far both sides are apart", "latency", {"apart_p99_s": 50}, "ms", 1000),
    Target(
        "growth: 0.1, 1, 10 million rows in one batch",
        "a row beyond 1 million takes <= 1.1 x the time of one below",
        "growth",
        lambda found: f"{found['growth']:.2f} x",
        lambda found: bool(found["growth"] <= 1.1),
    ),
    Target(
        "driver memory at 10 million rows",
        f"at most {DRIVER_GROWTH_MB:g} MB above that at 100 000",
        "growth",
        lambda found: "{1:.0f} MB, at 100 000 {0:.0f} MB".format(*_driver_mb(found)[::2]),
        lambda found: _driver_mb(found)[-1] - _driver_mb(found)[0] <= DRIVER_GROWTH_MB,
    ),
    Target(
        "Python workers' memory at 10 million rows",
        "<= 300 MB each",
        "growth",
        lambda found: f"{_worker_mb(found):.0f} MB the largest",
        lambda found: _worker_mb(found) <= 300,
    ),
    Target(
        "a column of any type in the JSON that tasks build: throughput against the same rows without it",
        f"none below {COLUMN_SHARE:g}",
        "json_columns",
        lambda found: "lowest {1:.2f} ({0})".format(*_worst_column(found)),
        lambda found: _worst_column(found)[1] >= COLUMN_SHARE,
    ),
    _curve("tasks", "tasks 1, 2, 4, 8"),
    _curve("partitions", "Kafka partitions 1 to 1 000"),
    _curve("sinks", "1 to 40 active sinks in one database", "many_sinks"),
    _curve("batches", "up to 100 000 batches, compared with a new sink", "many_batches"),
    _median_of(
        "start of a query to its first batch being visible, beyond one that counts",
        1.0,
        "s",
        "start",
        lambda found: found["new"]["beyond_s"],
    ),
    _median_of(
        "the same after kill -9 with a decided batch",
        1.5,
        "s",
        "start",
        lambda found: found["killed"]["beyond_s"],
    ),
    _median_of(
        "keyed append into a table with four indexes, compared with a bare COPY by one client",
        0.95,
        "x its throughput",
        "database_bound",
        _of_bare_throughput,
        least=True,
    ),
    _median_of(
        "upsert of all rows of a table, compared with a bare INSERT … ON CONFLICT of staged rows",
        1.15,
        "x its time",
        "database_bound",
        lambda found: found["upsert"]["times_bare"],
    ),
    *(_service(way) for way in ("before_return", "in_background")),
    _at_most("verify of 10 million rows", "verify", {"seconds": 90}, "s"),
    _at_most("memory of its client", "verify", {"client_peak_mib": 300}, "MB", 2**20 / 1e6),
)
