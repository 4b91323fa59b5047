"""The transaction of a block: what may be sent in it, by which thread or task, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import TypeAlias
from weakref import WeakValueDictionary

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.service.outgoing import Content, Header, OutgoingRecord

#: Runner of a block: a thread, and the task of its event loop; None if there is none.
Runner: TypeAlias = tuple[int, int | None]


def current_runner() -> Runner:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # No event loop runs in this thread.
        task = None
    return threading.get_ident(), None if task is None else id(task)


class ServiceTransaction:
    """The value of ``with DualWrite(...).transaction(session) as tx``: sends records in addition to the session's rows.

    Records are sent when the block has ended: if it raises an exception, Kafka is not involved.
    """

    def __init__(self) -> None:
        self.runner: Runner = current_runner()
        #: open, committing or ended.
        self.phase: str = "open"
        self._records: list[OutgoingRecord] = []

    @property
    def records(self) -> tuple[OutgoingRecord, ...]:
        return tuple(self._records)

    def send(
        self,
        topic: str,
        key: Content,
        value: Content,
        *,
        headers: Sequence[Header] = (),
        partition: int | None = None,
    ) -> None:
        """Add a record to the transaction. read_committed consumers see it once both sides have committed.

        Args:
            topic: name of an existing topic.
            key: bytes, text (sent as UTF-8), or None. It determines the partition as with Java's producer.
            value: bytes, text or None; None deletes the key in a compacted topic.
            headers: names and values.
            partition: overrides the key's partition.

        Raises:
            ConfigurationError: an argument is not valid in a record.
            LocalProtocolError: the block has ended, or the caller is not the thread or task that opened it.
        """
        self.check_runner("send")
        if self.phase != "open":
            raise LocalProtocolError(operation="send", state=self.phase, rule="send records inside the block")
        self._records.append(OutgoingRecord.of(topic, key, value, headers=headers, partition=partition))

    def check_runner(self, operation: str) -> None:
        """Refuse a call by another thread or task."""
        if current_runner() != self.runner:
            rule = "only the thread or task that opened the block may use it; give each its own session and block"
            raise LocalProtocolError(operation=operation, state="called from another thread or task", rule=rule)


class OpenBlocks:
    """The open blocks by runner: at most one each, until `leave`, or until only an interrupted frame refers to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakValueDictionary[Runner, ServiceTransaction] = WeakValueDictionary()

    def enter(self) -> ServiceTransaction:
        transaction = ServiceTransaction()
        with self._lock:
            if transaction.runner in self._open:
                rule = "transactions cannot be nested: each has one COMMIT, which decides for everything in it"
                raise LocalProtocolError(operation="transaction", state="inside another block", rule=rule)
            self._open[transaction.runner] = transaction
        return transaction

    def leave(self, transaction: ServiceTransaction) -> None:
        transaction.phase = "ended"
        with self._lock:
            if self._open.get(transaction.runner) is transaction:
                del self._open[transaction.runner]
