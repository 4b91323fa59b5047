"""The price of exactly once: this sink as it is, and the same data path without what makes it exactly once.

Without means: records are written by an idempotent producer outside of any transaction, so there are no markers and
the broker verifies no transaction; nothing is asked of the transaction coordinator; the state row is kept in memory,
so no generation is checked and nothing but the rows is written to the database, in one transaction of their own. The
rest (expressions, shuffle, encoding, produce, COPY) is the product's own code. Its parts are replaced by those below
while the sink makes its connections, and in Spark's workers when they unpickle an `UntransactionalPair`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from confluent_kafka import Consumer, TopicPartition

from benchmarks import writers
from benchmarks.checks import Contents, compare
from benchmarks.figures import Spread
from benchmarks.inputs import NARROW, Source, write_source
from benchmarks.runs import PARTITIONS, RunFigures, cpu_per_million, run, throughput
from benchmarks.workbench import Workbench
from jdbc_state.database import Database
from jdbc_state.memory import MemoryStateStore
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.producer import produce_session
from spark_2pc_sink.producer.transaction_client import EndTxnAnswer, InitializedProducer, TransactionClient
from spark_2pc_sink.sink import sink as sink_module
from spark_2pc_sink.wire.record_batch import encode_record_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

    from benchmarks.scale import Scale
    from benchmarks.writers import Task, Writer
    from jdbc_state import DecidingTransaction, Decision, StoreSettings

ROWS = 1_000_000
#: The names under which the product calls what writes the pair into a batch.
_CALLED_WITH_PAIR = ("encode_record_batch", "assign_producer")
#: The low byte of the attributes of a record batch, and its transactional bit (KIP-98, "Message Format").
_ATTRIBUTES_POSITION = 22
_TRANSACTIONAL_BIT = 0x10
_WATERMARK_DEADLINE_S = 10.0


class UntransactionalPair(ProducerIdAndEpoch):
    """A pair whose batches are written outside of transactions, wherever it is sent."""

    def __reduce__(self) -> tuple[Callable[[int, int], UntransactionalPair], tuple[int, int]]:
        return _unpickled, (self.producer_id, self.epoch)


def _unpickled(producer_id: int, epoch: int) -> UntransactionalPair:
    """In a worker: from now on it writes the batches of such pairs outside of transactions."""
    for name in _CALLED_WITH_PAIR:
        product = getattr(produce_session, name, None)
        if product is not None and not isinstance(product, _Untransactional):
            setattr(produce_session, name, _Untransactional(product))
    return UntransactionalPair(producer_id, epoch)


@dataclass(frozen=True)
class _Untransactional:
    """Stands in for a function that makes a batch of ``producer``: clears the transactional bit for our pairs.

    Args:
        product: the product's own function.
    """

    product: Callable[..., bytes]

    def __call__(self, content: Any, *, producer: ProducerIdAndEpoch, **others: Any) -> bytes:
        if not isinstance(producer, UntransactionalPair):
            return self.product(content, producer=producer, **others)
        if self.product is encode_record_batch:
            return encode_record_batch(content, producer=producer, transactional=False, **others)
        # An encoded batch without its pair. One copy more than the product makes: of compressed bytes, so it is small.
        batch = bytearray(content)
        batch[_ATTRIBUTES_POSITION] &= ~_TRANSACTIONAL_BIT
        return self.product(memoryview(batch), producer=producer, **others)


class _NoTransactions(TransactionClient):
    """Asks for one pair, and goes on with its next epochs, as an idempotent producer does (KIP-360)."""

    def usable_producer(self) -> InitializedProducer:
        found = super().usable_producer()
        return replace(found, producer=_untransactional(found.producer))

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        if not commit:
            return super().end(producer, commit=commit)
        return EndTxnAnswer(code=0, name="NONE", producer=_untransactional(producer.bumped()))


def _untransactional(pair: ProducerIdAndEpoch) -> UntransactionalPair:
    return UntransactionalPair(pair.producer_id, pair.epoch)


@dataclass(frozen=True)
class _RowsOnly:
    """A transaction for the rows, and a decision that only memory remembers."""

    connection: Connection
    remembered: DecidingTransaction

    def decide(self, decision: Decision) -> None:
        self.remembered.decide(decision)


class _NoStateRow(MemoryStateStore):
    """The state row in memory; the rows in a database transaction of their own."""

    def __init__(self, url: str, settings: StoreSettings) -> None:
        super().__init__()
        self.database = Database(url, settings)

    def deciding(self, transactional_id: str, generation: int) -> AbstractContextManager[DecidingTransaction]:
        return self._rows_only(transactional_id, generation)

    @contextmanager
    def _rows_only(self, transactional_id: str, generation: int) -> Iterator[DecidingTransaction]:
        with (
            super().deciding(transactional_id, generation) as remembered,
            closing(self.database.open("rows")) as connection,
            connection.begin(),
        ):
            yield _RowsOnly(connection, remembered)


def without(bench: Workbench, task: Task) -> Writer:
    """This sink without what makes it exactly once."""
    sink = writers.ours(bench, task)

    def write(batch: DataFrame, batch_id: int) -> None:
        with (
            mock.patch.object(sink_module, "TransactionClient", _NoTransactions),
            mock.patch.object(sink_module, "SqlStateStore", _NoStateRow),
        ):
            sink(batch, batch_id)

    return write


def measure(scale: Scale) -> dict[str, Any]:
    """Both in turns; the price is what exactly once takes away from the throughput without it."""
    rows = scale.batch_rows(ROWS)
    with Workbench() as bench:
        source = write_source(
            bench.spark, bench.directory / "price", NARROW, rows=rows, batches=1 + scale.pick(full=4, quick=3)
        )
        found: dict[str, list[RunFigures]] = {"with": [], "without": []}
        makers = {"with": writers.ours, "without": without}
        _check_both(bench, source)
        for turn in range(scale.pick(full=10, quick=4)):
            # Whoever comes second finds the table's files warm: take turns in that too.
            for name in sorted(makers, reverse=bool(turn % 2)):
                found[name].append(run(bench, source, makers[name], key="id"))
    return _figures(found, rows)


def _figures(found: dict[str, list[RunFigures]], rows: int) -> dict[str, Any]:
    rates = {name: throughput(runs, rows) for name, runs in found.items()}
    pairs = zip(found["with"], found["without"], strict=True)
    prices = [1 - throughput([ours], rows).median / throughput([bare], rows).median for ours, bare in pairs]
    price = 1 - rates["with"].median / rates["without"].median
    print(
        f"with {rates['with'].median / 1e3:.0f}, without {rates['without'].median / 1e3:.0f} thousand rows/s: "
        f"price {price * 100:.1f} % (pairs of runs {min(prices) * 100:.1f} to {max(prices) * 100:.1f} %)",
        flush=True,
    )
    return {
        "with_rows_per_s": rates["with"].json(),
        "without_rows_per_s": rates["without"].json(),
        "with_cpu_s": cpu_per_million(found["with"], rows),
        "without_cpu_s": cpu_per_million(found["without"], rows),
        "price": {**Spread.of(prices).json(), "median": price},
        "rows": rows,
    }


def _check_both(bench: Workbench, source: Source) -> None:
    """Both end with the same rows and records, and only one of them with markers. Warms up, too.

    A transaction leaves one marker in each partition that it wrote.

    Raises:
        SystemExit: what is compared is not what it is taken for.
    """
    seen: list[tuple[Contents | None, int]] = []
    for maker in (writers.ours, without):
        topics: list[str] = []

        def make(workbench: Workbench, task: Task, maker: Any = maker, topics: list[str] = topics) -> Writer:
            topics.append(task.topic)
            writer: Writer = maker(workbench, task)
            return writer

        figures = run(bench, source, make, key="id", look=True)
        seen.append((figures.contents, _offsets(bench.servers.bootstrap, topics[0]) - source.rows * source.batches))
    (contents, markers), (bare_contents, bare_markers) = seen
    compare(contents, bare_contents)
    if (markers, bare_markers) != (PARTITIONS * source.batches, 0):
        message = f"{markers} markers with and {bare_markers} without transactions: the sink was not changed as meant"
        raise SystemExit(message)


def _offsets(bootstrap: str, topic: str) -> int:
    """Offsets of all partitions that are taken."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "never-joined"})
    try:
        marks = [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_WATERMARK_DEADLINE_S)
            for partition in range(PARTITIONS)
        ]
    finally:
        consumer.close()
    return sum(high for _, high in filter(None, marks))
