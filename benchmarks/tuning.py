"""What the pair's Kafka half takes with other settings of its producer: whether `writers.KAFKA_TUNED` are good ones.

Not one of those that run by default: ``python -m benchmarks tuning``.
"""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Spread
from benchmarks.inputs import NARROW, write_source
from benchmarks.runs import PARTITIONS
from benchmarks.workbench import Workbench
from benchmarks.writers import KAFKA_TUNED, Task, write_kafka

if TYPE_CHECKING:
    from benchmarks.scale import Scale

ROWS = 1_000_000
LINGERS_MS = ("0", "5", "50")
BATCH_SIZES = ("131072", "524288", "1048576")
ZSTD_LEVELS = ("1", "3")


def measure(scale: Scale) -> dict[str, Any]:
    """Seconds of each combination, in turns."""
    rows = scale.batch_rows(ROWS)
    names = ("linger.ms", "batch.size", "compression.zstd.level")
    combinations = [dict(zip(names, values, strict=True)) for values in product(LINGERS_MS, BATCH_SIZES, ZSTD_LEVELS)]
    seconds: dict[str, list[float]] = {}
    with Workbench() as bench:
        source = write_source(bench.spark, bench.directory / "tuning", NARROW, rows=rows, batches=1)
        _seconds(bench, source.path, {})
        for _ in range(scale.pick(full=5, quick=2)):
            for settings in combinations:
                name = ", ".join(f"{setting}={value}" for setting, value in settings.items())
                seconds.setdefault(name, []).append(_seconds(bench, source.path, settings))
    for name, times in sorted(seconds.items(), key=lambda item: Spread.of(item[1]).median):
        print(f"{name:70} {Spread.of(times)} s", flush=True)
    return {name: Spread.of(times).json() for name, times in seconds.items()}


def _seconds(bench: Workbench, path: Path, settings: dict[str, str]) -> float:
    name = bench.new_name()
    bench.new_topic(name, partitions=PARTITIONS)
    frame = bench.spark.read.parquet(str(path))
    begun = time.perf_counter()
    write_kafka(bench, Task(topic=name, table=name, key="id"), frame, {**KAFKA_TUNED, **settings})
    return time.perf_counter() - begun
