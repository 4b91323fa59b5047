"""The transaction that a block has: what may be sent in it, by whom, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias
from weakref import WeakValueDictionary

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.service.outgoing import Content, Header, OutgoingRecord

#: Who runs a block: a thread, and in it the task of an event loop; None where there is none.
Runner: TypeAlias = tuple[int, int | None]

_OPERATION = "send"


def current_runner() -> Runner:
    """Who asks."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # No event loop runs in this thread.
        task = None
    return threading.get_ident(), None if task is None else id(task)


class Phase(Enum):
    """Where a block stands."""

    OPEN = "open"
    COMMITTING = "committing"
    ENDED = "ended"


class ServiceTransaction:
    """What ``with DualWrite(...).transaction(session) as tx`` gives: records for Kafka, beside the session's rows.

    Nothing is sent before the block has ended: an exception in it costs Kafka nothing.
    """

    def __init__(self) -> None:
        self._runner = current_runner()
        self._phase = Phase.OPEN
        self._records: list[OutgoingRecord] = []

    @property
    def records(self) -> tuple[OutgoingRecord, ...]:
        """What was sent so far."""
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
        """Add a record to the transaction. Readers of committed records see it when both sides have the transaction.

        Args:
            topic: its name; the topic has to exist.
            key: bytes, text (sent as UTF-8), or None. The partition follows from it as with Java's producer.
            value: the same; None is what a compacted topic takes for a deletion.
            headers: names and values.
            partition: in place of the one that follows from the key.

        Raises:
            ConfigurationError: one of them is no part of a record.
            LocalProtocolError: the block has ended, or another thread or task sends than the one that has it.
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
        """The block has come to another phase."""
        self._phase = phase


class OpenBlock:
    """A block that is open. Its frame holds it: a block that was interrupted before it could leave is open no more.

    Args:
        runner: who has it.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner


class OpenBlocks:
    """The blocks that are open, by who runs them: nobody has two."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakValueDictionary[Runner, OpenBlock] = WeakValueDictionary()

    def enter(self) -> OpenBlock:
        """A block begins, and is open until `leave`, or while somebody holds what is returned.

        Raises:
            LocalProtocolError: the same thread or task has one open.
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
        """It has ended."""
        with self._lock:
            if self._open.get(block.runner) is block:
                del self._open[block.runner]
