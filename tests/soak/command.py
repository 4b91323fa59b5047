"""Write thousands of small batches, fail if memory, files or connections grow, and compare both sides."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from spark_2pc_sink import recover
from spark_2pc_sink.testing import KafkaBroker, PostgresServer, assert_same_multiset, read_topic, wait_until
from tests.harness.sql import run_sql
from tests.soak import bare_load, spark_load
from tests.soak.child import GO_ON, Child
from tests.soak.verdict import (
    BARE_HANDLES,
    BARE_MEMORY,
    HEAP,
    HISTORY_BATCHES,
    MEASURES,
    PARTITIONS,
    SINKS,
    Observer,
    Sample,
    judge,
    judged_batches,
    table,
)

#: Enough for a slope of the judged half, and rare enough that the loads are seldom held.
SAMPLES: Final = 40
#: Before the first sample both loads have written this many batches: everything is loaded and connected.
WARM_UP_BATCHES: Final = 5
_START_DEADLINE_S: Final = 600.0
_SECONDS_PER_MINUTE: Final = 60
_KIB_PER_MIB: Final = 1024
_TABLES: Final = {name: name.replace("-", "_") for name in SINKS}
_ROWS_PER_BATCH: Final = {"soak-spark": spark_load.ROWS_PER_BATCH, "soak-bare": bare_load.ROWS_PER_BATCH}
_OF_SPARK: Final = {"key": "cast(id AS string)", "value": "payload", "mode": "upsert", "upsert_keys": ["id"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 when nothing grew and both sides have every row once."""
    options = _parser().parse_args(arguments)
    with TemporaryDirectory(prefix="soak-") as folder, _servers() as (broker, database):
        samples = _run(broker, database, Path(folder), minutes=options.minutes)
        verdicts = [judge(measure, samples) for measure in MEASURES]
        print("\n".join(table(verdicts)))
        print(_sensitivity(samples))
        _compare(broker, database)
    failed = sum(not verdict.passed for verdict in verdicts)
    print(f"measures={len(verdicts)} grown={failed} batches={sum(samples[-1].batches.values())}")
    return int(failed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=_minutes, default=10.0, help="how long to write batches, in minutes (default: 10)"
    )
    return parser


def _minutes(text: str) -> float:
    minutes = float(text)
    if not (math.isfinite(minutes) and minutes > 0):
        message = f"must be a positive number of minutes, not {text}"
        raise argparse.ArgumentTypeError(message)
    return minutes


@contextmanager
def _servers() -> Iterator[tuple[KafkaBroker, str]]:
    with KafkaBroker() as broker, PostgresServer() as postgres:
        database = postgres.create_database("soak")
        for name, target in _TABLES.items():
            broker.create_topic(name, partitions=PARTITIONS)
            run_sql(database, f"CREATE TABLE {target} (id bigint PRIMARY KEY, payload text NOT NULL)")
        yield broker, database


def _run(broker: KafkaBroker, database: str, folder: Path, *, minutes: float) -> list[Sample]:
    sinks = (_sink("soak-spark", broker, database, **_OF_SPARK), _sink("soak-bare", broker, database))
    with Child(spark_load.__name__, {"sink": sinks[0]}, folder / "spark") as spark:
        # Alone: Spark's start takes everything that the machine has.
        _warm_up(spark)
        with Child(bare_load.__name__, {"sink": sinks[1]}, folder / "bare") as bare:
            _warm_up(bare)
            return _watch(Observer(broker=broker, database=database, spark=spark, bare=bare), minutes)


def _warm_up(load: Child) -> None:
    wait_until(
        lambda: load.ask(GO_ON)["batches"] >= WARM_UP_BATCHES,
        deadline_s=_START_DEADLINE_S,
        what=f"{WARM_UP_BATCHES} batches of {load.module}",
        interval_s=1.0,
    )


def _watch(observer: Observer, minutes: float) -> list[Sample]:
    samples = _sample(observer, minutes * _SECONDS_PER_MINUTE)
    written = observer.end()
    print("batches written: " + ", ".join(f"{count} by the {name} load" for name, count in written.items()))
    return samples


def _sink(name: str, broker: KafkaBroker, database: str, **more: Any) -> Mapping[str, Any]:
    return {
        "transactional_id": name,
        "kafka": {"bootstrap.servers": broker.bootstrap},
        "database": database,
        "topic": name,
        "table": _TABLES[name],
        "history_batches": HISTORY_BATCHES,
        **more,
    }


def _sample(observer: Observer, duration_s: float) -> list[Sample]:
    """Take samples at even distances, as far as the machine allows."""
    begun_s = time.monotonic()
    samples: list[Sample] = []
    while (at_s := time.monotonic() - begun_s) <= duration_s:
        batches, values = observer.take()
        samples.append(Sample(at_s, batches, values))
        next_s = begun_s + at_s + duration_s / SAMPLES
        time.sleep(max(0.0, next_s - time.monotonic()))
    return samples


def _sensitivity(samples: Sequence[Sample]) -> str:
    """The smallest leak per batch that would have been detected."""
    spark, bare = (max(1, judged_batches(samples, load)) for load in ("spark", "bare"))
    bounds = {measure.name: measure.growth_max for measure in MEASURES}
    heap_kib = bounds[HEAP] * _KIB_PER_MIB / spark
    memory_kib = bounds[BARE_MEMORY] * _KIB_PER_MIB / bare
    return (
        f"judged {spark} batches of Spark and {bare} of the bare driver; would have failed on a leak of "
        f"{heap_kib:.1f} KiB of Java heap per batch of Spark, of {memory_kib:.1f} KiB per batch of the bare driver, "
        f"or of one file handle in {bare / bounds[BARE_HANDLES]:.0f} batches of the bare driver"
    )


def _compare(broker: KafkaBroker, database: str) -> None:
    """Both sides hold every row of every batch that the state row names, each once."""
    for name in SINKS:
        kafka = {"bootstrap.servers": broker.bootstrap}
        report = recover(transactional_id=name, kafka=kafka, database=database)
        assert report.settled, report
        ((batch,),) = run_sql(
            database, "SELECT batch_id FROM kafka_transaction_state WHERE transactional_id = %s", name
        )
        wanted = range((batch + 1) * _ROWS_PER_BATCH[name])
        rows = run_sql(database, f"SELECT id, payload FROM {_TABLES[name]}")
        assert_same_multiset((number for number, _ in rows), wanted, what=f"rows of {name}")
        records = read_topic(broker.bootstrap, name)
        found = ((int(record.key or b""), (record.value or b"").decode()) for record in records)
        assert_same_multiset(found, rows, what=f"committed records of {name}")
        print(f"{name}: {batch + 1} batches, {len(rows)} rows and {len(records)} records; none missing, no duplicates")
