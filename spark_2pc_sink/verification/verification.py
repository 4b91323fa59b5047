"""The procedure of a verification: gather the evidence, read all records once, judge both sides."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from jdbc_state.sqlstate import translated
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, StateStoreError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.claims import Claim
from spark_2pc_sink.verification.differences import THE_TABLE, Differences
from spark_2pc_sink.verification.evidence import Evidence, gathered
from spark_2pc_sink.verification.history_check import HistoryCheck
from spark_2pc_sink.verification.letter_check import LetterCheck
from spark_2pc_sink.verification.reading import Bounds, read_all
from spark_2pc_sink.verification.record_digest import content_of, record_hash
from spark_2pc_sink.verification.report import BatchResult, LetterResult, TableResult, Verdict, VerifyReport
from spark_2pc_sink.verification.request import Request
from spark_2pc_sink.verification.row_counts import count_rows
from spark_2pc_sink.verification.table_choice import chosen_pairs
from spark_2pc_sink.verification.table_comparison import TableComparison
from spark_2pc_sink.verification.table_pairs import NO_TOPIC, TablePair
from spark_2pc_sink.verification.tally import Tally
from spark_2pc_sink.verification.topic_reader import headers_of


def run(request: Request) -> VerifyReport:
    """Compare both sides as `spark_2pc_sink.verification.api.verify` says."""
    begun = time.monotonic()
    with gathered(request) as evidence:
        if evidence.row is None:
            report = VerifyReport(
                transactional_id=request.options.transactional_id,
                verdict="inconclusive",
                known=False,
                scope=str(request.scope),
            )
        else:
            report = Verification(request, evidence).run()
    return replace(report, seconds=round(time.monotonic() - begun, 3))


@dataclass
class _Outcome:
    """What a verification has found so far."""

    records: int = 0
    tables: list[TableResult] = field(default_factory=list)
    letters: tuple[LetterResult, ...] = ()
    batches: tuple[BatchResult, ...] = ()
    written: tuple[str, ...] = ()
    broken: bool = False


class Verification:
    """One verification.

    Args:
        request: of the caller.
        evidence: all but records and rows.
    """

    def __init__(self, request: Request, evidence: Evidence) -> None:
        self._request = request
        self._evidence = evidence
        self._differences = Differences(request.differences_max)
        self._outcome = _Outcome()
        self._pairs = chosen_pairs(request, evidence)

    def run(self) -> VerifyReport:
        """Read, compare, and say what was found."""
        tally = Tally(self._evidence.claims.claims, self._evidence.gone)
        try:
            with translated(self._evidence.database.named("verify")):
                self._compare_tables(tally)
                self._compare_letters()
                self._read_the_rest(tally)
            self._outcome.records = tally.records
            self._judge_history(tally)
        except (KafkaError, KafkaTimeoutError, StateStoreError) as error:
            # What was found until then is true, and what was not is unknown.
            self._differences.skip("the rest", str(error), "settle that, and call verify again")
            self._outcome.broken = True
        return self._report()

    # --- the tables ------------------------------------------------------------------------------------------------

    @property
    def _several(self) -> bool:
        """Whether the sink has several outputs, which are then named."""
        return self._evidence.layout is not None and bool(self._evidence.layout.lanes)

    @property
    def _record_topics(self) -> frozenset[str]:
        """The topics of the sink that have no dead letters."""
        return self._evidence.claims.topics - self._evidence.letter_topics

    def _compare_tables(self, tally: Tally) -> None:
        for pair in self._pairs:
            if pair is None or not self._several:
                self._compare(pair, tally)
                continue
            with self._differences.about(pair.table):
                if pair.why:
                    self._not_told(pair)
                else:
                    self._compare(pair, tally)

    def _compare(self, pair: TablePair | None, tally: Tally) -> None:
        directory = self._request.write_missing
        if pair is not None and directory is not None and len(self._pairs) > 1:
            directory /= str(TableName.parse(pair.table)).replace('"', "").replace("/", "_")
        comparison = TableComparison(self._request, self._evidence, self._differences, pair=pair, directory=directory)
        found = comparison.run(tally)
        self._outcome.tables.append(
            TableResult(
                table=comparison.target.table or "",
                topics=tuple(sorted(self._record_topics if pair is None else pair.all_topics)),
                rows=None if found is None else found.compared.rows,
                columns=() if found is None else found.columns,
            )
        )
        if found is not None:
            self._outcome.written += found.written

    def _not_told(self, pair: TablePair) -> None:
        """Say of a table why nothing of it is compared with records, and count its rows where that tells something."""
        self._differences.skip(THE_TABLE, pair.why, NO_TOPIC)
        self._outcome.tables.append(TableResult(table=pair.table))
        count_rows(pair, self._evidence, self._request, self._differences)

    def _compare_letters(self) -> None:
        check = LetterCheck(self._request.options.transactional_id, self._evidence, self._differences)
        self._outcome.letters = check.run()

    def _read_the_rest(self, tally: Tally) -> None:
        """Count the records of topics that were read for no table."""
        everything = self._evidence.bounds(everything=self._request.scope.is_all)
        bounds = {at: bound for at, bound in everything.items() if at not in tally.partitions}
        read_all(self._evidence.reader, bounds, tally, None, self._request.progress)

    # --- the history -----------------------------------------------------------------------------------------------

    def _judge_history(self, tally: Tally) -> None:
        if self._request.table_only:
            self._differences.skip("the history", "only the table was asked for")
        else:
            self._outcome.batches = self._history_check().judge(tally)

    def _history_check(self) -> HistoryCheck:
        evidence = self._evidence
        return HistoryCheck(
            evidence.claims,
            evidence.chosen,
            evidence.logs,
            self._differences,
            digests=evidence.layout is None or all(lane.records for lane in evidence.layout.each),
            hidden=evidence.hidden,
            locate=self._locate,
        )

    def _locate(self, claim: Claim, wanted: int) -> tuple[TopicPartition, int] | None:
        """The record in a batch's ranges that has a hash."""
        starts, ends = self._evidence.logs.starts, self._evidence.logs.ends
        bounds: Bounds = {
            at: (max(first, starts[at]), min(last + 1, ends[at]))
            for at, (first, last) in claim.ranges.items()
            if at in starts
        }
        for at, messages in self._evidence.reader.read(bounds):
            for message in messages:
                content = content_of(message.key(), message.value(), headers_of(message))
                if record_hash(at.topic, content) == wanted:
                    return at, message.offset() or 0
        return None

    # --- the report ------------------------------------------------------------------------------------------------

    def _report(self) -> VerifyReport:
        outcome = self._outcome
        compared = [table for table in outcome.tables if table.rows is not None]
        unsure = self._is_unsure(compared)
        verdict: Verdict = "inconclusive" if outcome.broken or unsure else "same"
        return VerifyReport(
            transactional_id=self._request.options.transactional_id,
            verdict="different" if self._differences.counts.total() else verdict,
            scope=str(self._request.scope),
            up_to=self._evidence.up_to,
            records=outcome.records,
            rows=sum(table.rows or 0 for table in compared) if compared else None,
            columns=compared[0].columns if len(compared) == 1 else (),
            tables=tuple(outcome.tables) if self._several else (),
            letters=outcome.letters,
            batches=outcome.batches,
            counts=dict(self._differences.counts),
            differences=tuple(self._differences.kept),
            not_checked=tuple(self._differences.not_checked),
            written=outcome.written,
        )

    def _is_unsure(self, compared: Sequence[TableResult]) -> bool:
        """Whether so much was not compared that nobody should rely on the rest."""
        if len(compared) < len(self._pairs):
            return True
        named = self._several and self._request.target.table is not None
        lonely = self._evidence.claims.topics - {topic for table in compared for topic in table.topics}
        lonely -= {letters.topic for letters in self._outcome.letters}
        # What a person has asked for by name is compared. Of a topic that tells no table's rows there is the history.
        return not named and bool(lonely or not compared) and not self._history_tells(lonely)

    def _history_tells(self, topics: Collection[str]) -> bool:
        """Whether the history knows what the records of topics are, and not their number alone."""
        known = self._evidence.claims.from_the_start or not self._request.scope.is_all
        told = known and bool(self._outcome.batches) and all(each.digest_same for each in self._outcome.batches)
        if not told and topics:
            why = "no table has their rows, and the history does not tell all of them by a digest"
            what = f"what the records of {', '.join(sorted(topics))} say"
            self._differences.skip(what, why, "compare the newest batches, which the history tells: --last N")
        return told
