"""Open transactions whose decision is lost: a person looks into the table, and says how the transaction ends.

The state row names the transaction that the database has decided, and its history outlives it. Where both are gone and
Kafka shows an open transaction, it may be a batch that nobody decided, whose rows are nowhere; or one that was decided,
whose rows are in the table. To end the second with an abort, and to write the batch again, has its rows twice in the
table. Only the table tells: so a person is asked, whatever ``adopt`` says.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import ENDING_STATES, TransactionState
from spark_2pc_sink.recipe.remedies import RECOVER, remedy
from spark_2pc_sink.recipe.resolve import Halt, KafkaView, Resolution, RowView, Verdict

COMMIT = "commit"
ABORT = "abort"


@dataclass(frozen=True)
class OpenTransactionEnd:
    """How a person says that it ends, by whether the table has the rows of its records.

    Attributes:
        batch_id: it is committed, as the table has the rows of this batch; None: it is aborted.
    """

    batch_id: int | None

    def __str__(self) -> str:
        return ABORT if self.batch_id is None else COMMIT


def heed(
    row: RowView, kafka: KafkaView, found: Resolution | Halt, word: OpenTransactionEnd | None
) -> Resolution | Halt:
    """What becomes of a verdict when a person has said how the open transaction ends.

    Args:
        row: as for `resolve`.
        kafka: as for `resolve`.
        found: what `resolve` found.
        word: what the person has said; None when nothing.

    Returns:
        ``found`` where the word is not needed: a row that names a decision, or that a recovery has finished with, tells
        by itself. Else what the word leads to, or a halt where Kafka shows another end by now.
    """
    if word is None or not row.fresh or kafka.state in ENDING_STATES:
        return found
    if kafka.state is TransactionState.ONGOING:
        if word.batch_id is not None:
            return Resolution(Verdict.TAKE_OPEN, "the table has its rows, as a person has found")
        return Resolution(Verdict.ABORT, "the table has none of its rows, as a person has found")
    if word.batch_id is not None or kafka.state is TransactionState.COMPLETE_COMMIT:
        return Halt(
            HaltCause.OPEN_TRANSACTION,
            f"no transaction is open that could end with {word}: Kafka shows {kafka}",
            (
                "compare the newest records of the topics with the table, as no state row says which batch both have",
                "where both have the batch: restore the state row, or its history",
                remedy(
                    f"{RECOVER} --adopt",
                    "where the topics lack it: remove its rows from the table first; the state row takes the id over "
                    "as it is in Kafka, and Spark's replay is written to both sides",
                ),
            ),
        )
    return found
