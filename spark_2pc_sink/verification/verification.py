"""The procedure of a verification: gather the evidence, read all records once, judge both sides.

The evidence is read in an order in which a running job causes no difference:

1. The ends of the topics, as read_committed consumers see them.
2. The snapshot: state row, history and table at one instant. Every record below the ends of step 1 is of a batch that
   was decided before it was committed, and so before the snapshot: a record there without a batch is foreign.
3. The newest batch of the snapshot may not be visible to consumers yet, so its records are awaited for some time. If it
   stays invisible it is hidden: excluded and named. Its records are still read, as its rows are in the table.

The open transaction's records are compared like those of one batch that is invisible to read_committed consumers.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from psycopg2.extensions import connection as DriverConnection
from sqlalchemy import Connection, text

from jdbc_state import OWED, HistoryLine, SqlStateStore, StateRow
from jdbc_state.actions import LAYOUT
from jdbc_state.connections import Database, discard, driver_connection
from jdbc_state.history import line_of, newest_lines, read_row, trim_step
from jdbc_state.schema import StateTables, quoted
from jdbc_state.sqlstate import translated
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, StateStoreError
from spark_2pc_sink.ids import TopicPartition, TransactionState
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.api import Scope, VerifyRequest
from spark_2pc_sink.verification.dead_letters import check_dead_letters, count_open_dead_letters
from spark_2pc_sink.verification.history import OPEN_END, Claims, HistoryBatch, Tally, claims_of, judge
from spark_2pc_sink.verification.own_client import find_open_records
from spark_2pc_sink.verification.report import Differences, NotComparableError, OpenTransactionRows, VerifyReport
from spark_2pc_sink.verification.staging import SETTINGS, cancelled_on_error, execute, utf8_client
from spark_2pc_sink.verification.table_comparison import TableComparison, read_all
from spark_2pc_sink.verification.table_pairs import NotedLayout, chosen_pairs, count_rows, dead_letter_topics
from spark_2pc_sink.verification.topic_reader import TopicReader

if TYPE_CHECKING:
    from spark_2pc_sink.verification.history import Ranges, TopicLogs

#: Action lines that are read for each batch of the history: claims with a layout and recoveries; and as many again for
#: actions of people.
_LINES_FOR_EACH: Final = 4
#: Querying a missing table would end the transaction.
_EXISTS: Final = text("SELECT to_regclass(:name) IS NOT NULL")


@dataclass(frozen=True)
class Snapshot:
    """One transaction that does not see later commits, with the state row and its history, the oldest line first."""

    connection: Connection
    row: StateRow | None
    lines: Sequence[HistoryLine]

    @property
    def driver(self) -> DriverConnection:
        return cast("DriverConnection", driver_connection(self.connection))

    def run(self, statement: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        return execute(self.driver, statement, values)

    def stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        with self.driver.cursor("verify_stream") as cursor:
            cursor.execute(statement)
            yield from cursor


@contextmanager
def _taken_snapshot(database: Database, tables: StateTables, request: VerifyRequest) -> Iterator[Snapshot]:
    """Take a snapshot for a block; afterwards its session is closed."""
    options, kept = request.options, tables.settings.history_batches
    connection = database.open("verify").execution_options(isolation_level="REPEATABLE READ")
    try:
        driver = driver_connection(connection)
        with cancelled_on_error([driver]), translated(database.named("verify")):
            utf8_client(driver)
            connection.begin()
            connection.exec_driver_sql(f"{SETTINGS}; SET LOCAL statement_timeout = {options.statement_timeout_ms:d}")
            row, lines = None, []
            if connection.scalar(_EXISTS, {"name": quoted(tables.state)}):
                row = read_row(connection, tables.state, options.transactional_id)
            if kept and connection.scalar(_EXISTS, {"name": quoted(tables.history)}):
                newest = newest_lines(tables, options.transactional_id, last=kept + trim_step(kept))
                lines = [line_of(found) for found in connection.execute(newest)][::-1]
            yield Snapshot(connection, row, lines)
    finally:
        discard(connection)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All evidence except the records and the rows, and the differences found in it."""

    request: VerifyRequest
    snapshot: Snapshot
    database: Database
    reader: TopicReader
    claims: Claims
    logs: TopicLogs
    differences: Differences
    #: End of the compared records, by partition.
    ends: Mapping[TopicPartition, int]
    #: The layouts of all its claims that are still known, the oldest first.
    noted: Sequence[NotedLayout] = ()
    #: Layouts of other sinks in the same state table, by transactional id.
    others: Mapping[str, SinkLayout] = field(default_factory=dict)
    #: There is one claim, the open transaction.
    is_open: bool = False

    @property
    def row(self) -> StateRow | None:
        """The state row, or if it is lost, the newest line of its history."""
        lines = self.snapshot.lines
        return self.snapshot.row or (lines[-1].row if lines else None)

    @property
    def layout(self) -> SinkLayout | None:
        return self.noted[-1].layout if self.noted else None

    @property
    def has_several(self) -> bool:
        return self.layout is not None and bool(self.layout.lanes)

    @property
    def has_digests(self) -> bool:
        """Whether the history's digests cover records only."""
        return self.layout is None or all(lane.records for lane in self.layout.each)

    def bounds(self, *, to_the_end: bool = False) -> Ranges:
        """First offset and end of the committed records of the scope; perhaps up to the newest batch."""
        if self.request.scope.is_all:
            return {at: (self.logs.starts[at], end) for at, end in self.ends.items()}
        found = self.bounds_of((claim for claim in self.claims.claims if claim.in_scope), self.ends)
        return {at: (first, self.ends[at] if to_the_end else end) for at, (first, end) in found.items()}

    def bounds_of(self, claims: Iterable[HistoryBatch], ends: Mapping[TopicPartition, int]) -> Ranges:
        """First offset and end of some claims' records in each partition, within the logs."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for claim in claims:
            for at, (first, last) in claim.present.items():
                if at in self.logs.starts and at in ends:
                    low, high = found.get(at, (first, last))
                    found[at] = (min(low, first), max(high, last))
        return {at: (max(low, self.logs.starts[at]), min(high + 1, ends[at])) for at, (low, high) in found.items()}


@contextmanager
def gathered(request: VerifyRequest) -> Iterator[Evidence]:
    """Read both sides, and keep the snapshot for the block."""
    options = request.options
    settings = options.store_settings()
    tables = StateTables(settings)
    reader = TopicReader(options.kafka)
    with closing(SqlStateStore(options.database, settings)) as store:
        lines = store.read_actions(options.transactional_id, last=_LINES_FOR_EACH * (settings.history_batches + 1))
        details = [(line.at, line.detail[LAYOUT]) for line in lines[::-1] if LAYOUT in line.detail]
        noted = [NotedLayout(at, SinkLayout.parse(detail)) for at, detail in details]
        names = (row.transactional_id for row in store.read_all() if row.transactional_id != options.transactional_id)
        others = {name: SinkLayout.parse(found) for name in names if (found := store.read_layout(name)) is not None}
        cluster_id = reader.cluster_id()
        with _taken_snapshot(store.database, tables, request) as early:
            topics = _topics(claims_of(early.row, early.lines, cluster_id=cluster_id), noted[-1:], request)
        before = reader.describe(topics)
        with _taken_snapshot(store.database, tables, request) as snapshot:
            claims = claims_of(snapshot.row, snapshot.lines, cluster_id=cluster_id)
            wanted = request.scope.of(claims.batch_ids)
            topics, deadline = _topics(claims, noted[-1:], request), time.monotonic() + request.wait_ms / 1000
            logs = reader.describe(topics)
            # read_committed consumers get some time to see the newest batch.
            while any(_held(claim, logs) for claim in claims.claims[-1:]) and time.monotonic() < deadline:
                time.sleep(0.1)
                logs = reader.describe(topics)
            ends = {at: min(before.ends.get(at, 0), end) for at, end in logs.ends.items()}
            seen = []
            for index, each in enumerate(claims.claims):
                in_scope = request.scope.is_all or (index >= claims.newest_query and each.batch in wanted)
                claim = replace(each, in_scope=in_scope, gone=logs.replaced(each))
                seen.append(replace(claim, hidden=_why_hidden(claim, reader, logs, snapshot.row)))
                for at, (_, last) in claim.present.items() if not seen[-1].hidden else ():
                    if at in ends and last != OPEN_END:
                        ends[at] = min(max(ends[at], last + 1), logs.ends[at])
            yield Evidence(
                request=request,
                snapshot=snapshot,
                database=store.database,
                reader=reader,
                claims=replace(claims, claims=tuple(seen)),
                logs=logs,
                differences=Differences(request.differences_max),
                ends=ends,
                noted=noted,
                others=others,
            )


def _topics(claims: Claims, newest: Sequence[NotedLayout], request: VerifyRequest) -> frozenset[str]:
    noted = {request.target.topic}
    for each in newest:
        noted |= {each.layout.dead_letter_topic, *(lane.topic for lane in each.layout.each)}
    return claims.topics | {topic for topic in noted if topic is not None}


def _held(claim: HistoryBatch, logs: TopicLogs) -> list[TopicPartition]:
    """The partitions in which an open transaction hides a known batch from consumers."""
    ranges = () if claim.unknown else sorted(claim.ranges.items())
    return [at for at, (_, last) in ranges if logs.ends.get(at, 0) <= last < logs.written.get(at, 0)]


def _why_hidden(claim: HistoryBatch, reader: TopicReader, logs: TopicLogs, row: StateRow | None) -> str:
    """Why read_committed consumers do not see a batch; '' if they do, or that is not known."""
    held = _held(claim, logs)
    if claim.unknown or claim.gone:
        return ""
    if claim.in_doubt and row is not None and row.status == OWED:
        return "Kafka lacks it, and the job will send it again: see spark-2pc status"
    if not claim.in_doubt:
        return f"an open transaction blocks consumers of {held[0]} at offset {logs.ends[held[0]]}" if held else ""
    ranges = ((at, bounds) for at, bounds in sorted(claim.ranges.items()) if at in logs.starts)
    left = [(at, offset) for at, (first, last) in ranges if (offset := max(first, logs.starts[at])) <= last]
    # Perhaps Kafka has completed it, and only the row does not say so yet. If its logs have lost all of it, that is a
    # difference in any case.
    lacks = held or (left and next(reader.pick(left[:1], committed=True), None) is None)
    return "the database has decided it, but consumers do not see it yet: see spark-2pc status" if lacks else ""


def run(request: VerifyRequest) -> VerifyReport:
    name, scope = request.options.transactional_id, str(request.scope)
    with gathered(request) as evidence:
        known = evidence.row is not None
        report = VerifyReport(transactional_id=name, verdict="inconclusive", known=known, scope=scope)
        return _verify(evidence, report) if known else report


def compare_tables(evidence: Evidence, tally: Tally) -> list[TableComparison]:
    """Compare each table, and report what differs, or why it cannot be compared."""
    found, pairs = [], chosen_pairs(evidence)
    for pair in pairs:
        directory = evidence.request.write_missing
        if directory is not None and len(pairs) > 1:
            directory /= str(TableName.parse(pair.table)).replace('"', "").replace("/", "_")
        with evidence.differences.about(pair.table if evidence.has_several else None):
            found.append(TableComparison(evidence, pair, directory))
            try:
                found[-1].run(tally)
            except NotComparableError as error:
                evidence.differences.skip_table(error)
    return found


def _verify(evidence: Evidence, report: VerifyReport) -> VerifyReport:
    request, claims, differences = evidence.request, evidence.claims.claims, evidence.differences
    tally, comparisons = Tally(claims), list[TableComparison]()
    up_to = next((each.batch for each in claims[::-1] if each.in_scope and not each.hidden and not each.unknown), None)
    report = replace(report, up_to=up_to)
    try:
        with translated(evidence.database.named("verify")):
            comparisons = compare_tables(evidence, tally)
            for pair in [each.pair for each in comparisons if each.pair.refusal is not None]:
                with differences.about(pair.table):
                    count_rows(pair, evidence)
            report = replace(report, letters=check_dead_letters(evidence))
            bounds = evidence.bounds()
            left = {at: (max(start, tally.reached.get(at, 0)), end) for at, (start, end) in bounds.items()}
            for _ in read_all(evidence.reader, left, tally, request.progress):
                pass
        report = replace(report, records=tally.records)
        if request.table_only:
            differences.skip("the history", "only the table was requested")
        else:
            report = replace(report, batches=judge(evidence, tally))
        unsure = _is_unsure(evidence, comparisons, report)
    except (KafkaError, KafkaTimeoutError, StateStoreError) as error:
        # Findings until then are valid, the rest is unknown.
        differences.skip("the rest", str(error), "solve that, and run verify again")
        unsure = True
    tables = tuple(each.result for each in comparisons)
    rows = [table.rows for table in tables if table.rows is not None]
    return replace(
        report,
        verdict="different" if differences.counts else "inconclusive" if unsure else "same",
        rows=sum(rows) if rows else None,
        columns=next(table.columns for table in tables if table.rows is not None) if len(rows) == 1 else (),
        tables=tables if evidence.has_several else (),
        written=tuple(path for each in comparisons for path in each.written),
        **differences.fields(),
    )


def _is_unsure(evidence: Evidence, comparisons: Sequence[TableComparison], report: VerifyReport) -> bool:
    """Whether too much was not compared to rely on the rest."""
    if any(each.result.rows is None for each in comparisons):
        return True
    named = evidence.has_several and evidence.request.target.table is not None
    without_table = evidence.claims.topics.difference(*(each.topics for each in comparisons))
    without_table -= {letters.topic for letters in report.letters}
    # Parts that the user has named are compared.
    if named or not (without_table or not comparisons):
        return False
    # A topic without a table is covered by the history, if that has digests of all records, not only their number.
    known = evidence.claims.from_the_start or not evidence.request.scope.is_all
    covered = known and bool(report.batches) and all(each.digest_same for each in report.batches)
    if not covered and without_table:
        why = "no table has their rows, and the history does not have a digest of all of them"
        what = f"the contents of the records of {', '.join(sorted(without_table))}"
        evidence.differences.skip(what, why, "compare the newest batches, whose digests the history has: --last N")
    return not covered


def run_open(request: VerifyRequest) -> VerifyReport:
    with gathered(request) as evidence:
        ranges = find_open_records(evidence)
        found = None if ranges is None else _compare_open(evidence, ranges)
    share = None if found is None else found.share
    return VerifyReport(
        transactional_id=request.options.transactional_id,
        verdict="same" if share == "all" else "different" if share in ("none", "some") else "inconclusive",
        known=evidence.row is not None or found is not None,
        scope="the open transaction",
        records=0 if found is None else found.records,
        open_transaction=found,
        **evidence.differences.fields(),
    )


def _compare_open(evidence: Evidence, ranges: Ranges) -> OpenTransactionRows:
    """Compare records of rows with the tables, and dead letters with theirs; report what cannot be compared."""
    differences = evidence.differences
    logs = evidence.reader.describe({*evidence.logs.topic_ids, *(at.topic for at in ranges)})
    rows = {at: each for at, each in ranges.items() if at.topic not in dead_letter_topics(evidence.noted)}
    letters = {at: (first, last + 1) for at, (first, last) in ranges.items() if at not in rows}
    # Number of records, and of those with a row: of dead letters, and of each group of tables with the same topics.
    counts: dict[object, list[tuple[int, int]]] = defaultdict(list)
    if letters:
        count, there = count_open_dead_letters(evidence, letters)
        if there is None:
            differences.skip("dead letters", "the dead-letter table does not exist, or this role cannot read it")
        else:
            counts[None].append((count, there))
    only = replace(
        evidence,
        request=replace(evidence.request, scope=Scope(last=1), write_missing=None),
        claims=Claims(claims=(HistoryBatch(batch=None, decision=0, ranges=rows, hidden="it is open"),)),
        ends={},
        logs=logs,
        noted=evidence.noted[-1:],
        is_open=True,
    )
    with translated(evidence.database.named("verify")):
        compared = compare_tables(only, Tally(only.claims.claims)) if rows or evidence.has_several else []
    tables = tuple(each.opened for each in compared)
    others = only.claims.topics.difference(*(table.topics for table in tables))
    if others and evidence.has_several:
        differences.skip(f"records of {', '.join(sorted(others))}", "no table that is compared has their rows")
    for table in tables:
        if table.in_table is not None:
            counts[table.topics].append((table.records, table.in_table))
    # For tables with the same topics, the one that lacks most rows counts.
    lowest = [min(each, key=lambda found: found[1] / found[0] if found[0] else 1) for each in counts.values()]
    records, written = sum(count for count, _ in lowest), sum(last + 1 - first for first, last in ranges.values())
    return OpenTransactionRows(
        state=TransactionState.ONGOING,
        records=records or written,
        in_table=sum(there for _, there in lowest) if records or not written else None,
        partitions={str(at): each for at, each in ranges.items()},
        tables=tables if evidence.has_several else (),
    )
