"""Latency at 5 000 rows/s with the default trigger: from the creation of a row to both sides showing it.

A process of its own (`latency_probe`) writes rows to a Kafka topic at an even pace, with the time of their creation,
and watches both ends: a read_committed consumer of the output topic, and the greatest id of the table. The stream reads
the input topic with Spark's connector. Its single partition keeps rows in order, so a batch that is visible shows all
rows up to its greatest id.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from benchmarks import writers
from benchmarks.figures import quantile
from benchmarks.runs import PARTITIONS
from benchmarks.workbench import ROOT, Workbench

if TYPE_CHECKING:
    from benchmarks.scale import Scale

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
        name = bench.new_name()
        source = f"{name}_in"
        bench.new_topic(name, partitions=PARTITIONS)
        bench.new_topic(source, partitions=1)
        bench.execute(f"CREATE TABLE {name} ({_TABLE})")
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
            stream.writeStream.foreachBatch(writers.ours(bench, writers.Task(topic=name, table=name, key="id")))
            .option("checkpointLocation", str(bench.directory / "checkpoint"))
            .start()
        )
        try:
            seen = _probe(bench, source, name, seconds)
        except subprocess.SubprocessError as error:
            message = f"not all rows became visible; the query says: {query.exception()}"
            raise SystemExit(message) from error
        finally:
            query.stop()
        return _figures(seen)


def _probe(bench: Workbench, source: str, name: str, seconds: int) -> dict[str, list[float]]:
    """Run the probe; for each row the seconds until each side showed it."""
    arguments = {
        "bootstrap": bench.servers.bootstrap,
        "url": bench.servers.url,
        "source": source,
        "topic": name,
        "table": name,
        "partitions": PARTITIONS,
        "rows_per_s": ROWS_PER_S,
        "warm_up_s": WARM_UP_S,
        "seconds": seconds,
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.latency_probe", json.dumps(arguments)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=WARM_UP_S + seconds + _PROBE_GRACE_S,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    seen: dict[str, list[float]] = json.loads(done.stdout)
    return seen


def _figures(seen: dict[str, list[float]]) -> dict[str, Any]:
    kafka, table = seen["kafka_s"], seen["table_s"]
    visible = [max(both) for both in zip(kafka, table, strict=True)]
    apart = [abs(first - second) for first, second in zip(kafka, table, strict=True)]
    found: dict[str, Any] = {"rows": len(visible), "rows_per_s": ROWS_PER_S}
    for name, values in (("visible", visible), ("kafka", kafka), ("table", table), ("apart", apart)):
        found |= {f"{name}_p50_s": quantile(values, 0.5), f"{name}_p99_s": quantile(values, 0.99)}
    print(
        f"{len(visible)} rows at {ROWS_PER_S} rows/s: visible in both p50 {found['visible_p50_s']:.3f} s, "
        f"p99 {found['visible_p99_s']:.3f} s; Kafka p50 {found['kafka_p50_s']:.3f} s, table p50 "
        f"{found['table_p50_s']:.3f} s; apart p50 {found['apart_p50_s'] * 1000:.0f} ms, "
        f"p99 {found['apart_p99_s'] * 1000:.0f} ms",
        flush=True,
    )
    return found
