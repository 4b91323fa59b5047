"""COPY bytes on their way from tasks to the driver, which writes them while other tasks still run.

What a task has encoded for the table travels as the update of a Spark accumulator. Spark brings it to the driver when
the task ends, by the way of every result, without a port of ours, and before the job ends. It does so once for each
task that succeeds; but a source that Spark runs again is another task, so an update says which run it is of.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark import SparkContext


@dataclass(frozen=True)
class SourceRows:
    """The rows that one run of one source returns through the driver.

    Attributes:
        attempt: `TransactionTicket.attempt`.
        source: the Spark partition id.
        run: tells the runs of one source apart.
        stream: a complete COPY BINARY stream, in pieces.
    """

    attempt: tuple[str, int, int]
    source: int
    run: int
    stream: tuple[bytes, ...]


@dataclass(frozen=True)
class RowsEnd:
    """Behind it comes nothing more of an attempt."""

    attempt: tuple[str, int, int]


class RowChannel(Protocol):
    """The tasks' end: an accumulator."""

    def add(self, term: list[SourceRows], /) -> None:
        """Send rows when this task has succeeded."""


class RowFeed:
    """The driver's end: what has arrived, in the order of arrival. One object serves one run of a query."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[SourceRows | RowsEnd] = queue.SimpleQueue()
        self._channel: Any | None = None
        self._closed = False

    def channel(self, context: SparkContext) -> RowChannel:
        """The other end, for tasks; one for all batches, since PySpark forgets none."""
        if self._channel is None:
            self._channel = context.accumulator(self, _Arriving())  # type: ignore[arg-type]
        channel: RowChannel = self._channel
        return channel

    def extend(self, arrived: Iterable[SourceRows]) -> None:
        """Take what a task has sent; called in the thread of Spark's accumulators, which an exception would end."""
        for rows in arrived:
            if not self._closed:
                self._arrived.put(rows)

    def close(self) -> None:
        """Forget what has arrived, and take no more: PySpark keeps the accumulator, and it this feed."""
        self._closed = True
        self._arrived = queue.SimpleQueue()

    def end(self, attempt: tuple[str, int, int]) -> None:
        """Tell who takes the rows of ``attempt`` that there are no more."""
        self._arrived.put(RowsEnd(attempt))

    def take(self, attempt: tuple[str, int, int], timeout_s: float) -> SourceRows | RowsEnd | None:
        """The next of ``attempt``; what late tasks of other attempts have sent is dropped.

        Args:
            attempt: `TransactionTicket.attempt`.
            timeout_s: seconds to wait; None is the answer when nothing has come.
        """
        while True:
            try:
                next_one = self._arrived.get(timeout=timeout_s)
            except queue.Empty:
                return None
            if next_one.attempt == attempt:
                return next_one


class _Arriving:
    """An AccumulatorParam: a list in tasks, the feed in the driver."""

    def zero(self, value: object) -> list[SourceRows]:
        del value
        return []

    def addInPlace(  # noqa: N802 - PySpark's name
        self, value1: list[SourceRows] | RowFeed, value2: Sequence[SourceRows]
    ) -> list[SourceRows] | RowFeed:
        value1.extend(value2)
        return value1
