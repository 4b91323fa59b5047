"""The procedure of a verification: gather the evidence, read all records once, judge both sides."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from jdbc_state.sqlstate import translated
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, StateStoreError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.api import VerifyRequest
from spark_2pc_sink.verification.dead_letters import check_dead_letters
from spark_2pc_sink.verification.evidence import Evidence, gathered
from spark_2pc_sink.verification.history import HistoryBatch, HistoryCheck, Tally, content_of, record_hash
from spark_2pc_sink.verification.report import BatchResult, DeadLetterResult, Differences, TableResult, VerifyReport
from spark_2pc_sink.verification.table_comparison import ComparedTable, TableComparison, read_all
from spark_2pc_sink.verification.table_pairs import TablePair, chosen_pairs, count_rows
from spark_2pc_sink.verification.topic_reader import headers_of


def run(request: VerifyRequest) -> VerifyReport:
    with gathered(request) as evidence:
        if evidence.row is None:
            name, scope = request.options.transactional_id, str(request.scope)
            return VerifyReport(transactional_id=name, verdict="inconclusive", known=False, scope=scope)
        return _Verification(request, evidence, Differences(request.differences_max)).run()


def compare_tables(
    request: VerifyRequest, evidence: Evidence, differences: Differences, tally: Tally
) -> list[tuple[TablePair, TableComparison, ComparedTable | None]]:
    """Compare each table of the request; None for one that cannot be compared, which is reported."""
    found = []
    pairs = chosen_pairs(request, evidence)
    for pair in pairs:
        directory = request.write_missing
        if directory is not None and len(pairs) > 1:
            directory /= str(TableName.parse(pair.table)).replace('"', "").replace("/", "_")
        with differences.about(pair.table if evidence.has_several else None):
            comparison = TableComparison(request, evidence, differences, pair, directory)
            found.append((pair, comparison, comparison.run(tally)))
    return found


@dataclass
class _Verification:
    """One verification, and its findings so far."""

    request: VerifyRequest
    evidence: Evidence
    differences: Differences
    records: int = 0
    tables: list[TableResult] = field(default_factory=list)
    letters: tuple[DeadLetterResult, ...] = ()
    batches: tuple[BatchResult, ...] = ()
    written: tuple[str, ...] = ()

    def run(self) -> VerifyReport:
        evidence, request, differences = self.evidence, self.request, self.differences
        tally = Tally(evidence.claims.claims, evidence.gone)
        try:
            with translated(evidence.database.named("verify")):
                self._compare_tables(tally)
                self.letters = check_dead_letters(request.options.transactional_id, evidence, differences)
                everything = evidence.bounds(everything=request.scope.is_all)
                left = {at: (max(start, tally.reached.get(at, 0)), end) for at, (start, end) in everything.items()}
                read_all(evidence.reader, left, tally, request.progress, None)
            self.records = tally.records
            if request.table_only:
                differences.skip("the history", "only the table was requested")
            else:
                digests = evidence.layout is None or all(lane.records for lane in evidence.layout.each)
                self.batches = HistoryCheck(
                    known=evidence.claims,
                    chosen=evidence.chosen,
                    logs=evidence.logs,
                    differences=differences,
                    digests=digests,
                    hidden=evidence.hidden,
                    locate=self._locate,
                ).judge(tally)
        except (KafkaError, KafkaTimeoutError, StateStoreError) as error:
            # Findings until then are valid, the rest is unknown.
            differences.skip("the rest", str(error), "solve that, and run verify again")
            return self._report(unsure=True)
        return self._report(unsure=self._is_unsure())

    def _compare_tables(self, tally: Tally) -> None:
        for pair, comparison, found in compare_tables(self.request, self.evidence, self.differences, tally):
            result = TableResult(table=comparison.table, topics=tuple(sorted(comparison.topics)))
            if found is not None:
                result = replace(result, rows=found.rows, columns=found.columns)
                self.written += found.written
            self.tables.append(result)
            if pair.why:
                with self.differences.about(pair.table):
                    count_rows(pair, self.evidence, self.request, self.differences)

    def _locate(self, claim: HistoryBatch, wanted: int) -> tuple[TopicPartition, int] | None:
        """The record in a batch's ranges that has a hash."""
        bounds = self.evidence.bounds_of([self.evidence.claims.claims.index(claim)], self.evidence.logs.ends)
        for at, messages in self.evidence.reader.read(bounds):
            for message in messages:
                content = content_of(message.key(), message.value(), headers_of(message))
                if record_hash(at.topic, content) == wanted:
                    return at, message.offset() or 0
        return None

    def _report(self, *, unsure: bool) -> VerifyReport:
        compared = [table for table in self.tables if table.rows is not None]
        return VerifyReport(
            transactional_id=self.request.options.transactional_id,
            verdict="different" if self.differences.counts else "inconclusive" if unsure else "same",
            scope=str(self.request.scope),
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
        named = self.evidence.has_several and self.request.target.table is not None
        without_table = self.evidence.claims.topics - {topic for table in compared for topic in table.topics}
        without_table -= {letters.topic for letters in self.letters}
        # Parts that the user has named are compared. A topic without a table is covered by the history.
        return not named and bool(without_table or not compared) and not self._history_covers(without_table)

    def _history_covers(self, topics: Collection[str]) -> bool:
        """Whether the history has digests of all of the topics' records, and not only their number."""
        known = self.evidence.claims.from_the_start or not self.request.scope.is_all
        covered = known and bool(self.batches) and all(each.digest_same for each in self.batches)
        if not covered and topics:
            why = "no table has their rows, and the history does not have a digest of all of them"
            what = f"the contents of the records of {', '.join(sorted(topics))}"
            self.differences.skip(what, why, "compare the newest batches, whose digests the history has: --last N")
        return covered
