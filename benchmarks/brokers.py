"""The reference coordinator compared with Apache Kafka, in one run on one machine, with this package's own writer.

Throughput: one transaction of random values without compression, on one partition and on eight. Latency: begin,
produce one record, prepare, commit, one after the other. The two servers take turns; ratios are of medians. What
differs and is not evened out: the reference coordinator waits for the disk before it answers (fsync), Kafka does not.

    python -m benchmarks.brokers --megabytes 256 --transactions 300 --runs 3
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
import pyarrow as pa

from benchmarks.figures import quantile
from spark_2pc_sink.producer import TransactionalWriter
from spark_2pc_sink.testing import KafkaBroker, ReferenceCoordinator
from spark_2pc_sink.testing.kafka_broker import LocalBroker

VALUE_BYTES = 1_000
ROWS_PER_APPEND = 10_000
PARTITION_COUNTS = (1, 8)
SERVERS: dict[str, Callable[[], LocalBroker]] = {
    "kafka": lambda: KafkaBroker(two_phase_commit=True),
    "reference": lambda: ReferenceCoordinator(two_phase_commit=True),
}


@dataclass
class Measured:
    """What one server did.

    Attributes:
        start_s: seconds from the start of the process to the first answer.
        idle_mb: resident memory right after it.
        mb_per_s: of each run, by number of partitions.
        latencies_ms: of each transaction of one record.
    """

    start_s: float = 0.0
    idle_mb: float = 0.0
    mb_per_s: dict[int, list[float]] = field(default_factory=dict)
    latencies_ms: list[float] = field(default_factory=list)


def main() -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256, help="of values in each throughput transaction")
    parser.add_argument("--transactions", type=int, default=300, help="of one record, in each run")
    parser.add_argument("--runs", type=int, default=3, help="counted ones, after one to warm up")
    given = parser.parse_args()
    brokers: dict[str, LocalBroker] = {}
    results: dict[str, Measured] = {}
    try:
        for name, make in SERVERS.items():
            brokers[name] = make()
            results[name] = _started(brokers[name])
            for count in PARTITION_COUNTS:
                brokers[name].create_topic(f"bench-{count}", partitions=count)
        for run in range(given.runs + 1):
            for name, broker in brokers.items():
                _run(broker, results[name] if run else Measured(), given.megabytes, given.transactions)
    finally:
        for broker in brokers.values():
            broker.close()
    _show(results)


def _started(broker: LocalBroker) -> Measured:
    begun = time.perf_counter()
    broker.start()
    start_s = time.perf_counter() - begun
    return Measured(start_s=start_s, idle_mb=psutil.Process(broker.pid).memory_info().rss / 1e6)


def _run(broker: LocalBroker, measured: Measured, megabytes: int, transactions: int) -> None:
    kafka = {"bootstrap.servers": broker.bootstrap, "compression.type": "none"}
    rows = _rows()
    for count in PARTITION_COUNTS:
        with TransactionalWriter(
            transactional_id=f"throughput-{count}", kafka=kafka, topic=f"bench-{count}", two_phase_commit=True
        ) as writer:
            writer.init_transactions()
            begun = time.perf_counter()
            writer.begin_transaction()
            for _ in range(max(1, megabytes * 1_000_000 // (VALUE_BYTES * ROWS_PER_APPEND))):
                writer.append(rows)
            writer.prepare_transaction()
            writer.commit_transaction()
            seconds = time.perf_counter() - begun
        measured.mb_per_s.setdefault(count, []).append(megabytes / seconds)
    with TransactionalWriter(transactional_id="latency", kafka=kafka, topic="bench-1", two_phase_commit=True) as writer:
        writer.init_transactions()
        one = rows.slice(0, 1)
        for _ in range(transactions):
            begun = time.perf_counter()
            writer.begin_transaction()
            writer.append(one)
            writer.prepare_transaction()
            writer.commit_transaction()
            measured.latencies_ms.append((time.perf_counter() - begun) * 1000)


def _rows() -> pa.Table:
    chance = random.Random(1)
    keys = [f"{number:08}" for number in range(ROWS_PER_APPEND)]
    return pa.table({"key": keys, "value": [chance.randbytes(VALUE_BYTES) for _ in keys]})


def _show(results: dict[str, Measured]) -> None:
    lines: list[tuple[str, Callable[[Measured], float]]] = [
        ("start to ready, s", lambda found: found.start_s),
        ("idle memory, MB", lambda found: found.idle_mb),
        *(
            (
                f"produce, {count} partition(s), MB/s",
                lambda found, count=count: statistics.median(found.mb_per_s[count]),
            )
            for count in PARTITION_COUNTS
        ),
        ("one-record transaction p50, ms", lambda found: quantile(found.latencies_ms, 0.5)),
        ("one-record transaction p99, ms", lambda found: quantile(found.latencies_ms, 0.99)),
    ]
    print(f"{'':34}" + "".join(f"{name:>12}" for name in results) + f"{'ratio':>12}")
    for label, figure in lines:
        values = [figure(found) for found in results.values()]
        print(f"{label:34}" + "".join(f"{value:12.2f}" for value in values) + f"{values[-1] / values[0]:12.2f}")


if __name__ == "__main__":
    main()
