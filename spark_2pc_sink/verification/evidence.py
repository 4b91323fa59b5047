"""The evidence: state row, history, table and topics, looked at in such an order that a running job is no difference.

1. The ends of the topics, as readers of committed records see them.
2. The snapshot: state row, history and table at one instant. Every record below the ends of step 1 is of a batch that
   was decided before it was committed, and so before the snapshot: a record there that no batch claims is foreign.
3. The newest batch of the snapshot may still be on its way to readers, who get some time to see it. If it stays out of
   their sight it is hidden: excluded and named. Its records are read all the same, for its rows are in the table.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from jdbc_state import OWED, SqlStateStore, StateRow, StoreSettings
from jdbc_state.actions import LAYOUT
from jdbc_state.connections import Database
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.verification.claims import OPEN_END, Claim, Claims, claims_of
from spark_2pc_sink.verification.history_check import Logs, gone_claims
from spark_2pc_sink.verification.reading import Bounds
from spark_2pc_sink.verification.request import Request
from spark_2pc_sink.verification.snapshot import Snapshot, taken_snapshot
from spark_2pc_sink.verification.table_pairs import NotedLayout, letter_topics
from spark_2pc_sink.verification.topic_reader import TopicReader

_PAUSE_S: Final = 0.1
#: Of actions so many lines are kept for each batch of the history: claims with a layout, and what recoveries did; and
#: as many again for what people did.
_LINES_FOR_EACH: Final = 4


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything but the records and the rows.

    Attributes:
        snapshot: of the database.
        database: opens more sessions.
        reader: of the topics.
        layout: of the sink's newest claim; None where none is known.
        noted: the layouts of all its claims that are still known, the oldest first.
        others: by transactional id, the layouts of other sinks in the same state table.
        claims: of all batches that the history knows.
        chosen: indexes of those in the scope.
        logs: the topics, looked at last.
        ends: up to where records are compared, by partition.
        hidden: indexes of claims that readers of committed records do not see, and why.
        gone: by topic, indexes of claims on an earlier topic of its name.
    """

    snapshot: Snapshot
    database: Database
    reader: TopicReader
    layout: SinkLayout | None
    claims: Claims
    chosen: frozenset[int]
    logs: Logs
    ends: Mapping[TopicPartition, int]
    hidden: Mapping[int, str]
    gone: Mapping[str, frozenset[int]] = field(default_factory=dict)
    noted: Sequence[NotedLayout] = ()
    others: Mapping[str, SinkLayout] = field(default_factory=dict)

    @property
    def row(self) -> StateRow | None:
        """The state row, or where it is lost, the newest line of its history."""
        lines = self.snapshot.lines
        return self.snapshot.row or (lines[-1].row if lines else None)

    @property
    def letter_topics(self) -> frozenset[str]:
        """The topics that have, or had, the sink's dead letters: no record there is of a row of a table."""
        return letter_topics(self.noted)

    @property
    def up_to(self) -> int | None:
        """The newest batch that is compared."""
        claims = self.claims.claims
        return next(
            (
                claims[index].batch
                for index in sorted(self.chosen, reverse=True)
                if index not in self.hidden and not claims[index].unknown
            ),
            None,
        )

    def bounds(self, *, everything: bool, to_the_end: bool = False) -> Bounds:
        """What readers of committed records are asked for.

        Args:
            everything: all records, not those of the scope alone.
            to_the_end: up to the newest batch in any case.
        """
        starts = self.logs.starts
        if everything:
            return {at: (starts[at], end) for at, end in self.ends.items()}
        wanted: dict[TopicPartition, tuple[int, int]] = {}
        for index in self.chosen:
            for at, (first, last) in self.claims.claims[index].ranges.items():
                if index in self.gone.get(at.topic, ()) or at not in self.ends:
                    continue
                low, high = wanted.get(at, (first, last))
                wanted[at] = (min(low, first), max(high, last))
        return {
            at: (max(low, starts[at]), self.ends[at] if to_the_end else min(high + 1, self.ends[at]))
            for at, (low, high) in wanted.items()
        }

    def hidden_bounds(self) -> Bounds:
        """Where the records of hidden claims are, as far as the logs still have them."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for index in self.hidden:
            for at, (first, last) in self.claims.claims[index].ranges.items():
                if at in self.logs.starts and index not in self.gone.get(at.topic, ()):
                    low, high = found.get(at, (first, last))
                    found[at] = (min(low, first), max(high, last))
        return {
            at: (max(low, self.logs.starts[at]), min(high + 1, self.logs.written[at]))
            for at, (low, high) in found.items()
        }


@contextmanager
def gathered(request: Request) -> Iterator[Evidence]:
    """Look at both sides, and keep the snapshot for the block.

    Raises:
        ConfigurationError: the scope names a batch that the history does not know.
        DatabaseUnreachableError, StateStoreError, KafkaError, KafkaTimeoutError: a side cannot be read.
    """
    options = request.options
    settings = StoreSettings(**options.store_settings())
    reader = TopicReader(options.kafka)
    with closing(SqlStateStore(options.database, settings)) as store:
        noted = _noted_layouts(store, options.transactional_id, kept=settings.history_batches)
        layout = noted[-1].layout if noted else None
        others = _other_layouts(store, options.transactional_id)
        cluster_id = reader.cluster_id()
        with _snapshot(store.database, request) as early:
            topics = _topics(claims_of(early.row, early.lines, cluster_id=cluster_id), layout, request)
        before = reader.describe(topics)
        with _snapshot(store.database, request) as snapshot:
            claims = claims_of(snapshot.row, snapshot.lines, cluster_id=cluster_id)
            batches = claims.batch_ids
            wanted = request.scope.of(batches)
            _await_newest(reader, claims, wait_ms=request.wait_ms)
            logs = reader.describe(_topics(claims, layout, request))
            gone = gone_claims(claims, logs)
            hidden = _hidden(reader, claims, logs, gone, snapshot.row)
            yield Evidence(
                snapshot=snapshot,
                database=store.database,
                reader=reader,
                layout=layout,
                claims=claims,
                chosen=frozenset(
                    index
                    for index, claim in enumerate(claims.claims)
                    if request.scope.is_all or (index >= claims.newest_query and claim.batch in wanted)
                ),
                logs=logs,
                ends=_ends(before, logs, claims, hidden, gone),
                hidden=hidden,
                gone=gone,
                noted=noted,
                others=others,
            )


def _noted_layouts(store: SqlStateStore, transactional_id: str, *, kept: int) -> list[NotedLayout]:
    """The layouts of a sink's claims, the oldest first."""
    lines = store.read_actions(transactional_id, last=_LINES_FOR_EACH * (kept + 1))
    return [
        NotedLayout(line.at, SinkLayout.parse(line.detail[LAYOUT])) for line in lines[::-1] if LAYOUT in line.detail
    ]


def _other_layouts(store: SqlStateStore, transactional_id: str) -> dict[str, SinkLayout]:
    names = (row.transactional_id for row in store.read_all() if row.transactional_id != transactional_id)
    found = {name: store.read_layout(name) for name in names}
    return {name: SinkLayout.parse(noted) for name, noted in found.items() if noted is not None}


def _snapshot(database: Database, request: Request) -> AbstractContextManager[Snapshot]:
    options = request.options
    return taken_snapshot(
        database,
        StoreSettings(**options.store_settings()),
        options.transactional_id,
        statement_timeout_ms=options.statement_timeout_ms,
    )


def _topics(claims: Claims, layout: SinkLayout | None, request: Request) -> frozenset[str]:
    noted = {request.topic}
    if layout is not None:
        noted |= {layout.dead_letter_topic, *(lane.topic for lane in layout.each)}
    return claims.topics | {topic for topic in noted if topic is not None}


def _await_newest(reader: TopicReader, claims: Claims, *, wait_ms: int) -> None:
    """Give readers of committed records some time to see the newest batch."""
    newest = claims.claims[-1] if claims.claims else None
    if newest is None or newest.unknown or not newest.ranges:
        return
    there = reader.describe(newest.topics)
    wanted = {at: last for at, (_, last) in newest.ranges.items() if last < there.written.get(at, 0)}
    deadline = time.monotonic() + wait_ms / 1000
    while wanted and time.monotonic() < deadline:
        ends = reader.committed_ends(wanted)
        wanted = {at: last for at, last in wanted.items() if ends[at] <= last}
        if wanted:
            time.sleep(_PAUSE_S)


def _hidden(
    reader: TopicReader, claims: Claims, logs: Logs, gone: Mapping[str, Collection[int]], row: StateRow | None
) -> dict[int, str]:
    """The claims that readers of committed records do not see, and why."""
    found = {}
    for index, claim in enumerate(claims.claims):
        if claim.unknown or any(index in gone.get(topic, ()) for topic in claim.topics):
            continue
        held = [at for at, (_, last) in sorted(claim.ranges.items()) if logs.holds_back(at, last)]
        if claim.in_doubt:
            why = _why_in_doubt(reader, claim, row, logs, held)
        elif held:
            why = f"an open transaction holds back readers of {held[0]} at offset {logs.ends[held[0]]}"
        else:
            continue
        if why:
            found[index] = why
    return found


def _why_in_doubt(
    reader: TopicReader, claim: Claim, row: StateRow | None, logs: Logs, held: Collection[TopicPartition]
) -> str:
    """Why a batch is in doubt; '' where Kafka has completed it, and only the row does not say so yet."""
    if row is not None and row.status == OWED:
        return "Kafka lacks it, and the job sends it again: see spark-2pc status"
    left = [
        (at, offset)
        for at, (first, last) in sorted(claim.ranges.items())
        if at in logs.starts and (offset := max(first, logs.starts[at])) <= last
    ]
    if not left and not held:
        # Its logs have lost all of it, which is a difference, whatever became of it.
        return ""
    if not held and next(reader.pick(left[:1], committed=True), None) is not None:
        return ""
    return "the database has decided it, and readers of Kafka do not see it yet: see spark-2pc status"


def _ends(
    before: Logs, now: Logs, claims: Claims, hidden: Mapping[int, str], gone: Mapping[str, Collection[int]]
) -> dict[TopicPartition, int]:
    """Up to where records must be of known batches, or are foreign."""
    ends = {at: min(before.ends.get(at, 0), end) for at, end in now.ends.items()}
    for index, claim in enumerate(claims.claims):
        if index in hidden:
            continue
        for at, (_, last) in claim.ranges.items():
            if at in ends and last != OPEN_END and index not in gone.get(at.topic, ()):
                ends[at] = min(max(ends[at], last + 1), now.ends[at])
    return ends
