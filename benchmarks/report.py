"""RESULTS.md and its pictures, from the newest result of each benchmark, which is kept in ``results.jsonl``.

    python -m benchmarks.report

Everything in it but the headings is taken from results, and from `missed.md`, which is kept by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import report_sections, results
from benchmarks.charts import OVERVIEW, draw
from benchmarks.report_tables import ratio_of, seconds_of, table, thousands
from benchmarks.results import Result
from benchmarks.targets import TARGETS
from spark_2pc_sink.extras import install_command

_FOLDER = Path(__file__).parent
_INTRODUCTION = (
    "`make bench` measures, and `python -m benchmarks.report` writes this file from the newest result of each of them "
    "(`results.jsonl`). All ratios are of runs that took turns on one machine. [tried.md](tried.md) lists what was "
    "tried for speed, what it gained, and what was ruled out."
)
_FLINK_SHOWN = (
    "Flink's figures are from the benchmark `flink`: one process that generates its rows. Warm batches are compared "
    "with one long job, the first batch of a query with a new job of a process that has run others."
)
_KINDS = ("spark", "workers", "driver", "kafka", "postgresql", "all")
_VARIANTS = ("keyed", "unkeyed", "upsert", "upsert with room", "upsert by order", "wide")


def main() -> None:
    """Write RESULTS.md and its pictures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=results.DEFAULT_FILE, help="default: %(default)s")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="for RESULTS.md and the pictures")
    given = parser.parse_args()
    recorded = given.folder / results.RECORDED_NAME
    found = results.newest(recorded, given.results)
    if not found:
        parser.error(f"there are no results in {given.results}: run `make bench`, or `python -m benchmarks`")
    try:
        pictures = draw({name: result.figures for name, result in found.items()}, given.folder)
    except ImportError as error:
        parser.error(f"{error}: {install_command('dev')} brings what draws the pictures")
    missed = (_FOLDER / "missed.md").read_text().partition("\n")[2]
    text = render(found, pictures=[path.name for path in pictures], missed=missed)
    (given.folder / "RESULTS.md").write_text(text)
    results.record(recorded, found)
    print(f"wrote {given.folder / 'RESULTS.md'} and {len(pictures)} pictures")


def render(found: Mapping[str, Result], *, pictures: list[str], missed: str) -> str:
    """The text of RESULTS.md.

    Args:
        found: the newest result of each benchmark.
        pictures: file names.
        missed: why targets are missed, as it is kept by hand, without its heading.
    """
    first = [name for name in pictures if name == OVERVIEW]
    sections = [
        "# Results of the benchmarks",
        *_shown(first),
        *([_FLINK_SHOWN] if first and "flink" in found else []),
        _INTRODUCTION,
        "## Targets",
        _targets(found),
        "## Why targets are missed",
        missed.strip(),
        "## Machine",
        *_machines(found),
        *_details(found),
        *_shown(name for name in pictures if name not in first),
    ]
    return "\n\n".join(sections) + "\n"


def _shown(pictures: Iterable[str]) -> Iterator[str]:
    return (f"![{Path(name).stem.replace('_', ' ')}]({name})" for name in pictures)


def _targets(found: Mapping[str, Result]) -> str:
    rows = []
    for target in TARGETS:
        result = found.get(target.benchmark)
        measured, verdict = target.verdict(None if result is None else result.figures)
        rows.append((target.what, target.wanted, measured, verdict))
    return table(("what", "target", "measured", ""), rows)


def _machines(found: Mapping[str, Result]) -> Iterator[str]:
    """The machine of the last result, and when each benchmark ran; another machine or version is said."""
    last = max(found.values(), key=lambda result: result.at)
    machine = last.machine
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB of memory, {machine['disk']}, "
        f"{machine['system']}.\n{versions}."
    )
    rows = []
    for name, result in found.items():
        same = _fixed(result.machine) == _fixed(machine)
        rows.append(
            (
                name,
                result.at,
                f"{result.seconds:.0f} s",
                "quick or other sizes" if result.quick else "full",
                str(result.machine["load_before"]),
                result.machine["versions"]["commit"] + ("" if same else ", on another machine or other versions"),
            )
        )
    yield table(("benchmark", "ended", "took", "sizes", "load before it", "commit"), rows)


def _fixed(machine: Mapping[str, Any]) -> dict[str, Any]:
    """What must not differ between results of one table."""
    versions = {name: number for name, number in machine["versions"].items() if name != "commit"}
    return {
        **{name: value for name, value in machine.items() if name not in {"load_before", "cpu", "versions"}},
        **versions,
    }


def _details(found: Mapping[str, Result]) -> Iterator[str]:
    for name, section in _SECTIONS.items():
        if name in found:
            yield from section(found[name].figures)


def _cluster(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "## In a cluster"
    yield (
        "A standalone cluster: a master and two workers of one core each. `first` is the first batch of a new query, "
        "with the start of the query; `warm` are later ones. Ratios are per turn: median, lowest, highest."
    )
    parts = [(name, part, row[part]) for name, row in figures.items() for part in ("first", "warm")]
    rates = [
        (
            name,
            f"{figures[name]['rows']:,}",
            part,
            thousands(one["ours_rows_per_s"]),
            thousands(one["pair_rows_per_s"]),
            ratio_of(one["ratio"]),
            "persisted" if one["pair_persists"] else "not persisted",
        )
        for name, part, one in parts
    ]
    sides = ("ours, thousand rows/s", "the pair, thousand rows/s", "ratio", "the pair's batch")
    yield table(("", "rows in a batch", "batch", *sides), rates)
    yield "Compared with a bare COPY of the same rows by one client, whose bytes were made beforehand:"
    copied = [
        (name, part, thousands(one["copy_rows_per_s"]), ratio_of(one["copy_ratio"]))
        for name, part, one in parts
        if "copy_ratio" in one
    ]
    yield table(("", "batch", "COPY, thousand rows/s", "ours, x COPY"), copied)
    yield "Median seconds by step; `outside` is Spark, and the start of the sink, before the first step:"
    steps = list(dict.fromkeys(step for _, _, one in parts for step in one["steps_s"]))
    seconds = [(name, part, *(f"{one['steps_s'].get(step, 0):.2f}" for step in steps)) for name, part, one in parts]
    yield table(("", "batch", *steps), seconds)
    yield "CPU seconds per million rows, by kind of process; `spark` has the executors:"
    cpu = [
        (name, part, side, *(f"{one[f'{side}_cpu_s'].get(kind, 0):.2f}" for kind in _KINDS))
        for name, part, one in parts
        for side in ("ours", "pair", "copy")
        if f"{side}_cpu_s" in one
    ]
    yield table(("", "batch", "", *_KINDS), cpu)


def _throughput(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "## Throughput and CPU time, warm"
    rows = []
    # Results of before have not all of them.
    names = [name for name in _VARIANTS if name in figures]
    for name in names:
        row = figures[name]
        rows.append(
            (
                name,
                f"{row['rows']:,}",
                thousands(row["ours_rows_per_s"]),
                thousands(row["pair_rows_per_s"]),
                f"{row['ratio']['median']:.2f}",
                "persisted" if row["pair_persists"] else "not persisted",
            )
        )
    head = ("", "rows in a batch", "ours, thousand rows/s", "the pair, thousand rows/s", "ratio", "the pair's batch")
    yield table(head, rows)
    cold = figures["cold"]
    yield (
        f"Cold (the first batch of a new session, keyed): ours {seconds_of(cold['ours_s'])}, the pair "
        f"{seconds_of(cold['pair_s'])}, ratio {cold['ratio']['median']:.2f}."
    )
    cpu = [
        (name, side, *(f"{figures[name][f'{side}_cpu_s'].get(kind, 0):.2f}" for kind in _KINDS))
        for name in names
        for side in ("ours", "pair")
    ]
    yield "CPU seconds per million rows, by kind of process:"
    yield table(("", "", *_KINDS), cpu)


def _outputs(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Two topics and two tables, batches of {figures['rows']:,} rows, warm"
    rows = [
        (what, thousands(figures[f"{way}_rows_per_s"]), f"{figures[f'{way}_cpu_s']['all']:.2f}")
        for way, what in (("ours", "one sink"), ("two_sinks", "two sinks"), ("pair", "the pair, twice, persisted"))
    ]
    yield table(("", "thousand rows/s", "CPU s per million rows"), rows)
    ratio = figures["ratio_to_two_sinks"]
    yield f"One sink writes {ratio['median']:.2f} times as fast as two ({ratio['low']:.2f} to {ratio['high']:.2f})."


def _price(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "## Price of exactly once"
    rows = [
        (side, thousands(figures[f"{side}_rows_per_s"]), f"{figures[f'{side}_cpu_s']['all']:.2f}")
        for side in ("with", "without")
    ]
    yield table(("transaction, state row, generation check", "thousand rows/s", "CPU s per million rows"), rows)


def _small_batches(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "## Small batches, ms"
    names = ("beyond_p50_ms", "beyond_p99_ms", "sink_p50_ms", "sink_p99_ms", "count_p50_ms", "count_p99_ms")
    rows = [(size, str(row["batches"]), *(f"{row[name]:.0f}" for name in names)) for size, row in figures.items()]
    yield table(("rows", "batches", *(name.removesuffix("_ms").replace("_", " ") for name in names)), rows)


def _encoding(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "## Encoding, one core"
    rows = [
        (f"{figures['value_bytes']:.0f}-byte values, zstd", _millions(figures["zstd_records_per_s"])),
        (f"{figures['value_bytes']:.0f}-byte values, uncompressed", _millions(figures["none_records_per_s"])),
        ("1 KB values, uncompressed", f"{figures['large_encode_mb_per_s']:.0f} MB/s"),
        ("a copy of the same bytes", f"{figures['large_copy_mb_per_s']:.0f} MB/s"),
    ]
    yield table(("", ""), rows)


def _latency(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Latency at {figures['rows_per_s']:,} rows/s, s"
    shown = {
        **{name: name for name in ("visible", "kafka", "table", "apart", "counted")},
        "pair_visible": f"the pair, {'persisted' if figures['pair_persists'] else 'not persisted'}: visible",
        "pair_apart": "the pair: apart",
    }
    rows = [
        (what, f"{figures[f'{name}_p50_s']:.3f}", f"{figures[f'{name}_p99_s']:.3f}") for name, what in shown.items()
    ]
    yield table(("", "p50", "p99"), rows)
    yield "The pair is Spark's Kafka sink, which waits for no further records, then Spark's JDBC sink."


def _growth(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "## Growth of one batch"
    kinds = ("driver", "spark", "workers")
    rows = [
        (f"{int(size):,}", seconds_of(row["seconds"]), *(f"{row['peak_mb'].get(kind, 0):.0f}" for kind in kinds))
        for size, row in figures["sizes"].items()
    ]
    yield table(("rows", "time", *(f"peak of {kind}, MB" for kind in kinds)), rows)
    yield f"Spark's virtual machine has a heap of {figures['driver_heap']}."


def _curves(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Curves, batches of {figures['rows']:,} rows"
    for name in ("tasks", "partitions"):
        yield table(
            (name, *figures[name]),
            [
                ("thousand rows/s", *(f"{point['median'] / 1e3:.0f}" for point in figures[name].values())),
                *_bare_producer(name, figures),
            ],
        )
    if "bare_producer" in figures:
        yield (
            "The bare producer is librdkafka in one process: the same records in transactions, without Spark and "
            "PostgreSQL. The first two batches into a new topic, for which the broker creates logs and indexes, have "
            "lines of their own."
        )


def _bare_producer(name: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The rows of a bare producer, of the CPU and of topics that are new."""
    if name != "partitions" or "bare_producer" not in figures:
        return
    yield "CPU s per million rows", *(f"{point['all']:.2f}" for point in figures["partitions_cpu_s"].values())
    yield "of them Kafka's", *(f"{point['kafka']:.2f}" for point in figures["partitions_cpu_s"].values())
    bare = figures["bare_producer"].values()
    yield "a bare producer, thousand records/s", *(f"{point['median'] / 1e3:.0f}" for point in bare)
    yield "Kafka's CPU s for it", *(f"{point['kafka']:.2f}" for point in figures["bare_producer_cpu_s"].values())
    for side, what in {
        "partitions": "first two batches into a new topic, s",
        "bare_producer": "the bare producer's, s",
    }.items():
        yield what, *(f"{point['median']:.1f}" for point in figures[f"{side}_new_topic_s"].values())


def _json_columns(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## One more column in JSON that tasks build, batches of {figures['rows']:,} rows"
    rows = [
        (
            name,
            ratio_of(kind["ratio"]),
            thousands(kind["with_rows_per_s"]),
            thousands(kind["without_rows_per_s"]),
            f"{kind['with_cpu_s']['all']:.2f}",
            f"{kind['without_cpu_s']['all']:.2f}",
        )
        for name, kind in figures["kinds"].items()
    ]
    head = ("", "ratio", "with it, thousand rows/s", "without", "CPU s per million rows with it", "without")
    yield table(head, rows)


_SECTIONS = {
    "cluster": _cluster,
    "throughput": _throughput,
    "outputs": _outputs,
    "price": _price,
    "small_batches": _small_batches,
    "encoding": _encoding,
    "latency": _latency,
    "growth": _growth,
    "curves": _curves,
    **report_sections.SECTIONS,
    "json_columns": _json_columns,
}


def _millions(spread: Mapping[str, float]) -> str:
    low, high = spread["low"] / 1e6, spread["high"] / 1e6
    return f"{spread['median'] / 1e6:.2f} ({low:.2f} to {high:.2f}) million records/s"


if __name__ == "__main__":
    main()
