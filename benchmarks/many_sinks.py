"""Many sinks in one database: 1 to 40 queries of one session, each with a sink of its own, all at work.

Each query reads batches of a thousand rows from Spark's own generator as fast as it can. What is counted is the batches
that all of them complete within some seconds, once each has completed some. All counts take turns.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks import writers
from benchmarks.figures import Spread, falls
from benchmarks.inputs import NARROW
from benchmarks.workbench import Workbench
from spark_2pc_sink.testing import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.scale import Scale
    from spark_2pc_sink import DualWriteSink

SINKS: Final = (1, 2, 5, 10, 20, 40)
ROWS: Final = 1_000
PARTITIONS: Final = 4
FULL_SECONDS, QUICK_SECONDS = 20.0, 8.0
FULL_ROUNDS, QUICK_ROUNDS = 5, 2
WARM_UP_BATCHES: Final = 3
_WARM_UP_DEADLINE_S: Final = 300.0


def measure(scale: Scale) -> dict[str, Any]:
    """Rows each second of all sinks together, by their number."""
    seconds = scale.pick(full=FULL_SECONDS, quick=QUICK_SECONDS)
    rates: dict[int, list[float]] = {count: [] for count in SINKS}
    with Workbench() as bench:
        _rate(bench, 2, seconds)
        for _ in range(scale.pick(full=FULL_ROUNDS, quick=QUICK_ROUNDS)):
            for count, found in rates.items():
                found.append(_rate(bench, count, seconds))
                print(f"    {count:2} sinks: {found[-1]:6.0f} rows/s", flush=True)
    points = {count: Spread.of(found) for count, found in rates.items()}
    for count, point in points.items():
        print(f"{count:2} sinks: {point} rows/s", flush=True)
    return {
        "sinks": {str(count): point.json() for count, point in points.items()},
        "sinks_steepest_fall": min(falls([point.median for point in points.values()])),
        "rows": ROWS,
        "seconds": seconds,
    }


def _rate(bench: Workbench, count: int, seconds: float) -> float:
    """Rows that so many sinks write in a second, all together."""
    done: Counter[int] = Counter()
    with _queries(bench, count, done):
        wait_until(
            lambda: all(done[number] >= WARM_UP_BATCHES for number in range(count)),
            deadline_s=_WARM_UP_DEADLINE_S,
            what=f"{count} sinks to have written {WARM_UP_BATCHES} batches each",
        )
        before, begun_s = done.total(), time.perf_counter()
        time.sleep(seconds)
        return (done.total() - before) * ROWS / (time.perf_counter() - begun_s)


@contextmanager
def _queries(bench: Workbench, count: int, done: Counter[int]) -> Iterator[None]:
    """Queries that run meanwhile; ``done`` has the number of batches of each."""
    sinks, queries, names = [], [], []
    for number in range(count):
        name = bench.new_name()
        bench.new_topic(name, partitions=PARTITIONS)
        bench.execute(f"CREATE TABLE {name} ({NARROW.table})")
        sink = writers.ours(bench, writers.Task(topic=name, table=name, key="id"))
        frame = (
            bench.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", ROWS)
            .option("numPartitions", 1)
            .load()
            .selectExpr("value AS id", "0 AS turn")
            .selectExpr(*NARROW.select)
        )
        stream = frame.writeStream.foreachBatch(partial(_write, sink, done, number))
        queries.append(stream.option("checkpointLocation", str(bench.directory / f"checkpoint-{name}")).start())
        sinks.append(sink)
        names.append(name)
    try:
        yield
    finally:
        stops = [threading.Thread(target=query.stop) for query in queries]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
        for sink in sinks:
            sink.close()
        bench.execute(*(f"DROP TABLE {name}" for name in names))
    failed = [str(query.exception()) for query in queries if query.exception() is not None]
    if failed:
        message = f"{len(failed)} of {count} queries failed; the first: {failed[0]}"
        raise SystemExit(message)


def _write(sink: DualWriteSink, done: Counter[int], number: int, batch: DataFrame, batch_id: int) -> None:
    sink(batch, batch_id)
    done[number] += 1
