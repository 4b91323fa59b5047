"""The steps of one micro-batch, in order, as a table.

The order is the whole guarantee. Everything before ``DECIDE`` can be undone on both sides; ``DECIDE`` is one
database transaction; everything after it can only be completed. KIP-939 writes the same order down as its "Normal
processing recipe": send, prepare, write data and prepared state in one database transaction, commit in Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class Step(IntEnum):
    """A point that a driver has reached. Its value is its place in the order."""

    RECOVER = 0
    PLACE = 1
    BEGIN = 2
    PRODUCE = 3
    PREPARE = 4
    DECIDE = 5
    COMPLETE = 6
    NOTE = 7


@dataclass(frozen=True)
class StepRule:
    """One row of the table.

    Attributes:
        step: the step.
        does: what is done in it.
        where: who does it.
        after_crash: what happens when the driver dies right after it.
        undoable: True while both sides can still be brought back to where they were.
    """

    step: Step
    does: str
    where: str
    after_crash: str
    undoable: bool


STEPS = (
    StepRule(
        Step.RECOVER,
        "claim the state row, settle what a crash left, take a fresh (producer id, epoch)",
        "driver",
        "the next start recovers again",
        undoable=True,
    ),
    StepRule(
        Step.PLACE,
        "is the claim still ours; is the batch new, done already, or owed to Kafka",
        "driver",
        "Spark replays the batch",
        undoable=True,
    ),
    StepRule(
        Step.BEGIN,
        "begin the Kafka transaction",
        "driver",
        "Spark replays the batch",
        undoable=True,
    ),
    StepRule(
        Step.PRODUCE,
        "send the records, encode the rows as COPY bytes, return receipts",
        "tasks; of up to 20 000 rows the driver",
        "recovery aborts the Kafka transaction, Spark replays the batch",
        undoable=True,
    ),
    StepRule(
        Step.PREPARE,
        "all receipts in, all records acknowledged: the prepared transaction is remembered as producerId:epoch",
        "driver",
        "recovery aborts the Kafka transaction, Spark replays the batch",
        undoable=True,
    ),
    StepRule(
        Step.DECIDE,
        "one database transaction: COPY the rows (those that are there already, while tasks still run), update the "
        "state row last, COMMIT",
        "driver",
        "recovery reads the decision and commits the Kafka transaction",
        undoable=False,
    ),
    StepRule(
        Step.COMPLETE,
        "commit the Kafka transaction (EndTxn)",
        "driver",
        "recovery asks Kafka, sees the commit, and notes it",
        undoable=False,
    ),
    StepRule(
        Step.NOTE,
        "note in the state row that the batch is done",
        "driver",
        "Spark replays the batch, which is skipped",
        undoable=False,
    ),
)


class Observer(Protocol):
    """Told of every step that was reached."""

    def __call__(self, step: Step) -> None:
        """Called after ``step`` is complete, on the driver."""
