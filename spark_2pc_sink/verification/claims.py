"""Claims: which offsets of which partitions each batch says are its own, as the history of the state row has them.

Pure. The lines of a history are not all batches of one query: a person may have let another query have the row
(its batches count from 0 again), or gone on without batches that are lost. Such lines say nothing that could be
compared, but they explain records that would look foreign otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from jdbc_state import DECIDED, DONE, OWED, HistoryLine, StateRow
from jdbc_state.history import ACCEPTED, ADOPTED, PASSED
from spark_2pc_sink.ids import TopicPartition

#: Where the end of a range is not known.
OPEN_END = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One batch of the history.

    Attributes:
        batch: Spark's id.
        decision: number of its line.
        records: how many it wrote.
        digest: over them, as text; '' where a person has accepted any.
        ranges: the first and the last offset in each partition.
        topic_ids: of its topics when it was written.
        decided_at: by the database's clock; None where that is not known.
        rows: how many it wrote to all tables.
        outputs: rows or records of each output by its text; empty where the history does not have them.
        in_doubt: the database has decided it, and as far as the row knows, Kafka lacks it.
        unknown: why nothing of it can be compared; '' where it can. Its ranges explain records all the same.
    """

    batch: int | None
    decision: int
    records: int = 0
    digest: str = ""
    ranges: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    decided_at: datetime | None = None
    rows: int = 0
    outputs: Mapping[str, int] = field(default_factory=dict)
    in_doubt: bool = False
    unknown: str = ""

    @property
    def topics(self) -> frozenset[str]:
        """The topics that it wrote to."""
        return frozenset(partition.topic for partition in self.ranges)


@dataclass(frozen=True, kw_only=True)
class Claims:
    """All batches that the history knows, the oldest first.

    Attributes:
        claims: one for each batch, the last try of each.
        newest_query: index of the first claim of the query that the row belongs to: batch ids are its own from there.
        from_the_start: no batch of the sink is older than these.
        skipped: pairs of batches that follow each other and should not: (3, 5) where 4 is not there.
    """

    claims: tuple[Claim, ...] = ()
    newest_query: int = 0
    from_the_start: bool = False
    skipped: tuple[tuple[int, int], ...] = ()

    @property
    def topics(self) -> frozenset[str]:
        """All topics that are named."""
        return frozenset().union(*(claim.topics | claim.topic_ids.keys() for claim in self.claims))

    @property
    def batch_ids(self) -> list[int]:
        """Of the query that the row belongs to."""
        return [claim.batch for claim in self.claims[self.newest_query :] if claim.batch is not None]


def claims_of(row: StateRow | None, lines: Sequence[HistoryLine], *, cluster_id: str) -> Claims:
    """What a history says of batches.

    Args:
        row: the state row; None where it is lost.
        lines: of its history, the oldest first; where none is kept, the row stands for itself.
        cluster_id: of the Kafka cluster that is asked; lines about another one explain nothing here.
    """
    if not lines and row is not None:
        lines = [HistoryLine("", row)]
    claims: list[Claim] = []
    skipped: list[tuple[int, int]] = []
    newest_query = 0
    for number, line in enumerate(lines):
        if line.event == ADOPTED:
            # A copy of the row with another owner. Where that is another query, it has written nothing yet.
            if line.row.batch_id is None:
                newest_query = len(claims)
            continue
        if line.row.batch_id is None and line.event != PASSED:
            continue
        claim = _claim(line, claims, newest=number == len(lines) - 1, cluster_id=cluster_id)
        before = claims[-1].batch if len(claims) > newest_query else None
        if before is not None and claim.batch == before:
            # What was sent again has its records in the newer line; those of the older one were aborted.
            claims[-1] = claim
            continue
        if before is not None and claim.batch is not None and claim.batch != before + 1 and line.event != PASSED:
            skipped.append((before, claim.batch))
        claims.append(claim)
    first = lines[0].row if lines else None
    whole = first is not None and (first.batch_id is None or (first.batch_id == 0 and lines[0].event != ADOPTED))
    return Claims(claims=tuple(claims), newest_query=newest_query, from_the_start=bool(whole), skipped=tuple(skipped))


def _claim(line: HistoryLine, before: Sequence[Claim], *, newest: bool, cluster_id: str) -> Claim:
    row = line.row
    claim = Claim(
        batch=row.batch_id,
        decision=row.decision,
        records=row.record_count,
        digest=row.digest,
        ranges={TopicPartition.parse(name): at for name, at in row.kafka_offsets.items()},
        topic_ids=dict(row.topic_ids),
        # A batch without records is settled by its decision, which is then no time of its own.
        decided_at=row.decided_at if row.record_count else row.settled_at,
        rows=row.row_count,
        outputs=dict(line.figures.get("outputs", {})),
        in_doubt=newest and row.status in (DECIDED, OWED),
    )
    if row.cluster_id not in (None, cluster_id):
        return replace(claim, ranges={}, unknown=f"it was written to another Kafka cluster, {row.cluster_id}")
    if line.event == PASSED:
        why = "a person went on without it, as the database had lost it"
        return replace(claim, ranges=_passed(claim.ranges, before), unknown=why)
    if line.event == ACCEPTED:
        why = "a person named it when row and history were lost: how many records it has is not known"
        return replace(claim, ranges={at: (first, OPEN_END) for at, (first, _) in claim.ranges.items()}, unknown=why)
    if claim.records and not claim.digest and row.status in (DONE, OWED):
        return replace(claim, unknown="a person gave up its records in Kafka, or let any replay of it pass")
    if claim.records and not claim.ranges:
        return replace(claim, unknown="the history does not say where its records are")
    return claim


def _passed(
    ranges: Mapping[TopicPartition, tuple[int, int]], before: Sequence[Claim]
) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets of batches that were passed over: those that the row knows now and did not know before."""
    known: dict[TopicPartition, int] = {}
    for claim in before:
        known |= {partition: last for partition, (_, last) in claim.ranges.items()}
    return {
        partition: (known.get(partition, first - 1) + 1, last)
        for partition, (first, last) in ranges.items()
        if last > known.get(partition, first - 1)
    }
