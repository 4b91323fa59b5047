"""The comparison of one table with the records of its rows: what is read for it, what is staged, and what is said."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.commands import Commands
from spark_2pc_sink.verification.comparison import Compared, Comparison, table_fingerprints
from spark_2pc_sink.verification.differences import THE_TABLE, Differences
from spark_2pc_sink.verification.evidence import Evidence
from spark_2pc_sink.verification.lone import Lone
from spark_2pc_sink.verification.missing_files import MissingFiles
from spark_2pc_sink.verification.places import Places
from spark_2pc_sink.verification.reading import Bounds, RecordStage, read_all, sample, stage_uncommitted
from spark_2pc_sink.verification.record_facts import RecordFacts
from spark_2pc_sink.verification.record_key import record_key
from spark_2pc_sink.verification.report import Refusal
from spark_2pc_sink.verification.request import Request
from spark_2pc_sink.verification.schema_values import formats_of, no_registry, value_reader
from spark_2pc_sink.verification.staging import RecordTexts, Staging
from spark_2pc_sink.verification.table_pairs import TablePair, same_table
from spark_2pc_sink.verification.table_plan import TablePlan
from spark_2pc_sink.verification.table_shape import TableShape, hides_rows, read_shape
from spark_2pc_sink.verification.tally import Stretch, Tally
from spark_2pc_sink.verification.target import Target


@dataclass(frozen=True)
class ComparedTable:
    """What a comparison has found.

    Attributes:
        compared: how far it went.
        columns: that were compared.
        written: files with what either side lacks.
    """

    compared: Compared
    columns: tuple[str, ...]
    written: tuple[str, ...] = ()


class TableComparison:
    """Compares one table.

    Args:
        request: of the caller, with the form of this table.
        evidence: all but records and rows.
        differences: takes what is found.
        pair: the table and the topics that tell its rows; None where all topics do.
        directory: for files with what either side lacks; None for none.
    """

    def __init__(
        self,
        request: Request,
        evidence: Evidence,
        differences: Differences,
        *,
        pair: TablePair | None = None,
        directory: Path | None = None,
    ) -> None:
        self._request = request
        self._evidence = evidence
        self._differences = differences
        self._pair = pair
        self._directory = directory
        self._layout = evidence.layout if pair is None else pair.layout
        self._target = request.target.completed(self._layout, unordered=pair is not None and pair.unordered)
        self._read = value_reader(self._layout, request.registry)
        self._keyed = self._target.mode != "append"
        scope = request.scope
        to_the_end = self._keyed and scope.batch is not None
        self._bounds = self._of_pair(evidence.bounds(everything=scope.is_all, to_the_end=to_the_end))
        self._hidden_bounds = self._of_pair(evidence.hidden_bounds())

    @property
    def target(self) -> Target:
        """Table, mode and key."""
        return self._target

    def run(self, tally: Tally) -> ComparedTable | None:
        """Compare, and say what differs; None where that cannot be done, which is said.

        Args:
            tally: takes what the topics of the table hold, where they were read to the end.
        """
        plan = self._plan()
        if plan is None:
            return None

        def compare() -> ComparedTable:
            part = Tally(self._evidence.claims.claims, self._evidence.gone, tally.partitions)
            found = self._stage_and_compare(plan, part)
            tally.add(part, self._bounds)
            return found

        return plan.carry_out(compare, self._differences)

    # --- the plan --------------------------------------------------------------------------------------------------

    def _plan(self) -> TablePlan | None:
        """How the table is compared; None where it cannot be, which is said."""
        shape = self._shape()
        if shape is None:
            return None
        why = self._why_unreadable()
        if why is None:
            plan = TablePlan(self._target, shape, self._sample(), self._places(), whole=self._is_whole())
            why = plan.refusal()
            if why is None:
                plan.sql()
                return plan
        self._differences.skip(THE_TABLE, *why)
        return None

    def _shape(self) -> TableShape | None:
        table = self._target.table
        if table is None:
            self._differences.skip(THE_TABLE, "the sink has noted none", "pass --table TABLE (table)")
            return None
        try:
            with self._evidence.snapshot.cursor() as cursor:
                shape = read_shape(cursor, table)
                role = hides_rows(cursor, shape.table)
        except ConfigurationError as error:
            if self._pair is None or self._request.target.table is not None:
                raise
            self._differences.skip(THE_TABLE, error.rule, error.remedy)
            return None
        if role:
            why = f"the table's policies apply to role {role}: it needs BYPASSRLS, or be another one, to see all rows"
            self._differences.skip("rows that row-level security hides", why)
        return shape

    def _why_unreadable(self) -> Refusal | None:
        """Why no record can be read as a row; None where that is not known yet."""
        if not self._bounds and not self._hidden_bounds:
            return Refusal(
                "no topic of its rows exists, or was written to in these batches",
                "compare more batches, or name the topic that has its records: --topic TOPIC",
            )
        formats = formats_of(self._layout)
        return no_registry(formats) if formats and self._request.registry is None else None

    def _sample(self) -> RecordFacts:
        """The facts of the records, or where readers see none, of those that are hidden from them."""
        reader, keyed = self._evidence.reader, self._keyed
        facts = sample(reader, self._read, self._bounds, tombstones=keyed)
        if facts.records or facts.others:
            return facts
        return sample(reader, self._read, self._hidden_bounds, committed=False, tombstones=keyed)

    def _places(self) -> Places:
        evidence = self._evidence
        return Places([at for at in {*evidence.ends, *evidence.hidden_bounds()} if self._has(at)])

    def _of_pair(self, bounds: Bounds) -> Bounds:
        """Those of the topics that tell the table's rows."""
        return {at: bound for at, bound in bounds.items() if self._has(at)}

    def _has(self, partition: TopicPartition) -> bool:
        if self._pair is None:
            return partition.topic not in self._evidence.letter_topics
        return partition.topic in self._pair.all_topics

    def _is_whole(self) -> bool:
        """Whether every row must have a record; where it need not, says why."""
        if not self._request.scope.is_all:
            return False
        return not any([self._is_untold(), self._is_shared(), self._kafka_has_lost(), self._is_compacted()])

    def _is_untold(self) -> bool:
        """Whether the sink wrote the table when no topic had its rows yet."""
        if self._pair is None:
            return False
        known = self._evidence.claims
        untold = [known.claims[index].batch for index in self._pair.untold]
        older = self._pair.before is None and not known.from_the_start
        if untold or older:
            batches = f"batch {untold[0]} to {untold[-1]}" if untold else "batches that the history has forgotten"
            why = f"no topic had the rows of {batches}: the sink had other outputs, or tables of other names, then"
            self._differences.skip("rows that no record is of", why)
        return bool(untold) or older

    def _is_shared(self) -> bool:
        """Whether another sink writes the table too."""
        table = str(self._target.table)
        others = [
            name
            for name, layout in sorted(self._evidence.others.items())
            if any(lane.table is not None and same_table(lane.table, table) for lane in layout.each)
        ]
        if others:
            why = f"sink {', '.join(others)} writes the table too"
            changed = ", and may have changed rows of this one" if self._keyed else ""
            self._differences.skip("rows that no record is of", why + changed)
        return bool(others)

    def _kafka_has_lost(self) -> bool:
        """Whether the first records of a partition are gone, and no claim shows that as a difference."""
        evidence = self._evidence
        for at, start in sorted(evidence.logs.starts.items()):
            firsts = [claim.ranges[at][0] for claim in evidence.claims.claims if at in claim.ranges]
            if start and self._has(at) and not any(first < start for first in firsts):
                why = f"the log of {at} begins at offset {start}, and what was before is not known"
                self._differences.skip("rows that no record is of", why)
                return True
        return False

    def _is_compacted(self) -> bool:
        """Whether brokers remove records whose rows the table keeps."""
        packed = {at.topic for at in self._evidence.logs.starts if self._has(at)} & self._evidence.logs.compacted
        lossy = bool(packed) and self._target.mode != "upsert"
        if lossy:
            why = (
                f"log compaction of {', '.join(sorted(packed))} removes records that later ones of their key supersede"
            )
            self._differences.skip("rows that no record is of", why)
        return lossy

    # --- the comparison --------------------------------------------------------------------------------------------

    def _stage_and_compare(self, plan: TablePlan, tally: Tally) -> ComparedTable:
        evidence, progress, sql = self._evidence, self._request.progress, plan.sql()
        timeout_ms = self._request.options.statement_timeout_ms
        with (
            Staging(evidence.database, sql, statement_timeout_ms=timeout_ms) as staging,
            ThreadPoolExecutor(1, "verify-table") as thread,
            evidence.snapshot.cancelled_on_error(),
        ):
            texts = RecordTexts.of(sql, self._read)
            table = thread.submit(table_fingerprints, evidence.snapshot, sql) if plan.whole else None
            stage = RecordStage(staging, plan.places, texts, self._is_staged)
            read_all(evidence.reader, self._bounds, tally, stage, progress)
            hidden = RecordStage(staging, plan.places, texts, self._is_hidden)
            stage_uncommitted(evidence.reader, self._hidden_bounds, hidden, tally)
            staging.finish()
            progress("comparing", 0, 1)
            if table is not None:
                # Its session is the snapshot's. So what the database says of the table comes before a statement finds
                # the transaction ended, and nobody waits for the session in the driver, deaf to Ctrl-C.
                table.result()
            with evidence.snapshot.undone():
                comparison = Comparison(evidence.snapshot, staging)
                compared = comparison.part(order=self._only_order(plan)) if table is None else comparison.whole(table)
                sql = staging.sessions[0].sql
                written: tuple[str, ...] = ()
                if not compared.equal:
                    batch_at = self._batch_at(tally)
                    places, read = plan.places, self._read
                    lone = Lone(evidence.snapshot, sql, evidence.reader, places, batch_at=batch_at, read=read)
                    written = self._name(plan, lone)
        progress("comparing", 1, 1)
        self._tell_superseded(compared)
        return ComparedTable(compared, sql.compared.names, written)

    def _tell_superseded(self, compared: Compared) -> None:
        replaced = {
            "have been replaced by records of later batches": compared.superseded,
            "came late: the table keeps a newer row of their key": compared.late,
        }
        for what, count in replaced.items():
            if count:
                why = f"{count} of its records {what}"
                self._differences.skip(f"a part of {self._request.scope} against the table", why)

    def _is_staged(self, partition: TopicPartition, stretch: Stretch) -> bool:
        """Whether committed records are compared with the table."""
        if stretch.claim in self._evidence.hidden or not self._tells(partition, stretch):
            return False
        if self._request.scope.is_all:
            return True
        if self._keyed and self._request.scope.batch is not None:
            return stretch.claim >= min(self._evidence.chosen)
        return stretch.claim in self._evidence.chosen

    def _is_hidden(self, partition: TopicPartition, stretch: Stretch) -> bool:
        return stretch.claim in self._evidence.hidden and self._tells(partition, stretch)

    def _tells(self, partition: TopicPartition, stretch: Stretch) -> bool:
        return self._pair is None or self._pair.tells(stretch.order, partition.topic)

    def _only_order(self, plan: TablePlan) -> int | None:
        """With upserts and one batch: the number of its places, as records of later ones are staged too."""
        if not self._keyed or self._request.scope.batch is None:
            return None
        return plan.places.order_number(min(self._evidence.chosen))

    def _name(self, plan: TablePlan, lone: Lone) -> tuple[str, ...]:
        """Name what differs, and write it to files where these are wanted; their paths."""
        lone.report(self._differences, rows_too=plan.whole)
        if self._directory is None:
            return ()
        if formats_of(self._layout):
            why = "no file can put records with a schema back; a restart of the job with accept_replay can"
            self._differences.skip("files with what either side lacks", why)
            return ()
        sql = plan.sql()
        evidence = self._evidence
        topics = evidence.claims.topics - evidence.letter_topics if self._pair is None else self._pair.all_topics
        writer = MissingFiles(
            self._directory,
            table=str(sql.table),
            columns=sql.compared.names,
            key=sql.key,
            record_key=record_key(self._layout, columns=sql.compared.names, row_key=sql.key),
            record_unknown=sql.compared.record_unknown,
            topics=sorted(topics),
            commands=Commands.of(self._request.options, self._request.shape),
        )
        try:
            lone.write(writer, rows_too=plan.whole)
        finally:
            written = tuple(writer.close())
        return written

    def _batch_at(self, tally: Tally) -> Callable[[TopicPartition, int], int | None]:
        claims = self._evidence.claims.claims

        def batch_at(partition: TopicPartition, offset: int) -> int | None:
            index = tally.of(partition).claim_at(offset)
            return None if index < 0 else claims[index].batch

        return batch_at
