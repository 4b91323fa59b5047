"""The procedure of a verification: gather the evidence, read all records once, judge both sides."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from jdbc_state.sqlstate import translated
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, StateStoreError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.claims import Claim
from spark_2pc_sink.verification.commands import Commands
from spark_2pc_sink.verification.comparison import Compared, Comparison, table_fingerprints
from spark_2pc_sink.verification.differences import Differences
from spark_2pc_sink.verification.evidence import Evidence, gathered
from spark_2pc_sink.verification.history_check import HistoryCheck
from spark_2pc_sink.verification.lone import Lone
from spark_2pc_sink.verification.missing_files import MissingFiles
from spark_2pc_sink.verification.places import Places
from spark_2pc_sink.verification.reading import Bounds, RecordStage, read_all, sample, stage_uncommitted
from spark_2pc_sink.verification.record_digest import content_of, record_hash
from spark_2pc_sink.verification.record_key import record_key
from spark_2pc_sink.verification.report import BatchResult, Verdict, VerifyReport
from spark_2pc_sink.verification.request import Request
from spark_2pc_sink.verification.schema_values import formats_of, no_registry, value_reader
from spark_2pc_sink.verification.staging import NewFieldsError, NotRowsError, RecordTexts, Staging
from spark_2pc_sink.verification.table_plan import TablePlan
from spark_2pc_sink.verification.table_shape import read_shape
from spark_2pc_sink.verification.tally import Stretch, Tally
from spark_2pc_sink.verification.topic_reader import headers_of


def run(request: Request) -> VerifyReport:
    """Compare both sides as `spark_2pc_sink.verification.api.verify` says."""
    begun = time.monotonic()
    with gathered(request) as evidence:
        if evidence.row is None:
            report = VerifyReport(
                transactional_id=request.options.transactional_id,
                verdict="not_checked",
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
    compared: Compared | None = None
    columns: tuple[str, ...] = ()
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
        self._upsert = request.target.completed(evidence.layout).mode != "append"
        self._read = value_reader(evidence.layout, request.registry)
        scope = request.scope
        self._bounds = evidence.bounds(everything=scope.is_all, to_the_end=self._upsert and scope.batch is not None)

    def run(self) -> VerifyReport:
        """Read, compare, and say what was found."""
        plan = self._plan()
        try:
            with translated(self._evidence.database.named("verify")):
                tally = self._compare(plan)
            self._outcome.records = tally.records
            self._judge_history(tally)
        except (KafkaError, KafkaTimeoutError, StateStoreError) as error:
            # What was found until then is true, and what was not is unknown.
            self._differences.skip("the rest", str(error))
            self._outcome.broken = True
        return self._report()

    # --- the table -------------------------------------------------------------------------------------------------

    def _plan(self) -> TablePlan | None:
        """How the table is compared; None where it cannot be, which is said."""
        evidence = self._evidence
        if evidence.layout is not None and evidence.layout.lanes:
            why = "the sink has several outputs: of these, topics are compared with the history alone"
            self._differences.skip("tables", why)
            return None
        target = self._request.target.completed(evidence.layout)
        if target.table is None:
            why = "nobody has said which one it is: pass table (--table); jobs of this version note it by themselves"
            self._differences.skip("the table", why)
            return None
        with evidence.snapshot.cursor() as cursor:
            shape = read_shape(cursor, target.table)
        if not self._bounds and not evidence.hidden:
            self._differences.skip("the table", "no topic of the sink is known, or there")
            return None
        if (formats := formats_of(evidence.layout)) and self._request.registry is None:
            self._differences.skip("the table", no_registry(formats))
            return None
        keyed = target.mode != "append"
        facts = sample(evidence.reader, self._read, self._bounds, tombstones=keyed)
        if not facts.records and not facts.others:
            facts = sample(evidence.reader, self._read, evidence.hidden_bounds(), committed=False, tombstones=keyed)
        places = Places({*evidence.ends, *evidence.hidden_bounds()})
        plan = TablePlan(target, shape, facts, places, whole=self._request.scope.is_all and self._kafka_is_whole())
        if refusal := plan.refusal():
            self._differences.skip("the table", refusal)
            return None
        plan.sql()
        return plan

    def _kafka_is_whole(self) -> bool:
        """Whether Kafka still has the first record of each partition, or else that it has lost some is a difference."""
        evidence = self._evidence
        for at, start in sorted(evidence.logs.starts.items()):
            firsts = [claim.ranges[at][0] for claim in evidence.claims.claims if at in claim.ranges]
            if start and not any(first < start for first in firsts):
                what = "rows that no record is of"
                why = f"the log of {at} begins at offset {start}, and what was before is not known"
                self._differences.skip(what, why)
                return False
        return True

    def _compare(self, plan: TablePlan | None) -> Tally:
        """Read everything once; again where records turn up that the plan does not fit."""
        while True:
            tally = Tally(self._evidence.claims.claims, self._evidence.gone)
            try:
                if plan is None:
                    read_all(self._evidence.reader, self._bounds, tally, None, self._request.progress)
                else:
                    self._stage_and_compare(plan, tally)
                    plan.explain(self._differences)
            except NewFieldsError as error:
                assert plan is not None
                plan.learn(error.values)
            except NotRowsError as error:
                self._differences.skip("the table", f"most records cannot become rows of it: {error}")
                plan = None
            else:
                return tally

    def _stage_and_compare(self, plan: TablePlan, tally: Tally) -> None:
        evidence, progress, sql = self._evidence, self._request.progress, plan.sql()
        with (
            Staging(evidence.database, sql, statement_timeout_ms=self._request.options.statement_timeout_ms) as staging,
            ThreadPoolExecutor(1, "verify-table") as thread,
        ):
            texts = RecordTexts.of(sql, self._read)
            table = thread.submit(table_fingerprints, evidence.snapshot, sql) if plan.whole else None
            read_all(
                evidence.reader,
                self._bounds,
                tally,
                RecordStage(staging, plan.places, texts, self._is_staged),
                progress,
            )
            hidden = RecordStage(staging, plan.places, texts, lambda stretch: stretch.claim in evidence.hidden)
            stage_uncommitted(evidence.reader, evidence.hidden_bounds(), hidden, tally)
            staging.finish()
            progress("comparing", 0, 1)
            comparison = Comparison(evidence.snapshot, staging)
            compared = comparison.part(order=self._only_order(plan)) if table is None else comparison.whole(table)
            sql = staging.sessions[0].sql
        self._outcome.compared, self._outcome.columns = compared, sql.compared.names
        if not compared.equal:
            batch_at = self._batch_at(tally)
            lone = Lone(evidence.snapshot, sql, evidence.reader, plan.places, batch_at=batch_at, read=self._read)
            self._name(plan, lone)
        progress("comparing", 1, 1)

    def _is_staged(self, stretch: Stretch) -> bool:
        """Whether committed records are compared with the table."""
        if stretch.claim in self._evidence.hidden:
            return False
        if self._request.scope.is_all:
            return True
        if self._upsert and self._request.scope.batch is not None:
            return stretch.claim >= min(self._evidence.chosen)
        return stretch.claim in self._evidence.chosen

    def _only_order(self, plan: TablePlan) -> int | None:
        """With upserts and one batch: the number of its places, as records of later ones are staged too."""
        if not self._upsert or self._request.scope.batch is None:
            return None
        return plan.places.order_number(min(self._evidence.chosen))

    def _name(self, plan: TablePlan, lone: Lone) -> None:
        lone.report(self._differences, rows_too=plan.whole)
        directory = self._request.write_missing
        if directory is None:
            return
        if formats_of(self._evidence.layout):
            why = "no file can put records with a schema back; a restart of the job with accept_replay can"
            self._differences.skip("files with what either side lacks", why)
            return
        sql = plan.sql()
        writer = MissingFiles(
            directory,
            table=str(sql.table),
            columns=sql.compared.names,
            key=sql.key,
            record_key=record_key(self._evidence.layout, columns=sql.compared.names, row_key=sql.key),
            topics=sorted(self._evidence.claims.topics),
            commands=Commands.of(self._request.options, self._request.shape),
        )
        try:
            lone.write(writer, rows_too=plan.whole)
        finally:
            self._outcome.written = tuple(writer.close())

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

    def _batch_at(self, tally: Tally) -> Callable[[TopicPartition, int], int | None]:
        claims = self._evidence.claims.claims

        def batch_at(partition: TopicPartition, offset: int) -> int | None:
            index = tally.of(partition).claim_at(offset)
            return None if index < 0 else claims[index].batch

        return batch_at

    # --- the report ------------------------------------------------------------------------------------------------

    def _report(self) -> VerifyReport:
        outcome, compared = self._outcome, self._outcome.compared
        if compared is not None and compared.superseded:
            why = f"{compared.superseded} of its records have been replaced by records of later batches"
            self._differences.skip(f"a part of {self._request.scope} against the table", why)
        return VerifyReport(
            transactional_id=self._request.options.transactional_id,
            verdict=self._verdict(),
            scope=str(self._request.scope),
            up_to=self._evidence.up_to,
            records=outcome.records,
            rows=None if compared is None else compared.rows,
            columns=outcome.columns,
            batches=outcome.batches,
            counts=dict(self._differences.counts),
            differences=tuple(self._differences.kept),
            not_checked=tuple(self._differences.not_checked),
            written=outcome.written,
        )

    def _verdict(self) -> Verdict:
        if self._differences.counts.total():
            return "different"
        return "not_checked" if self._outcome.broken or self._outcome.compared is None else "same"
