"""The transaction of a block: what may be sent in it, by which thread or task, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias
from weakref import WeakValueDictionary

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.service.outgoing import Content, Header, OutgoingRecord

#: Runner of a block: a thread, and the task of its event loop; None if there is none.
Runner: TypeAlias = tuple[int, int | None]

_OPERATION = "send"


def current_runner() -> Runner:
    """The current runner."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # No event loop runs in this thread.
        task = None
    return threading.get_ident(), None if task is None else id(task)


class Phase(Enum):
    """State of a block."""

    OPEN = "open"
    COMMITTING = "committing"
    ENDED = "ended"


class ServiceTransaction:
    """The value of ``with DualWrite(...).transaction(session) as tx``: sends records in addition to the session's rows.

    Records are sent when the block has ended: if it raises an exception, Kafka is not involved.
    """

    def __init__(self) -> None:
        self._runner = current_runner()
        self._phase = Phase.OPEN
        self._records: list[OutgoingRecord] = []

    @property
    def records(self) -> tuple[OutgoingRecord, ...]:
        """The records sent so far."""
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
        self.check_runner(_OPERATION)
        if self._phase is not Phase.OPEN:
            raise LocalProtocolError(
                operation=_OPERATION,
                state=self._phase.value,
                rule="records are sent inside the block of the transaction",
            )
        self._records.append(OutgoingRecord.of(topic, key, value, headers=headers, partition=partition))

    def check_runner(self, operation: str) -> None:
        """Refuse a call by another thread or task.

        Raises:
            LocalProtocolError: it is another one.
        """
        if current_runner() != self._runner:
            raise LocalProtocolError(
                operation=operation,
                state="called from another thread or task",
                rule="a transaction belongs to the one that has its block; give each a session and a block of its own",
            )

    def move_to(self, phase: Phase) -> None:
        """Enter another phase of the block."""
        self._phase = phase


class OpenBlock:
    """An open block. It is referenced by its frame: a block that was interrupted before it could leave is not open.

    Args:
        runner: its runner.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner


class OpenBlocks:
    """The open blocks by runner: at most one each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakValueDictionary[Runner, OpenBlock] = WeakValueDictionary()

    def enter(self) -> OpenBlock:
        """Open a block, until `leave` or until the returned object is no longer referenced.

        Raises:
            LocalProtocolError: the same thread or task already has one open.
        """
        runner = current_runner()
        with self._lock:
            if runner in self._open:
                raise LocalProtocolError(
                    operation="transaction",
                    state="inside the block of another one",
                    rule="transactions are not nested: each has one COMMIT, which decides for all that is in it",
                )
            block = self._open[runner] = OpenBlock(runner)
        return block

    def leave(self, block: OpenBlock) -> None:
        """End the block."""
        with self._lock:
            if self._open.get(block.runner) is block:
                del self._open[block.runner]
