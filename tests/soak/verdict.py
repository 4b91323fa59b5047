"""Samples of a load, and whether a series of them grows. The judgement is arithmetic alone.

Only the second half of a run is judged: a process that has just started fills caches, pools and compiled code. The
growth of a measure is the Theil-Sen slope of that half (the median of the slopes between all pairs of samples) times
its length. A median does not follow single samples, so a peak in a few of them is not taken for growth, and a leak
is not hidden by one low sample at the end. What grows by more than the bound of its measure is a leak.

What has a natural limit, such as one state row for each sink, has a level as well, which no sample of the whole run
may exceed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil

from jdbc_state.connections import KEPT_S_MAX
from spark_2pc_sink.testing import KafkaBroker
from spark_2pc_sink.transactions import TransactionTool
from tests.harness.sql import run_sql
from tests.soak.child import GO_ON, HOLD, Child

#: Fewer samples in the judged half prove nothing.
JUDGED_SAMPLES_MIN: Final = 8


@dataclass(frozen=True)
class Measure:
    """Something that must not grow.

    Attributes:
        name: for the table; the same in `Sample.values`.
        growth_max: by how much the judged half may grow: the noise of the measure, and no more.
        level_max: what no sample may exceed; None where only growth matters.
        unit: '' for a count, 'MiB' for memory.
    """

    name: str
    growth_max: float
    level_max: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Sample:
    """What was seen at one time.

    Attributes:
        batches: how many each load had written by then.
        values: by the name of the measure; one that could not be taken is missing.
    """

    at_s: float
    batches: Mapping[str, int]
    values: Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """What became of one measure.

    Attributes:
        first, last, largest: of all samples; None where there is none.
        growth: of the judged half; None where it has too few samples.
        reason: why it fails; '' when nothing is wrong.
    """

    measure: Measure
    first: float | None
    last: float | None
    largest: float | None
    growth: float | None
    reason: str

    @property
    def passed(self) -> bool:
        return not self.reason


def judged_half(samples: Sequence[Sample]) -> list[Sample]:
    if not samples:
        return []
    middle_s = (samples[0].at_s + samples[-1].at_s) / 2
    return [sample for sample in samples if sample.at_s >= middle_s]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The Theil-Sen slope: the median over all pairs of points."""
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2]
    if not slopes:
        message = f"{len(points)} points have no slope"
        raise ValueError(message)
    return median(slopes)


def judge(measure: Measure, samples: Sequence[Sample]) -> Verdict:
    name = measure.name
    values = [sample.values[name] for sample in samples if name in sample.values]
    points = [(sample.at_s, sample.values[name]) for sample in judged_half(samples) if name in sample.values]
    growth = slope(points) * (points[-1][0] - points[0][0]) if len(points) >= JUDGED_SAMPLES_MIN else None
    return Verdict(
        measure=measure,
        first=values[0] if values else None,
        last=values[-1] if values else None,
        largest=max(values, default=None),
        growth=growth,
        reason=_reason(measure, max(values, default=None), growth, len(points)),
    )


def _reason(measure: Measure, largest: float | None, growth: float | None, points: int) -> str:
    if largest is None or growth is None:
        return f"only {points} samples in the second half; at least {JUDGED_SAMPLES_MIN} are needed"
    if measure.level_max is not None and largest > measure.level_max:
        return f"above {measure.level_max:g}"
    if growth > measure.growth_max:
        return f"grows by more than {measure.growth_max:g}"
    return ""


def judged_batches(samples: Sequence[Sample], load: str) -> int:
    half = judged_half(samples)
    return half[-1].batches[load] - half[0].batches[load] if half else 0


_COLUMNS: Final = ("first", "last", "largest", "growth", "bound")


def table(verdicts: Sequence[Verdict]) -> list[str]:
    numbers = "".join(f"{name:>9}" for name in _COLUMNS)
    return [f"{'measure':46}{numbers}  verdict", *map(_row, verdicts)]


def _row(verdict: Verdict) -> str:
    measure = verdict.measure
    values = (verdict.first, verdict.last, verdict.largest, verdict.growth, measure.growth_max)
    numbers = "".join(f"{'-' if value is None else format(value, '.1f'):>9}" for value in values)
    name = f"{measure.name} ({measure.unit})" if measure.unit else measure.name
    return f"{name:46}{numbers}  {'ok' if verdict.passed else f'FAILED: {verdict.reason}'}"


SINKS: Final = ("soak-spark", "soak-bare")
#: Kept by each sink for audits; the table must not grow beyond.
HISTORY_BATCHES: Final = 20
#: Of each topic.
PARTITIONS: Final = 2
_BYTES_PER_MIB: Final = 1024 * 1024
HEAP: Final = "Spark driver, Java: heap after collection"
BARE_MEMORY: Final = "bare driver: memory"
BARE_HANDLES: Final = "bare driver: file handles"

#: Bounds are a few times the noise that runs on a busy machine have shown: what leaks is seen because it adds up over
#: the batches of the judged half, and the report says how little of each would have been seen.
MEASURES: Final = (
    # Memory.
    Measure("Spark driver, Python: memory", 4, unit="MiB"),
    Measure("Spark driver, Java: memory", 48, unit="MiB"),
    Measure(HEAP, 3, unit="MiB"),
    Measure("Spark driver, Java: outside the heap", 12, unit="MiB"),
    Measure("Spark driver, Java: classes", 300),
    Measure("Spark's blocks in memory", 0.5, unit="MiB"),
    Measure("Spark workers, Python: memory", 16, unit="MiB"),
    Measure(BARE_MEMORY, 4, unit="MiB"),
    # What a process has open.
    Measure("Spark driver, Python: file handles", 3),
    Measure("Spark driver, Java: file handles", 12),
    Measure("Spark workers, Python: file handles", 12),
    Measure(BARE_HANDLES, 3),
    Measure("Spark driver, Python: threads", 3),
    Measure("Spark driver, Java: threads", 12),
    Measure("bare driver: threads", 2),
    Measure("Spark workers, Python: processes", 1, 6),
    # Kafka.
    Measure("Kafka: connections", 2, 20),
    Measure("Kafka: transactional ids", 0, len(SINKS)),
    # A producer id serves 32 766 transactions; Kafka forgets the one before after a day.
    Measure("Kafka: producers of a partition", 0.5, 3),
    # PostgreSQL.
    # Each driver keeps one, for a minute (jdbc_state.connections); one that was just given back takes a moment to end.
    Measure("PostgreSQL: sessions", 0.5, len(SINKS) + 1),
    Measure("PostgreSQL: age of the oldest session, s", 60, KEPT_S_MAX + 30),
    Measure("PostgreSQL: prepared transactions", 0, 0),
    Measure("PostgreSQL: other tables of the sink", 0, 0),
    Measure("PostgreSQL: relations", 2),
    Measure("PostgreSQL: state rows", 0, len(SINKS)),
    Measure("PostgreSQL: history rows", 0.5, len(SINKS) * HISTORY_BATCHES * 1.1),
    Measure("PostgreSQL: state tables", 0.5, 4, unit="MiB"),
    # Files.
    Measure("files: Spark's and temporary ones", 15),
    Measure("files: of the checkpoint", 15),
)

_SERVER = """
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()),
       (SELECT coalesce(extract(epoch FROM max(now() - backend_start)), 0)::float8
        FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()),
       (SELECT count(*) FROM pg_prepared_xacts),
       (SELECT count(*) FROM pg_class WHERE starts_with(relname, '_2pc_') AND relkind = 'r'),
       (SELECT count(*) FROM pg_class),
       (SELECT count(*) FROM kafka_transaction_state),
       (SELECT count(*) FROM kafka_transaction_state_history),
       (SELECT sum(pg_total_relation_size(name::regclass))::float8
        FROM unnest(ARRAY['kafka_transaction_state', 'kafka_transaction_state_history']) AS name)
"""


@dataclass(frozen=True, kw_only=True)
class Observer:
    """Takes samples of both loads and both servers.

    Args:
        broker: the one that both loads write to.
        database: SQLAlchemy URL of the one that both loads write to.
    """

    broker: KafkaBroker
    database: str
    spark: Child
    bare: Child

    def take(self) -> tuple[dict[str, int], dict[str, float]]:
        """The batches that each load has written by now, and a value for each measure, with both loads at rest."""
        spark, bare = self.spark.ask(HOLD), self.bare.ask(HOLD)
        try:
            return {"spark": spark["batches"], "bare": bare["batches"]}, self._values(spark, bare)
        finally:
            self.spark.ask(GO_ON)
            self.bare.ask(GO_ON)

    def _values(self, spark: Mapping[str, Any], bare: Mapping[str, Any]) -> dict[str, float]:
        return {
            HEAP: spark["heap_mib"],
            "Spark driver, Java: outside the heap": spark["non_heap_mib"],
            "Spark driver, Java: classes": spark["classes"],
            "Spark's blocks in memory": spark["blocks_mib"],
            **self._processes(),
            # Before the tool for transactions connects.
            "Kafka: connections": float(_connections(self.broker)),
            **self._kafka(),
            **self._postgres(),
            "files: Spark's and temporary ones": float(
                _files(self.spark.folder / "spark", self.spark.temporary, self.bare.temporary)
            ),
            "files: of the checkpoint": float(_files(self.spark.folder / "checkpoint")),
        }

    def end(self) -> dict[str, int]:
        return {"Spark": self.spark.end()["batches"], "bare": self.bare.end()["batches"]}

    def _processes(self) -> dict[str, float]:
        driver = psutil.Process(self.spark.pid)
        descendants = driver.children(recursive=True)
        machines = [process for process in descendants if _name(process) == "java"]
        workers = [process for process in descendants if _name(process).startswith("python")]
        return {
            **_used("Spark driver, Python", [driver]),
            **_used("Spark driver, Java", machines),
            **_used("Spark workers, Python", workers),
            "Spark workers, Python: processes": float(len(workers)),
            **_used("bare driver", [psutil.Process(self.bare.pid)]),
        }

    def _kafka(self) -> dict[str, float]:
        with TransactionTool(kafka={"bootstrap.servers": self.broker.bootstrap}) as tool:
            ids = tool.list_transactions()
            producers = max(
                len(tool.describe_producers(topic, partition)) for topic in SINKS for partition in range(PARTITIONS)
            )
        return {"Kafka: transactional ids": float(len(ids)), "Kafka: producers of a partition": float(producers)}

    def _postgres(self) -> dict[str, float]:
        names = (
            "sessions",
            "age of the oldest session, s",
            "prepared transactions",
            "other tables of the sink",
            "relations",
            "state rows",
            "history rows",
            "state tables",
        )
        found = [float(value) for value in run_sql(self.database, _SERVER)[0]]
        found[-1] /= _BYTES_PER_MIB
        return {f"PostgreSQL: {name}": value for name, value in zip(names, found, strict=True)}


def _used(role: str, processes: list[psutil.Process]) -> dict[str, float]:
    """Memory, file handles and threads of processes together; without one that ends while it is looked at."""
    memory = handles = threads = 0
    for process in processes:
        try:
            used = (process.memory_info().rss, process.num_fds(), process.num_threads())
        except psutil.NoSuchProcess:
            continue
        memory, handles, threads = memory + used[0], handles + used[1], threads + used[2]
    return {f"{role}: memory": memory / _BYTES_PER_MIB, f"{role}: file handles": handles, f"{role}: threads": threads}


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _connections(broker: KafkaBroker) -> int:
    port = int(broker.bootstrap.rpartition(":")[2])
    found = psutil.Process(broker.pid).net_connections("tcp")
    return sum(1 for one in found if one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port)


def _files(*folders: Path) -> int:
    # Walked by names alone: files come and go meanwhile.
    return sum(len(names) for folder in folders for _, _, names in os.walk(folder))
