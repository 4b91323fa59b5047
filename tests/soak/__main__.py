"""Write thousands of small batches, fail if memory, files or connections grow, and compare both sides."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil

from jdbc_state.connections import KEPT_S_MAX
from spark_2pc_sink import recover
from spark_2pc_sink.testing import KafkaBroker, PostgresServer, assert_same_multiset, read_topic, wait_until
from spark_2pc_sink.transactions import TransactionTool
from tests.harness.sql import run_sql
from tests.soak import bare_load, spark_load
from tests.soak.child import GO_ON, HOLD, Child
from tests.soak.verdict import Measure, Sample, judge, judged_batches, table

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
    # Each driver keeps one, for a minute (jdbc_state.connections), and one that shows its claim (jdbc_state.sessions);
    # one that was just given back takes a moment to end.
    Measure("PostgreSQL: sessions", 0.5, 2 * len(SINKS) + 1),
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


def main() -> int:
    """Run the command; 0 when nothing grew and both sides have every row once."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to write batches (default: 10)")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="soak-") as folder, _servers() as (broker, database):
        samples = _run(broker, database, Path(folder), minutes=options.minutes)
        verdicts = [judge(measure, samples) for measure in MEASURES]
        print("\n".join(table(verdicts)))
        print(_sensitivity(samples))
        _compare(broker, database)
    failed = sum(not verdict.passed for verdict in verdicts)
    print(f"measures={len(verdicts)} grown={failed} batches={sum(samples[-1].batches.values())}")
    return int(failed > 0)


@contextmanager
def _servers() -> Iterator[tuple[KafkaBroker, str]]:
    # Each batch adds a line to the history and deletes one, whose room is free once it is vacuumed: by default a minute
    # later, which a short run does not have.
    with KafkaBroker() as broker, PostgresServer(settings={"autovacuum_naptime": "1s"}) as postgres:
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
            observer = Observer(broker=broker, database=database, spark=spark, bare=bare)
            samples = _sample(observer, minutes * _SECONDS_PER_MINUTE)
            for load in (spark, bare):
                print(f"{load.module}: {load.end()['batches']} batches written")
            return samples


def _warm_up(load: Child) -> None:
    wait_until(
        lambda: load.ask(GO_ON)["batches"] >= WARM_UP_BATCHES,
        deadline_s=_START_DEADLINE_S,
        what=f"{WARM_UP_BATCHES} batches of {load.module}",
        interval_s=1.0,
    )


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


# --- what is seen --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Observer:
    """Takes samples of both loads and both servers."""

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


if __name__ == "__main__":
    sys.exit(main())
