"""State row: its fields and its legal transitions.

A row names the Kafka transaction (``producerId:epoch``) that the data in this database belongs to, and whether Kafka
followed (KIP-939, "Normal processing recipe"). Its status moves only along :data:`TRANSITIONS`; both stores and their
tests read that table. A *generation* counts the claims of a row: only the newest claimant can change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jdbc_state.errors import CommitsLostError, LocalProtocolError, SupersededError

NONE = "none"
DECIDED = "decided"
DONE = "done"
OWED = "owed"
STATUSES = (NONE, DECIDED, DONE, OWED)


@dataclass(frozen=True)
class Transition:
    """One legal move of a row's status, and why it is legal."""

    operation: str
    before: str
    after: str
    why: str


DECIDE = "decide"
#: All other moves are refused, and leave the row unchanged.
TRANSITIONS = (
    Transition("mark_initialized", NONE, NONE, "a first recovery took the id over: the row is no longer fresh"),
    Transition(DECIDE, NONE, DECIDED, "the first batch: its data, producer id and epoch commit together (KIP-939)"),
    Transition(DECIDE, DONE, DECIDED, "the next batch, after Kafka has committed the previous one"),
    Transition(
        DECIDE, OWED, DECIDED, "a resend: the rows are in the table already, only producer id and epoch are new"
    ),
    Transition("accept_open", NONE, DECIDED, "an operator found the rows of the open transaction in the table"),
    Transition("mark_done", DECIDED, DONE, "Kafka committed the row's transaction"),
    Transition("mark_owed", DECIDED, OWED, "Kafka aborted the row's transaction; its records must be sent again"),
    Transition("take_empty_batch", NONE, DONE, "a batch without records has no transaction that could be in doubt"),
    Transition("take_empty_batch", DONE, DONE, "as above"),
    Transition("accept_replay", OWED, OWED, "an operator accepts Spark's replay with any digest"),
    Transition("accept_replay", DECIDED, OWED, "as above, if Kafka's log can no longer tell the outcome"),
    Transition("drop_batch", OWED, DONE, "an operator gives up the Kafka half"),
    Transition("drop_batch", DECIDED, DONE, "as above, if Kafka's log can no longer tell the outcome"),
    Transition("accept_loss", NONE, DONE, "an operator names the batches that this database lost, and gives them up"),
    Transition("accept_loss", DECIDED, DONE, "as above, after Kafka has completed later transactions than the row's"),
    Transition("accept_loss", DONE, DONE, "as above"),
    Transition("accept_loss", OWED, DONE, "as above, if Kafka has the resend"),
)


def legal_before(operation: str) -> tuple[str, ...]:
    return tuple(move.before for move in TRANSITIONS if move.operation == operation)


def status_after(operation: str) -> str:
    (after,) = {move.after for move in TRANSITIONS if move.operation == operation}
    return after


@dataclass(frozen=True, kw_only=True)
class StateRow:
    """One sink's row, as read.

    Attributes:
        transactional_id: Kafka's transactional id, the primary key.
        prepared_transaction_state: ``producerId:epoch`` of the last decision, '' for none; the text form of Java's
            ``PreparedTxnState``.
        status: one of :data:`STATUSES`.
        settled: ``producerId:epoch`` that Kafka showed when the row was last settled; '' before the first recovery.
        generation: number of the newest claim, from 1.
        query_id: the streaming query that owns the row; None while only the command line has claimed it.
        run_id: the run of that query that made the newest claim; None if the command line made it.
        batch_id: the batch that the next fields describe; None if the row's query has written none yet.
        cluster_id: the Kafka cluster that the row belongs to.
        row_count: number of the batch's rows in the table.
        record_count: number of the batch's records in Kafka.
        digest: 32 hexadecimal digits over the records; '' for none, or if any will do (``accept_replay``,
            ``drop_batch``, ``accept_loss``).
        kafka_offsets: first and last offset written, by 'topic-partition'.
        topic_ids: Kafka's topic ids (KIP-516) as text, by topic, when the batch was written; without those for which
            a broker has no id.
        decision: number of this row's history line; each batch and each adoption increments it.
        claimed_at: time of the newest claim, by the database's clock, as the two below.
        decided_at: time of the last decision.
        settled_at: when the row last became done or owed.
        age_s: seconds from the latest of the three to the reading, by the database's clock.
        decided_age_s: the same since ``decided_at`` alone; None before the first decision.
        rebuilt_from: number of the history line from which the returning claim rebuilt the lost row, or from which a
            claim would rebuild it; None for a row that exists, or is new.
    """

    transactional_id: str
    prepared_transaction_state: str = ""
    status: str = NONE
    settled: str = ""
    generation: int
    query_id: str | None = None
    run_id: str | None = None
    batch_id: int | None = None
    cluster_id: str | None = None
    row_count: int = 0
    record_count: int = 0
    digest: str = ""
    kafka_offsets: Mapping[str, tuple[int, int]] = field(default_factory=dict, hash=False)
    topic_ids: Mapping[str, str] = field(default_factory=dict, hash=False)
    decision: int = 0
    claimed_at: datetime
    decided_at: datetime | None = None
    settled_at: datetime | None = None
    age_s: float = field(default=0.0, compare=False)
    decided_age_s: float | None = field(default=None, compare=False)
    rebuilt_from: int | None = field(default=None, compare=False)

    @property
    def in_doubt_s(self) -> float | None:
        """Seconds since this database decided a batch that Kafka, according to the row, lacks; otherwise None.

        Not ``age_s``: a job that keeps starting and failing claims the row each time, which resets that age.
        """
        return self.decided_age_s if self.status in (DECIDED, OWED) else None


@dataclass(frozen=True)
class HistoryLine:
    """One line of a sink's history.

    Attributes:
        event: what wrote it, one of `jdbc_state.history.EVENTS`.
        row: the row after that event, updated with the later outcome of its batch.
        figures: figures of the batch, under names that the writer chooses; empty if it noted none.
    """

    event: str
    row: StateRow
    figures: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Values that the deciding transaction writes into the row. The names are those of :class:`StateRow`.

    A batch without records has no Kafka transaction that could be in doubt: its row is done at once, and keeps the
    ``producerId:epoch`` that it has.

    Args:
        prepared: ``producerId:epoch`` of the Kafka transaction that this database transaction decides.
        expected: ``prepared_transaction_state`` of the row after which the batch was placed. It is not written: a row
            that now names another decision is refused, see :func:`lost_commits_error`.
        figures: figures of the batch for its history line: JSON values, under names that the writer chooses. None if
            they follow later, with :meth:`StateStore.mark_done`.
    """

    prepared: str
    expected: str
    batch_id: int
    row_count: int
    record_count: int
    digest: str
    kafka_offsets: Mapping[str, tuple[int, int]] = field(hash=False)
    topic_ids: Mapping[str, str] = field(default_factory=dict, hash=False)
    figures: Mapping[str, Any] | None = field(default=None, hash=False)

    def move(self, transactional_id: str, generation: int) -> Move:
        """The move of the row that writes it, under a claim."""
        names = ("batch_id", "row_count", "record_count", "digest")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        values |= {"kafka_offsets": dict(self.kafka_offsets), "topic_ids": dict(self.topic_ids)}
        if self.record_count:
            values |= {"prepared_transaction_state": self.prepared, "settled": ""}
        # A batch without records needs no commit in Kafka.
        operation = DECIDE if self.record_count else "take_empty_batch"
        return Move(operation, transactional_id, generation, values, expected=self.expected, figures=self.figures)


@dataclass(frozen=True)
class KeptRecords:
    """The records of one decision, until Kafka is known to have committed them.

    Attributes:
        batch_id: batch id of the decision, which identifies them if they were sent with another producer id and epoch.
        partitions: ``topic-partition`` of each record batch.
        batches: the concatenated record batches; each contains its length.
    """

    batch_id: int
    partitions: Sequence[str]
    batches: bytes


def claim_lost_error(
    transactional_id: str, generation: int, row: StateRow | None
) -> SupersededError | CommitsLostError:
    """The error for a driver whose claim is not the row's: superseded, lost by the database, or gone with the row.

    Generations only grow. One that is lower than a granted claim proves that the claim was lost, perhaps with
    decisions that Kafka has committed.
    """
    if row is not None and row.generation < generation:
        return lost_commits_error(row, f"generation {generation}")
    found = None if row is None else f"generation {row.generation} of run {row.run_id}"
    return SupersededError(transactional_id=transactional_id, generation=generation, found=found)


def lost_commits_error(row: StateRow, left: str) -> CommitsLostError:
    """Return the error for a driver that finds the row older than what it has read or written under its claim.

    Only the newest claimant changes a row, and each decision writes a unique ``producerId:epoch``. A row that differs
    without a newer claim was therefore not changed: the database has lost commits, as PostgreSQL does in a failover
    to an asynchronous standby. ``left`` says how it was, in the terms of the row.
    """
    found = f"{row.status}, decision {row.prepared_transaction_state or 'none'}, generation {row.generation}"
    batch = "no batch yet" if row.batch_id is None else f"batch {row.batch_id}"
    return CommitsLostError(transactional_id=row.transactional_id, left=left, found=f"{batch}, {found}")


@dataclass(frozen=True)
class Move:
    """One change of a row under a claim: the values it requires, and those it writes."""

    #: Name in `TRANSITIONS`, which must allow the row's status, and gives the new one.
    operation: str
    transactional_id: str
    generation: int
    values: Mapping[str, Any] = field(default_factory=dict)
    #: Must be its ``prepared_transaction_state``; None for any.
    expected: str | None = None
    #: Action of its log line, one of `jdbc_state.actions.ACTIONS`; '' for a move that a batch makes.
    action: str = ""
    detail: Mapping[str, Any] | None = None
    #: Figures of the batch for its history line; None to keep the existing ones.
    figures: Mapping[str, Any] | None = None

    def refused_by(self, row: StateRow | None) -> StateRow:
        """Raise why the move matched no row; see `jdbc_state.state_store.StateStore` for the errors.

        Returns:
            ``row``, if it already is the result of the move: a repeat after a lost answer. Decisions are excluded, as
            their transaction wrote rows too.
        """
        if row is None or row.generation != self.generation:
            raise claim_lost_error(self.transactional_id, self.generation, row)
        if self.expected is not None and row.prepared_transaction_state != self.expected:
            raise lost_commits_error(row, f"decision {self.expected or 'none'}")
        written = all(getattr(row, name) == value for name, value in self.values.items())
        if self.operation != DECIDE and written and row.status == status_after(self.operation):
            return row
        raise LocalProtocolError(
            operation=self.operation,
            state=f"{row.status} (transactional id {self.transactional_id!r}, settled {row.settled!r})",
            rule=f"allowed only from {' or '.join(legal_before(self.operation))}; the row was not changed",
        )
