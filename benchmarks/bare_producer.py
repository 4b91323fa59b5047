"""A bare producer: the records of a batch in transactions of librdkafka, without Spark and without a database."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from benchmarks.processes import spent
from benchmarks.runs import BatchFigures

if TYPE_CHECKING:
    from benchmarks.inputs import Source
    from benchmarks.workbench import Workbench

_DEADLINE_S = 300.0
#: Records that librdkafka takes before some are acknowledged.
_QUEUED_MAX = 10_000_000


def records_of(bench: Workbench, source: Source) -> list[tuple[str, str]]:
    """Key and value of each record of the first batch, as the sink writes them."""
    rows = bench.spark.read.parquet(str(source.first(1).path))
    table = rows.selectExpr("CAST(id AS STRING)", "to_json(struct(*))").toArrow()
    return list(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))


def transactions(
    bench: Workbench, records: list[tuple[str, str]], *, partitions: int, number: int
) -> list[BatchFigures]:
    """So many transactions into one new topic, each from its first record to the answer to its commit."""
    name = bench.new_name()
    bench.new_topic(name, partitions=partitions)
    producer = Producer(
        {
            "bootstrap.servers": bench.servers.bootstrap,
            "transactional.id": name,
            "compression.type": "zstd",
            "compression.level": 1,
            "linger.ms": 50,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": _QUEUED_MAX,
        }
    )
    producer.init_transactions(_DEADLINE_S)
    taken = []
    for _ in range(number):
        before, begun_s = bench.tree.cpu_s(), time.perf_counter()
        producer.begin_transaction()
        for key, value in records:
            producer.produce(name, value, key)
        producer.flush(_DEADLINE_S)
        producer.commit_transaction(_DEADLINE_S)
        taken.append(BatchFigures(time.perf_counter() - begun_s, spent(before, bench.tree.cpu_s())))
    return taken
