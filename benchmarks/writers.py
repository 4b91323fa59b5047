"""Who writes a batch: this sink, or the pair that a job uses today without exactly once.

The pair is Spark's Kafka sink, then Spark's JDBC sink, at their best settings: ``reWriteBatchedInserts=true`` and
batches of 10 000 rows for JDBC; linger and batch size for Kafka. For upserts, which Spark's JDBC sink does not know,
it writes to an unlogged staging table without an index, and moves the rows by one INSERT … ON CONFLICT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import sqlalchemy

from spark_2pc_sink import DualWriteSink, Records, Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.workbench import Workbench

Writer = Callable[["DataFrame", int], None]

#: Of the pair's Kafka producer; `tuning` compares them with others.
KAFKA_TUNED = {
    "linger.ms": "50",
    "batch.size": "524288",
    "buffer.memory": "67108864",
    "compression.zstd.level": "1",
}
JDBC_BATCH_ROWS = "10000"


@dataclass(frozen=True)
class Task:
    """What is to be written where.

    Attributes:
        topic: exists already.
        table: exists already; its first column is ``id``, the primary key.
        key: SQL expression of the record's key, None for records without one.
        upsert: rows replace those with the same id.
        more: other topics and tables that get the same rows.
    """

    topic: str
    table: str
    key: str | None
    upsert: bool = False
    more: tuple[Task, ...] = ()

    @property
    def all(self) -> tuple[Task, ...]:
        """Each topic with its table."""
        return (self, *self.more)


def ours(bench: Workbench, task: Task, **options: Any) -> DualWriteSink:
    """This sink, with its defaults and zstd; of several topics and tables it is one sink."""
    common = {
        "transactional_id": task.topic,
        "kafka": {"bootstrap.servers": bench.servers.bootstrap, "compression.type": "zstd"},
        "database": bench.servers.url,
        **options,
    }
    mode: Literal["append", "upsert"] = "upsert" if task.upsert else "append"
    keys = ["id"] if task.upsert else []
    if not task.more:
        return DualWriteSink(topic=task.topic, key=task.key, table=task.table, mode=mode, upsert_keys=keys, **common)
    topics = [Records(each.topic, key=each.key) for each in task.all]
    return DualWriteSink(writes=[*topics, *(Rows(each.table, mode=mode, keys=keys) for each in task.all)], **common)


def ours_each(bench: Workbench, task: Task) -> Writer:
    """A sink, and so a decision, for each topic and its table, one after the other from a batch that is kept."""
    sinks = [ours(bench, replace(each, more=())) for each in task.all]

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        for sink in sinks:
            sink(batch, batch_id)
        batch.unpersist()

    return write


def pair(bench: Workbench, task: Task, *, persist: bool, tuned: Mapping[str, str] = KAFKA_TUNED) -> Writer:
    """Spark's Kafka sink, then Spark's JDBC sink, for each topic and its table.

    Args:
        bench: the servers.
        task: what and where.
        persist: keep the batch between the writes, instead of reading it again.
        tuned: settings of the Kafka producer.
    """
    for each in task.all:
        if each.upsert:
            bench.execute(f"CREATE UNLOGGED TABLE {_staging(each)} (LIKE {each.table})")

    def write(batch: DataFrame, _: int) -> None:
        if persist:
            batch.persist()
        for each in task.all:
            write_kafka(bench, each, batch, tuned)
            _write_table(bench, each, batch)
        if persist:
            batch.unpersist()

    return write


def write_kafka(bench: Workbench, task: Task, batch: DataFrame, tuned: Mapping[str, str]) -> None:
    """Write a batch by Spark's Kafka sink, with some settings of its producer."""
    key = [] if task.key is None else [f"CAST({task.key} AS STRING) AS key"]
    settings = {"bootstrap.servers": bench.servers.bootstrap, "compression.type": "zstd", "acks": "all", **tuned}
    (
        batch.selectExpr(*key, "to_json(struct(*)) AS value")
        .write.format("kafka")
        .options(**{f"kafka.{name}": value for name, value in settings.items()})
        .option("topic", task.topic)
        .save()
    )


def _write_table(bench: Workbench, task: Task, batch: DataFrame) -> None:
    if not task.upsert:
        write_jdbc(bench, task.table, batch)
        return
    bench.execute(f"TRUNCATE {_staging(task)}")
    write_jdbc(bench, _staging(task), batch)
    bench.execute(_merge(task.table, _staging(task), batch.columns))


def _staging(task: Task) -> str:
    return f"{task.table}_staging"


def write_jdbc(bench: Workbench, table: str, batch: DataFrame) -> None:
    """Write a batch by Spark's JDBC sink."""
    url = sqlalchemy.make_url(bench.servers.url)
    (
        batch.write.format("jdbc")
        .option("url", f"jdbc:postgresql://{url.host}:{url.port}/{url.database}?reWriteBatchedInserts=true")
        .option("driver", "org.postgresql.Driver")
        .option("dbtable", table)
        .option("batchsize", JDBC_BATCH_ROWS)
        .option("user", str(url.username))
        .option("password", str(url.password))
        .mode("append")
        .save()
    )


def _merge(table: str, staging: str, columns: list[str]) -> str:
    names = ", ".join(columns)
    updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in columns if name != "id")
    return f"INSERT INTO {table} ({names}) SELECT {names} FROM {staging} ON CONFLICT (id) DO UPDATE SET {updates}"
