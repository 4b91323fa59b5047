"""Latency at 5 000 rows/s with the default trigger: from the creation of a row to both sides showing it.

A process of its own (`latency_probe`) writes rows to a Kafka topic at an even pace, with the time of their creation,
and watches both ends: a read_committed consumer of the output topic, and the greatest id of the table. The stream reads
the input topic with Spark's connector. Its single partition keeps rows in order, so a batch that is visible shows all
rows up to its greatest id. Behind it comes the same stream with a foreachBatch that only counts, as a floor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks import writers
from benchmarks.figures import quantile
from benchmarks.latency_probe import Sightings
from benchmarks.runs import PARTITIONS
from benchmarks.workbench import ROOT, Workbench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.scale import Scale
    from benchmarks.writers import Writer

ROWS_PER_S = 5_000
#: As long as a query that starts cold may take to have caught up with what was created meanwhile.
WARM_UP_S = 60
FULL_S = 120
QUICK_S = 40
#: Beyond what it measures, the probe may take so long to see the last rows.
_PROBE_GRACE_S = 120.0
_TABLE = "id bigint PRIMARY KEY, customer text, quantity integer, created_us bigint"
_COLUMNS = "id bigint, customer string, quantity int, created_us bigint"


def measure(scale: Scale) -> dict[str, Any]:
    """Figures of the rows that were created after the warm-up."""
    seconds = scale.pick(full=FULL_S, quick=QUICK_S)
    with Workbench() as bench:
        # The counting query comes second: its virtual machine is the older one.
        return _figures(_written(bench, seconds), _counted(bench, seconds))


def _written(bench: Workbench, seconds: int) -> dict[str, list[float]]:
    """For each row the seconds until each side showed it."""
    name = bench.new_name()
    bench.new_topic(name, partitions=PARTITIONS)
    bench.execute(f"CREATE TABLE {name} ({_TABLE})")
    writer = writers.ours(bench, writers.Task(topic=name, table=name, key="id"))
    return _probe(bench, name, writer, {"topic": name, "table": name, "seconds": seconds})


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
    """Run a query, and the probe beside it; what the probe tells."""
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
    arguments = {
        "bootstrap": bench.servers.bootstrap,
        "url": bench.servers.url,
        "source": source,
        "partitions": PARTITIONS,
        "rows_per_s": ROWS_PER_S,
        "warm_up_s": WARM_UP_S,
        **asked,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.latency_probe", json.dumps(arguments)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=WARM_UP_S + asked["seconds"] + _PROBE_GRACE_S,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        query.processAllAvailable()
    except subprocess.SubprocessError as error:
        message = f"not all rows became visible; the query says: {query.exception()}"
        raise SystemExit(message) from error
    finally:
        query.stop()
    seen: dict[str, list[float]] = json.loads(done.stdout)
    return seen


def _figures(seen: dict[str, list[float]], counted: list[float]) -> dict[str, Any]:
    kafka, table = seen["kafka_s"], seen["table_s"]
    visible = [max(both) for both in zip(kafka, table, strict=True)]
    apart = [abs(first - second) for first, second in zip(kafka, table, strict=True)]
    found: dict[str, Any] = {"rows": len(visible), "rows_per_s": ROWS_PER_S}
    of = {"visible": visible, "kafka": kafka, "table": table, "apart": apart, "counted": counted}
    for name, values in of.items():
        found |= {f"{name}_p50_s": quantile(values, 0.5), f"{name}_p99_s": quantile(values, 0.99)}
    for share in ("p50", "p99"):
        found[f"beyond_{share}_s"] = found[f"visible_{share}_s"] - found[f"counted_{share}_s"]
    print(
        f"{len(visible)} rows at {ROWS_PER_S} rows/s: visible in both p50 {found['visible_p50_s']:.3f} s, "
        f"p99 {found['visible_p99_s']:.3f} s; Kafka p50 {found['kafka_p50_s']:.3f} s, table p50 "
        f"{found['table_p50_s']:.3f} s; apart p50 {found['apart_p50_s'] * 1000:.0f} ms, "
        f"p99 {found['apart_p99_s'] * 1000:.0f} ms; counted alone p50 {found['counted_p50_s']:.3f} s, "
        f"p99 {found['counted_p99_s']:.3f} s",
        flush=True,
    )
    return found
