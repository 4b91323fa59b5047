"""Latency at 5 000 rows/s with the default trigger: from the creation of a row to both sides showing it.

A process of its own (`latency_probe`) writes rows to a Kafka topic at an even pace, with the time of their creation,
and watches both ends: a read_committed consumer of the output topic, and the greatest id of the table. The stream reads
the input topic with Spark's connector. Its single partition keeps rows in order, so a batch that is visible shows all
rows up to its greatest id. Behind it comes the same stream with a foreachBatch that only counts, as a floor, and then
with the pair that jobs use today.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import writers
from benchmarks.figures import quantile
from benchmarks.latency_probe import Sightings
from benchmarks.runs import PARTITIONS
from benchmarks.workbench import ROOT, Workbench

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from benchmarks.scale import Scale
    from benchmarks.writers import Task, Writer

ROWS_PER_S = 5_000
#: As long as a query that starts cold may take to have caught up with what was created meanwhile.
WARM_UP_S = 60
FULL_S = 120
QUICK_S = 40
#: Beyond what it measures, the probe may take so long to see the last rows.
_PROBE_GRACE_S = 120.0
#: The pair reads its batch twice, or keeps it between its writes: whichever shows rows sooner counts.
PERSISTED = (False, True)
#: Its producer waits for no further records.
_AT_ONCE = {"linger.ms": "0"}
_TABLE = "id bigint PRIMARY KEY, customer text, quantity integer, created_us bigint"
_COLUMNS = "id bigint, customer string, quantity int, created_us bigint"


def measure(scale: Scale) -> dict[str, Any]:
    """Figures of the rows that were created after the warm-up."""
    seconds = scale.pick(full=FULL_S, quick=QUICK_S)
    with Workbench() as bench:
        # Who comes later has the older virtual machine.
        seen, counted = written(bench, seconds), _counted(bench, seconds)
        pairs = {persist: _written_by_pair(bench, seconds, persist=persist) for persist in PERSISTED}
    return figures_of(seen, counted, pairs)


def written(
    bench: Workbench, seconds: int, make_writer: Callable[[Workbench, Task], Writer] = writers.ours
) -> dict[str, list[float]]:
    """For each row the seconds until each side of a writer showed it."""
    name = new_sides(bench)
    writer = make_writer(bench, writers.Task(topic=name, table=name, key="id"))
    return _probe(bench, name, writer, {"topic": name, "table": name, "seconds": seconds})


def _written_by_pair(bench: Workbench, seconds: int, *, persist: bool) -> dict[str, list[float]]:
    return written(bench, seconds, partial(writers.pair, persist=persist, tuned=_AT_ONCE))


def new_sides(bench: Workbench) -> str:
    """Make a topic and a table for the rows of the probe; the name of both."""
    name = bench.new_name()
    bench.new_topic(name, partitions=PARTITIONS)
    bench.execute(f"CREATE TABLE {name} ({_TABLE})")
    return name


def _counted(bench: Workbench, seconds: int) -> list[float]:
    """For each row the seconds until a foreachBatch that does nothing else had counted it."""
    counted = Sightings()

    def count(batch: DataFrame, _batch_id: int) -> None:
        before = counted.ids[-1] if counted.ids else -1
        # Its single partition keeps rows in order, from 0.
        counted.note(before + batch.count(), time.time())

    created = _probe(bench, bench.new_name(), count, {"topic": None, "table": None, "seconds": seconds})["created_s"]
    first = ROWS_PER_S * WARM_UP_S
    return [counted.first(row) - at_s for row, at_s in enumerate(created, first)]


def _probe(bench: Workbench, name: str, writer: Writer, asked: dict[str, Any]) -> dict[str, list[float]]:
    """Run a query and the probe in parallel; what the probe measured."""
    source = f"{name}_in"
    bench.new_topic(source, partitions=1)
    stream = (
        bench.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bench.servers.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr(f"from_json(CAST(value AS STRING), '{_COLUMNS}') AS row")
        .select("row.*")
    )
    query = (
        stream.writeStream.foreachBatch(writer)
        .option("checkpointLocation", str(bench.directory / f"checkpoint-{name}"))
        .start()
    )
    try:
        seen = watch(bench, source, asked)
        query.processAllAvailable()
    except subprocess.SubprocessError as error:
        message = f"not all rows became visible; the query says: {query.exception()}"
        raise SystemExit(message) from error
    finally:
        query.stop()
    return seen


def watch(bench: Workbench, source: str, asked: dict[str, Any]) -> dict[str, list[float]]:
    """Run the probe, while somebody reads the source; what the probe tells.

    Args:
        bench: the servers.
        source: the topic that the probe puts its rows into.
        asked: topic and table to watch, and for how many seconds.

    Raises:
        subprocess.SubprocessError: not all rows became visible; the probe has said how many.
    """
    arguments = {
        "bootstrap": bench.servers.bootstrap,
        "url": bench.servers.url,
        "source": source,
        "partitions": PARTITIONS,
        "rows_per_s": ROWS_PER_S,
        "warm_up_s": WARM_UP_S,
        **asked,
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.latency_probe", json.dumps(arguments)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=WARM_UP_S + asked["seconds"] + _PROBE_GRACE_S,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    seen: dict[str, list[float]] = json.loads(done.stdout)
    return seen


def both_sides(seen: dict[str, list[float]]) -> dict[str, list[float]]:
    """Of each row the seconds until both sides showed it, until each did, and between the two."""
    kafka, table = seen["kafka_s"], seen["table_s"]
    return {
        "visible": [max(both) for both in zip(kafka, table, strict=True)],
        "kafka": kafka,
        "table": table,
        "apart": [abs(first - second) for first, second in zip(kafka, table, strict=True)],
    }


def quantiles(of: dict[str, list[float]]) -> dict[str, float]:
    """p50 and p99 of each."""
    shares = {"p50": 0.5, "p99": 0.99}
    return {
        f"{name}_{label}_s": quantile(values, share) for name, values in of.items() for label, share in shares.items()
    }


def figures_of(
    seen: dict[str, list[float]], counted: list[float], pairs: dict[bool, dict[str, list[float]]]
) -> dict[str, Any]:
    """What `measure` tells; pure.

    Args:
        seen: for each row the seconds until each side of this sink showed it.
        counted: the same of a foreachBatch that only counts.
        pairs: the same as ``seen`` of the pair, by whether it keeps its batch.
    """
    of = both_sides(seen)
    by_persist = {persist: both_sides(each) for persist, each in pairs.items()}
    persists = min(by_persist, key=lambda persist: quantile(by_persist[persist]["visible"], 0.5))
    found: dict[str, Any] = {"rows": len(of["visible"]), "rows_per_s": ROWS_PER_S, "pair_persists": persists}
    pair = {f"pair_{name}": values for name, values in by_persist[persists].items()}
    found |= quantiles({**of, "counted": counted, **pair})
    for share in ("p50", "p99"):
        found[f"beyond_{share}_s"] = found[f"visible_{share}_s"] - found[f"counted_{share}_s"]
    print(
        f"{found['rows']} rows at {ROWS_PER_S} rows/s: visible in both p50 {found['visible_p50_s']:.3f} s, "
        f"p99 {found['visible_p99_s']:.3f} s; Kafka p50 {found['kafka_p50_s']:.3f} s, table p50 "
        f"{found['table_p50_s']:.3f} s; apart p50 {found['apart_p50_s'] * 1000:.0f} ms, "
        f"p99 {found['apart_p99_s'] * 1000:.0f} ms; counted alone p50 {found['counted_p50_s']:.3f} s, "
        f"p99 {found['counted_p99_s']:.3f} s; the pair p50 {found['pair_visible_p50_s']:.3f} s, "
        f"p99 {found['pair_visible_p99_s']:.3f} s, apart p50 {found['pair_apart_p50_s'] * 1000:.0f} ms",
        flush=True,
    )
    return found
