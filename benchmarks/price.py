"""The price of exactly once: this sink as it is, and the same data path without what makes it exactly once.

Without means: records are written by an idempotent producer outside of any transaction, so there are no markers and
the broker verifies no transaction; nothing is asked of the transaction coordinator; the state row is kept in memory,
so no generation is checked and nothing but the rows is written to the database, in one transaction of their own. The
rest (expressions, shuffle, encoding, produce, COPY) is the product's own code. Its parts are replaced by those below
while the sink makes its connections, and in Spark's workers when they unpickle an `UntransactionalPair`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from confluent_kafka import Consumer, TopicPartition

from benchmarks import writers
from benchmarks.checks import Contents, compare
from benchmarks.figures import Spread, quantile
from benchmarks.inputs import NARROW, Source, write_source
from benchmarks.runs import PARTITIONS, BatchFigures, check_count, cpu_of_batches, new_tasks, run, timed
from benchmarks.workbench import Workbench
from benchmarks.writers import Task, Writer
from jdbc_state import DecidingTransaction
from jdbc_state.connections import Database
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka import produce_session
from spark_2pc_sink.kafka.coordinator_calls import InitializedProducer
from spark_2pc_sink.kafka.transaction_client import EndTxnAnswer, TransactionClient
from spark_2pc_sink.sink import query_run
from tests.unit.fakes.memory_store import MemoryStateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

    from benchmarks.scale import Scale
    from jdbc_state import Actor, Decision, StoreSettings

ROWS = 1_000_000
#: The name under which the product calls what writes the pair into a batch.
_CALLED_WITH_PAIR = "assign_producer"
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
    product = getattr(produce_session, _CALLED_WITH_PAIR)
    if not isinstance(product, _Untransactional):
        setattr(produce_session, _CALLED_WITH_PAIR, _Untransactional(product))
    return UntransactionalPair(producer_id, epoch)


@dataclass(frozen=True)
class _Untransactional:
    """Stands in for `assign_producer`: clears the transactional bit for our pairs.

    Args:
        product: the product's own function.
    """

    product: Callable[..., memoryview]

    def __call__(self, content: Any, *, producer: ProducerIdAndEpoch, **others: Any) -> memoryview:
        if not isinstance(producer, UntransactionalPair):
            return self.product(content, producer=producer, **others)
        # Where the product makes a copy it is this one: what it is given here can be written.
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


class _RowsOnly(DecidingTransaction):
    """A transaction for the rows, and a decision that only memory remembers."""

    def __init__(self, transactional_id: str, connection: Connection, remembered: DecidingTransaction) -> None:
        super().__init__(transactional_id, connection)
        self._remembered = remembered

    def _write(self, decision: Decision) -> None:
        self._remembered.decide(decision)


class _NoStateRow(MemoryStateStore):
    """The state row in memory; the rows in a database transaction of their own."""

    def __init__(
        self, url: str, settings: StoreSettings, *, actor: Actor, shown_while: Callable[[], bool] | None = None
    ) -> None:
        del shown_while  # nobody sees who holds a row in memory
        super().__init__(actor=actor)
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
            yield _RowsOnly(transactional_id, connection, remembered)


def without(bench: Workbench, task: Task) -> Writer:
    """This sink without what makes it exactly once."""
    sink = writers.ours(bench, task)

    def write(batch: DataFrame, batch_id: int) -> None:
        with (
            mock.patch.object(query_run, "TransactionClient", _NoTransactions),
            mock.patch.object(query_run, "SqlStateStore", _NoStateRow),
        ):
            sink(batch, batch_id)

    return write


def measure(scale: Scale) -> dict[str, Any]:
    """Both write each batch, one after the other; the price is what exactly once takes away from the throughput."""
    rows = scale.batch_rows(ROWS)
    batches = 1 + scale.pick(full=8, quick=6)
    with Workbench() as bench:
        source = write_source(bench.spark, bench.directory / "price", NARROW, rows=rows, batches=batches)
        _check_both(bench, source.first(2))
        turns = [_Turns() for _ in range(scale.pick(full=5, quick=2))]
        for turn in turns:
            _run_both(bench, source, turn)
    return _figures([pair for turn in turns for pair in turn.pairs[1:]], rows)


@dataclass(frozen=True)
class _Pair:
    """One batch, written twice.

    Attributes:
        ours: seconds and CPU of the sink as it is.
        bare: of the other.
    """

    ours: BatchFigures
    bare: BatchFigures

    @property
    def price(self) -> float:
        """The share of the throughput that exactly once takes away."""
        return 1 - self.bare.seconds / self.ours.seconds


class _Turns:
    """Hands each batch to both, and takes turns in who is first: the second finds the files warm."""

    def __init__(self) -> None:
        self.pairs: list[_Pair] = []

    def around(self, bench: Workbench, ours: Writer, bare: Writer) -> Writer:
        sides = {"ours": ours, "bare": bare}

        def write(batch: DataFrame, batch_id: int) -> None:
            turns = sorted(sides, reverse=batch_id % 2 == 0)
            self.pairs.append(_Pair(**{side: timed(bench, sides[side], batch, batch_id) for side in turns}))

        return write


def _run_both(bench: Workbench, source: Source, turns: _Turns) -> None:
    """One query, whose batches both write, each into a topic and a table of its own."""
    ours, bare = tasks = new_tasks(bench, source.shape, 2)
    both = turns.around(bench, writers.ours(bench, ours), without(bench, bare))
    source.run(bench.spark, both, bench.directory / f"checkpoint-{ours.topic}")
    for task in tasks:
        check_count(bench, task, source, len(turns.pairs))
    bench.execute(*(f"DROP TABLE {task.table}" for task in tasks))
    print("    " + ", ".join(f"{pair.ours.seconds:.2f}/{pair.bare.seconds:.2f}" for pair in turns.pairs), flush=True)


def _figures(pairs: list[_Pair], rows: int) -> dict[str, Any]:
    sides = {"with": [pair.ours for pair in pairs], "without": [pair.bare for pair in pairs]}
    rates = {name: Spread.of([rows / batch.seconds for batch in batches]) for name, batches in sides.items()}
    prices = [pair.price for pair in pairs]
    price = Spread(statistics.median(prices), quantile(prices, 0.25), quantile(prices, 0.75), len(prices))
    print(
        f"with {rates['with'].median / 1e3:.0f}, without {rates['without'].median / 1e3:.0f} thousand rows/s: "
        f"price {price.median * 100:.1f} % (middle half of {len(pairs)} batches {price.low * 100:.1f} to "
        f"{price.high * 100:.1f} %)",
        flush=True,
    )
    return {
        **{f"{name}_rows_per_s": rate.json() for name, rate in rates.items()},
        **{f"{name}_cpu_s": cpu_of_batches(batches, rows) for name, batches in sides.items()},
        "price": price.json(),
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
