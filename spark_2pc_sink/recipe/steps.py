"""The steps of one micro-batch, in order.

The guarantee rests on this order. Everything before ``DECIDE`` can be undone on both sides; ``DECIDE`` is one
database transaction; everything after it can only be completed. KIP-939 has the same order in its "Normal processing
recipe": send, prepare, write data and prepared state in one database transaction, commit in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Protocol


class Step(IntEnum):
    """A step that a driver has reached. Its value is its position in the order.

    docs/how-it-works.md says for each who does it, and the effect of a crash right after it.
    """

    #: The state row is claimed, earlier crashes are settled, and a fresh (producer id, epoch) is taken.
    RECOVER = 0
    #: The claim is still valid, and the batch is known to be new, already done, or owed to Kafka.
    PLACE = 1
    #: The Kafka transaction has begun.
    BEGIN = 2
    #: The records are sent, the rows encoded as COPY bytes, the receipts returned.
    PRODUCE = 3
    #: All records are acknowledged: the prepared transaction is remembered as producerId:epoch.
    PREPARE = 4
    #: One database transaction has written the rows, and the state row last. The batch can no longer be aborted.
    DECIDE = 5
    #: The Kafka transaction is committed (EndTxn).
    COMPLETE = 6
    #: The state row says that the batch is done.
    NOTE = 7


class Observer(Protocol):
    """Notified of every step reached."""

    def __call__(self, step: Step) -> None:
        """Called after ``step`` is complete, on the driver."""

    @property
    def figures(self) -> Mapping[str, Any]:
        """Figures of this batch for the history known so far: ``step_seconds`` and others."""
