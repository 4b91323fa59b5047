"""Pictures of the curves, as SVG; needs matplotlib (the extra ``dev``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

#: Text stays text and ids do not change, so that pictures of the same figures are the same files.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.size": 9}
_SIZE_INCHES = (5.5, 3.2)
#: The picture that RESULTS.md begins with.
OVERVIEW = "overview.svg"
_OVERVIEW_INCHES = (7.0, 3.0)
#: Who writes the same rows, by the name of its figure; with its colour. Flink is another benchmark, and may be missing.
_SIDES = {
    "pair": ("Spark's Kafka sink, then its JDBC sink:\nnot atomic", "C7"),
    "flink": ("Flink's Kafka and JDBC XA sinks,\none process: exactly once each", "C1"),
    "ours": ("DualWriteSink:\nexactly once in both", "C0"),
    "copy": ("PostgreSQL's COPY alone,\nwithout Kafka: the limit", "C2"),
}
_COUNTED = {
    "tasks": "tasks at a time",
    "partitions": "partitions of the topic",
    "sinks": "sinks at work in one database",
}


def draw(figures: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Draw what there are figures for, and name the files.

    Args:
        figures: by benchmark.
        folder: where the pictures go.

    Raises:
        ImportError: there is no matplotlib.
    """
    # Loaded here: tests and the text of RESULTS.md need no pictures.
    library: Any = import_module("matplotlib")
    library.use("svg")
    drawn = []
    with library.rc_context(_STYLE):
        if "cluster" in figures:
            drawn.append(_overview(figures["cluster"]["keyed"], figures.get("flink"), folder / OVERVIEW))
        if "curves" in figures:
            curves = figures["curves"]
            drawn.append(_curve("tasks", curves["tasks"], folder / "curve_tasks.svg"))
            others = {"a bare producer, without Spark and PostgreSQL": curves.get("bare_producer", {})}
            drawn.append(_curve("partitions", curves["partitions"], folder / "curve_partitions.svg", others))
        if "growth" in figures:
            drawn.append(_growth(figures["growth"], folder / "curve_growth.svg"))
        if "many_sinks" in figures:
            drawn.append(_curve("sinks", figures["many_sinks"]["sinks"], folder / "curve_sinks.svg"))
        if "many_batches" in figures:
            drawn.append(_past(figures["many_batches"]["batches"], folder / "curve_batches.svg"))
    return drawn


def _overview(figures: Mapping[str, Any], flink: Mapping[str, Any] | None, file: Path) -> Path:
    """Rows per second in a cluster, compared with the pair and with the limit; and Flink's, if measured."""
    rows = figures["rows"]
    figure, both = import_module("matplotlib.pyplot").subplots(
        1, 2, figsize=_OVERVIEW_INCHES, layout="constrained", sharey=True, sharex=True
    )
    figure.suptitle(f"Thousand rows each second on a Spark cluster, batches of {rows:,} keyed rows")
    parts = {"warm": "batches of a running query", "first": "the first batch of a query"}
    for axes, (part, what) in zip(both, parts.items(), strict=True):
        measured = figures[part] if flink is None else {**figures[part], "flink_rows_per_s": _flink_rate(flink, part)}
        sides = {side: look for side, look in _SIDES.items() if f"{side}_rows_per_s" in measured}
        rates = [measured[f"{side}_rows_per_s"] for side in sides]
        middle = [rate["median"] / 1e3 for rate in rates]
        names, colours = zip(*sides.values(), strict=True)
        bars = axes.barh(names, middle, xerr=_ends(rates, 1e3), color=colours, capsize=3)
        axes.bar_label(bars, fmt="%.0f", padding=12)
        # Room for the number after the longest bar.
        axes.margins(x=0.35)
        axes.set_axisbelow(True)
        axes.grid(visible=True, axis="x", alpha=0.3)
        axes.set_xlabel(what)
    return _saved(figure, file)


def _flink_rate(flink: Mapping[str, Any], part: str) -> Mapping[str, float]:
    """Flink's rate for a part of a query: a long job for warm batches, new jobs for first batches."""
    rate: Mapping[str, float] = flink["long" if part == "warm" else "warm"]["flink_rows_per_s"]
    return rate


def _curve(
    name: str,
    points: Mapping[str, Mapping[str, float]],
    file: Path,
    others: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
) -> Path:
    """Rows per second, and the same of others by their labels."""
    figure, axes = _axes()
    counts = [int(count) for count in points]
    for label, curve in {"the sink": points, **(others or {})}.items():
        if curve:
            middle = [point["median"] / 1e3 for point in curve.values()]
            axes.errorbar(counts, middle, yerr=_ends(curve.values(), 1e3), marker="o", capsize=3, label=label)
    if any((others or {}).values()):
        axes.legend()
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(_COUNTED[name])
    axes.set_ylabel("thousand rows/s")
    return _saved(figure, file)


def _growth(figures: Mapping[str, Any], file: Path) -> Path:
    figure, axes = _axes()
    rows = [int(size) / 1e6 for size in figures["sizes"]]
    seconds = [size["seconds"]["median"] for size in figures["sizes"].values()]
    axes.plot(rows, seconds, marker="o", label="measured")
    straight = [seconds[1] + figures["s_per_million_first"] * (millions - rows[1]) for millions in rows]
    axes.plot(rows, straight, linestyle=":", label="as from the first to the second point")
    axes.set_xlabel("million rows in one batch")
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0)
    axes.legend()
    return _saved(figure, file)


def _past(points: Mapping[str, Mapping[str, Any]], file: Path) -> Path:
    """Speed compared with a new sink, and what has grown, by number of batches."""
    figure, axes = _axes()
    batches = [int(count) for count in points]
    speeds = [point["speed"] for point in points.values()]
    middle = [speed["median"] for speed in speeds]
    axes.errorbar(batches, middle, yerr=_ends(speeds, 1), marker="o", capsize=3, label="speed, a young sink's is 1")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batches written before")
    axes.set_ylabel("times the speed of a young sink")
    sizes = axes.twinx()
    tables = [sum(point["tables_mb"].values()) for point in points.values()]
    sizes.plot(batches, tables, linestyle=":", marker=".", color="C1", label="the sink's own tables, MB")
    sizes.plot(batches, [point["driver_mb"] for point in points.values()], ":.C2", label="memory of the driver, MB")
    sizes.set_ylim(bottom=0)
    sizes.set_ylabel("MB")
    figure.legend(loc="outside upper center", ncols=2)
    return _saved(figure, file)


def _ends(spreads: Iterable[Mapping[str, float]], unit: float) -> list[list[float]]:
    """How far both ends of some spreads are from their medians, as matplotlib takes error bars."""
    found = list(spreads)
    return [[abs(each["median"] - each[end]) / unit for each in found] for end in ("low", "high")]


def _axes() -> tuple[Any, Any]:
    figure, axes = import_module("matplotlib.pyplot").subplots(figsize=_SIZE_INCHES, layout="constrained")
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _saved(figure: Any, file: Path) -> Path:
    figure.savefig(file, metadata={"Date": None})
    import_module("matplotlib.pyplot").close(figure)
    return file
