"""The copy channel: brings COPY bytes from tasks to the driver, which writes them while other tasks still run.

What a task has encoded for the table travels as the update of a Spark accumulator. Spark brings it to the driver when
the task ends, by the way of every result, without a port of ours, and before the job ends. It does so once for each
task attempt that succeeds; but Spark may run an encode task again that has succeeded, so a transfer names its attempt.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark import SparkContext

    from spark_2pc_sink.sink.contract.row_transfer import Transfer, TransferSender


@dataclass(frozen=True)
class TransferEnd:
    """The last thing that comes of an attempt."""

    attempt: tuple[str, int, int]


class CopyChannel:
    """The driver's end: transfers in the order of their arrival. One object serves one run of a query."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[Transfer | TransferEnd] = queue.SimpleQueue()
        self._sender: Any | None = None
        self._closed = False

    def sender(self, context: SparkContext) -> TransferSender:
        """The tasks' end; one for all batches, since PySpark forgets none."""
        if self._sender is None:
            self._sender = context.accumulator(self, _Arriving())  # type: ignore[arg-type]
        sender: TransferSender = self._sender
        return sender

    def extend(self, arrived: Iterable[Transfer]) -> None:
        """Take what a task has sent; called in the thread of Spark's accumulators, which an exception would end."""
        for transfer in arrived:
            if not self._closed:
                self._arrived.put(transfer)

    def close(self) -> None:
        """Forget what has arrived, and take no more: PySpark keeps the accumulator, and that keeps this channel."""
        self._closed = True
        self._arrived = queue.SimpleQueue()

    def end(self, attempt: tuple[str, int, int]) -> None:
        """Tell the copy thread that no more transfers of ``attempt`` come."""
        self._arrived.put(TransferEnd(attempt))

    def take(self, attempt: tuple[str, int, int], timeout_s: float) -> Transfer | TransferEnd | None:
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


class DirectSender:
    """The end of rows that the driver encodes itself.

    Args:
        channel: where they go.
    """

    def __init__(self, channel: CopyChannel) -> None:
        self._channel = channel

    def add(self, term: list[Transfer], /) -> None:
        """Send transfers; see `TransferSender.add`."""
        self._channel.extend(term)


class _Arriving:
    """An AccumulatorParam: a list in tasks, the channel in the driver."""

    def zero(self, value: object) -> list[Transfer]:
        del value
        return []

    def addInPlace(  # noqa: N802 - PySpark's name
        self, value1: list[Transfer] | CopyChannel, value2: Sequence[Transfer]
    ) -> list[Transfer] | CopyChannel:
        value1.extend(value2)
        return value1
