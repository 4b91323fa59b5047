"""The procedure of a verification: gather the evidence, read all records once, judge both sides.

The open transaction's records are compared like those of one batch that is invisible to read_committed consumers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from jdbc_state.sqlstate import translated
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, StateStoreError
from spark_2pc_sink.ids import TransactionState
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.api import Scope, VerifyRequest
from spark_2pc_sink.verification.dead_letters import check_dead_letters, count_open_dead_letters
from spark_2pc_sink.verification.evidence import Evidence, gathered
from spark_2pc_sink.verification.history import Claims, HistoryBatch, HistoryCheck, Ranges, Tally
from spark_2pc_sink.verification.own_client import find_open_records
from spark_2pc_sink.verification.report import (
    BatchResult,
    DeadLetterResult,
    Differences,
    OpenTable,
    OpenTransactionRows,
    TableResult,
    Verdict,
    VerifyReport,
)
from spark_2pc_sink.verification.table_comparison import TableComparison, read_all
from spark_2pc_sink.verification.table_pairs import chosen_pairs, count_rows, dead_letter_topics


def run(request: VerifyRequest) -> VerifyReport:
    with gathered(request) as evidence:
        if evidence.row is None:
            name, scope = request.options.transactional_id, str(request.scope)
            return VerifyReport(transactional_id=name, verdict="inconclusive", known=False, scope=scope)
        return _Verification(evidence, Differences(request.differences_max)).run()


def compare_tables(evidence: Evidence, differences: Differences, tally: Tally) -> list[TableComparison]:
    """Compare each table of the request, and report the differences."""
    found, pairs = [], chosen_pairs(evidence)
    for pair in pairs:
        directory = evidence.request.write_missing
        if directory is not None and len(pairs) > 1:
            directory /= str(TableName.parse(pair.table)).replace('"', "").replace("/", "_")
        with differences.about(pair.table if evidence.has_several else None):
            found.append(TableComparison(evidence, differences, pair, directory))
            found[-1].run(tally)
    return found


@dataclass
class _Verification:
    """One verification, and its findings so far."""

    evidence: Evidence
    differences: Differences
    records: int = 0
    tables: list[TableResult] = field(default_factory=list)
    letters: tuple[DeadLetterResult, ...] = ()
    batches: tuple[BatchResult, ...] = ()
    written: tuple[str, ...] = ()

    def run(self) -> VerifyReport:
        evidence, request, differences = self.evidence, self.evidence.request, self.differences
        tally = Tally(evidence.claims.claims)
        try:
            with translated(evidence.database.named("verify")):
                for found in compare_tables(evidence, differences, tally):
                    self.tables.append(found.result)
                    self.written += found.written
                    if found.pair.refusal is not None:
                        with differences.about(found.pair.table):
                            count_rows(found.pair, evidence, differences)
                self.letters = check_dead_letters(evidence, differences)
                bounds = evidence.bounds()
                left = {at: (max(start, tally.reached.get(at, 0)), end) for at, (start, end) in bounds.items()}
                for _ in read_all(evidence.reader, left, tally, request.progress):
                    pass
            self.records = tally.records
            if request.table_only:
                differences.skip("the history", "only the table was requested")
            else:
                self.batches = HistoryCheck(evidence, differences).judge(tally)
        except (KafkaError, KafkaTimeoutError, StateStoreError) as error:
            # Findings until then are valid, the rest is unknown.
            differences.skip("the rest", str(error), "solve that, and run verify again")
            return self._report(unsure=True)
        return self._report(unsure=self._is_unsure())

    def _report(self, *, unsure: bool) -> VerifyReport:
        request, compared = self.evidence.request, [table for table in self.tables if table.rows is not None]
        return VerifyReport(
            transactional_id=request.options.transactional_id,
            verdict="different" if self.differences.counts else "inconclusive" if unsure else "same",
            scope=str(request.scope),
            up_to=self.evidence.up_to,
            records=self.records,
            rows=sum(table.rows or 0 for table in compared) if compared else None,
            columns=compared[0].columns if len(compared) == 1 else (),
            tables=tuple(self.tables) if self.evidence.has_several else (),
            letters=self.letters,
            batches=self.batches,
            written=self.written,
            **self.differences.fields(),
        )

    def _is_unsure(self) -> bool:
        """Whether too much was not compared to rely on the rest."""
        compared = [table for table in self.tables if table.rows is not None]
        if len(compared) < len(self.tables):
            return True
        named = self.evidence.has_several and self.evidence.request.target.table is not None
        without_table = self.evidence.claims.topics - {topic for table in compared for topic in table.topics}
        without_table -= {letters.topic for letters in self.letters}
        # Parts that the user has named are compared. A topic without a table is covered by the history.
        return not named and bool(without_table or not compared) and not self._history_covers(without_table)

    def _history_covers(self, topics: Collection[str]) -> bool:
        """Whether the history has digests of all of the topics' records, and not only their number."""
        known = self.evidence.claims.from_the_start or not self.evidence.request.scope.is_all
        covered = known and bool(self.batches) and all(each.digest_same for each in self.batches)
        if not covered and topics:
            why = "no table has their rows, and the history does not have a digest of all of them"
            what = f"the contents of the records of {', '.join(sorted(topics))}"
            self.differences.skip(what, why, "compare the newest batches, whose digests the history has: --last N")
        return covered


# --- the open transaction --------------------------------------------------------------------------------------------


def run_open(request: VerifyRequest) -> VerifyReport:
    differences = Differences(request.differences_max)
    with gathered(request) as evidence:
        bounds = find_open_records(evidence, differences)
        found = None if bounds is None else _compare_open(evidence, differences, bounds)
    share = None if found is None else found.share
    verdict: Verdict = "same" if share == "all" else "different" if share in ("none", "some") else "inconclusive"
    return VerifyReport(
        transactional_id=request.options.transactional_id,
        verdict=verdict,
        known=evidence.row is not None or found is not None,
        scope="the open transaction",
        records=0 if found is None else found.records,
        open_transaction=found,
        **differences.fields(),
    )


def _compare_open(evidence: Evidence, differences: Differences, ranges: Ranges) -> OpenTransactionRows:
    """Compare records of rows with the tables, and dead letters with theirs; report what cannot be compared."""
    logs = evidence.reader.describe({*evidence.logs.topic_ids, *(at.topic for at in ranges)})
    rows = {at: each for at, each in ranges.items() if at.topic not in dead_letter_topics(evidence.noted)}
    letters = {at: (first, last + 1) for at, (first, last) in ranges.items() if at not in rows}
    compared = []
    if letters:
        count, there = count_open_dead_letters(evidence, letters)
        if there is None:
            differences.skip("dead letters", "the dead-letter table does not exist, or this role cannot read it")
        else:
            compared.append((count, there))
    only = replace(
        evidence,
        request=replace(evidence.request, scope=Scope(last=1), write_missing=None),
        claims=Claims(claims=(HistoryBatch(batch=None, decision=0, ranges=rows, hidden="it is open"),)),
        ends={},
        logs=logs,
        noted=evidence.noted[-1:],
        is_open=True,
    )
    tables: list[OpenTable] = []
    if rows or evidence.has_several:
        with translated(evidence.database.named("verify")):
            for found in compare_tables(only, differences, Tally(only.claims.claims)):
                name, topics = found.result.table, () if found.in_table is None else found.result.topics
                tables.append(OpenTable(table=name, topics=topics, records=found.records, in_table=found.in_table))
        others = only.claims.topics.difference(*(table.topics for table in tables))
        if others and evidence.has_several:
            differences.skip(f"records of {', '.join(sorted(others))}", "no table that is compared has their rows")
    counts = defaultdict(list)
    for table in tables:
        if table.in_table is not None:
            counts[table.topics].append((table.records, table.in_table))
    # For tables with the same topics, the one that lacks most rows counts.
    compared += [min(each, key=lambda found: found[1] / found[0] if found[0] else 1) for each in counts.values()]
    records, written = sum(count for count, _ in compared), sum(last + 1 - first for first, last in ranges.values())
    return OpenTransactionRows(
        state=TransactionState.ONGOING,
        records=records or written,
        in_table=sum(there for _, there in compared) if records or not written else None,
        partitions={str(at): each for at, each in ranges.items()},
        tables=tuple(tables) if evidence.has_several else (),
    )
