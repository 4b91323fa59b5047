"""The comparison of one table with the records of its topics.

The columns that are compared are found by a sample of the records, the records are read and staged while the database
makes fingerprints of the table, and both are compared as multisets: by fingerprints first, by hashes where those
differ. What differs is left in a temporary table of the snapshot's session, from which it is read back by name, for the
report and for files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg2

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.api import VerifyRequest
from spark_2pc_sink.verification.columns import RecordFacts, TableShape, as_object, read_shape
from spark_2pc_sink.verification.history import Ranges, Tally, content_of, offsets_of
from spark_2pc_sink.verification.repairs import RECORDS, ROWS, Commands, MissingFiles
from spark_2pc_sink.verification.report import Difference, NotComparableError, OpenTable, TableResult
from spark_2pc_sink.verification.staging import NewFieldsError, RecordTexts, Staging, literal, planned
from spark_2pc_sink.verification.table_pairs import TablePair, other_writers
from spark_2pc_sink.verification.target import Target
from spark_2pc_sink.verification.topic_reader import TopicReader
from spark_2pc_sink.verification.values import ValueReader, formats_of, unchanged, value_reader

if TYPE_CHECKING:
    from confluent_kafka import Message

    from spark_2pc_sink.verification.report import DifferenceKind, Side
    from spark_2pc_sink.verification.staging import Reason, Statements
    from spark_2pc_sink.verification.verification import Evidence

#: Consecutive records of a partition, with their offsets.
Portion: TypeAlias = "tuple[TopicPartition, Sequence[Message], list[int]]"

#: Number of partitions sampled for the records' fields, and of records sampled at each end of one.
SAMPLED_PARTITIONS_MAX: Final = 32
SAMPLED_RECORDS: Final = 200
#: What it means for a record and for a row to be unmatched; the text of a pair that differs depends on both.
_KINDS: Final[Sequence[tuple[Side, Reason, DifferenceKind, str]]] = (
    ("kafka", "missing", "missing_in_table", "the table has no row for this record"),
    ("kafka", "differing", "differing", ""),
    ("kafka", "twice", "twice", "Kafka has this record more often than the table has its row"),
    ("table", "missing", "missing_in_kafka", "Kafka has no record of this row"),
    ("table", "twice", "twice", "the table has this row more often than Kafka has its record"),
)
#: Hashes in transit between sessions: above this they go through a file.
_SPOOLED_BYTES_MAX: Final = 8 * 1024 * 1024


def read_all(
    reader: TopicReader, bounds: Ranges, tally: Tally, progress: Callable[[str, int, int], None]
) -> Iterator[Portion]:
    """Read the committed records of some offset ranges, count them, and pass them on with their offsets."""
    # The only loop over all records. It runs for millions of them, so it passes whole runs on.
    total = sum(max(end - start, 0) for start, end in bounds.values())
    reached = {partition: start for partition, (start, _) in bounds.items()}
    done = 0
    progress("reading records", 0, total)
    for partition, messages in reader.read(bounds):
        offsets = offsets_of(messages)
        # Without `headers_of`: a call for each record would cost as much as its hash.
        contents = [content_of(each.key(), each.value(), each.headers()) for each in messages]  # type: ignore[arg-type]
        tally.take(partition, offsets, contents)
        yield partition, messages, offsets
        done += offsets[-1] + 1 - reached[partition]
        reached[partition] = offsets[-1] + 1
        progress("reading records", done, total)
    for partition, (_, end) in bounds.items():
        tally.reached[partition] = max(tally.reached.get(partition, 0), end)
    progress("reading records", total, total)


@dataclass
class TableComparison:
    """Compares one table; ``directory`` is for files with missing records and rows, None for none."""

    evidence: Evidence
    pair: TablePair
    directory: Path | None
    read: ValueReader = unchanged
    #: Files with the records or rows that either side lacks.
    written: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.request: VerifyRequest = self.evidence.request
        request, evidence, pair = self.request, self.evidence, self.pair
        self._snapshot = evidence.snapshot
        self._target: Target = request.target.completed(pair.layout, unordered=pair.unordered)
        self._keyed = self._target.mode != "append"
        #: With upserts and one batch, its index: records of later batches are staged too.
        self._only: int | None = None
        if self._keyed and request.scope.batch is not None:
            self._only = next(index for index, claim in enumerate(evidence.claims.claims) if claim.in_scope)
        self.topics: frozenset[str] = pair.all_topics
        bounds = evidence.bounds(to_the_end=self._only is not None)
        self._bounds: Ranges = {at: bound for at, bound in bounds.items() if at.topic in self.topics}
        hidden = evidence.bounds_of((each for each in evidence.claims.claims if each.hidden), evidence.logs.written)
        self._hidden: Ranges = {at: bound for at, bound in hidden.items() if at.topic in self.topics}
        self.result: TableResult = TableResult(table=self._target.table or "", topics=tuple(sorted(self.topics)))
        #: If not all rows were compared, the records compared; with upserts, the last of each key.
        self.opened: OpenTable = OpenTable(table=self.result.table)

    def run(self, tally: Tally) -> None:
        """Compare, count the records, and report differences; NotComparableError if that is not possible."""
        if self.pair.refusal is not None:
            raise self.pair.refusal
        if not self.result.table:
            raise NotComparableError("the sink has not noted a table", "pass --table TABLE (table)")
        if self.evidence.is_open and not self._hidden:
            self.opened = replace(self.opened, topics=self.result.topics, in_table=0)
            return
        shape = self._shape()
        if not self._bounds and not self._hidden:
            raise NotComparableError(
                "no topic of its rows exists, or was written to in these batches",
                "compare more batches, or name the topic that has its records: --topic TOPIC",
            )
        self.read = value_reader(self.pair.layout, self.request.registry)
        facts, whole = self._sample(), self.request.scope.is_all
        for why in self._why_partial() if whole else ():
            self.evidence.differences.skip("rows without a record", why)
            whole = False
        partitions = sorted(at for at in {*self.evidence.ends, *self._hidden} if at.topic in self.topics)
        while True:
            sql = planned(self._target, shape, facts, partitions, whole=whole)
            try:
                self._stage_and_compare(shape, sql, tally, whole=whole)
                break
            except NewFieldsError as error:
                # Again, with these fields too.
                facts.note(error.values)
        for part in sql.compared.not_checked:
            self.evidence.differences.skip(part.what, part.why)

    def _shape(self) -> TableShape:
        try:
            with self._snapshot.driver.cursor() as cursor:
                shape = read_shape(cursor, self.result.table)
        except ConfigurationError as error:
            if not self.evidence.has_several or self.request.target.table is not None:
                raise
            raise NotComparableError(error.rule, error.remedy) from error
        if role := shape.hidden_from:
            why = f"the table's policies apply to role {role}; a role with BYPASSRLS sees all rows"
            self.evidence.differences.skip("rows that row-level security hides", why)
        return shape

    def _sample(self) -> RecordFacts:
        """The facts of the records, or if consumers see none, of the hidden ones."""
        facts = RecordFacts()
        for bounds, committed in ((self._bounds, True), (self._hidden, False)):
            if facts.records or facts.others:
                break
            chosen = [(at, *bounds[at]) for at in sorted(bounds) if bounds[at][1] > bounds[at][0]]
            sampled = chosen[:SAMPLED_PARTITIONS_MAX]
            for some in (
                {at: (start, min(start + SAMPLED_RECORDS, end)) for at, start, end in sampled},
                {at: (max(end - SAMPLED_RECORDS, start), end) for at, start, end in sampled},
            ):
                for at, messages in self.evidence.reader.read(some, committed=committed):
                    values = (message.value() for message in messages)
                    # A tombstone has no columns.
                    facts.note(self.read(at.topic, value) for value in values if value is not None or not self._keyed)
        return facts

    def _why_partial(self) -> Iterator[str]:
        """Why rows may have no record, though all batches are compared."""
        evidence, pair = self.evidence, self.pair
        claims = evidence.claims.claims
        lacking = [claim.batch for claim, topics in zip(claims, pair.topics[1:], strict=True) if topics is None]
        if lacking or (pair.topics[0] is None and not evidence.claims.from_the_start):
            batches = f"batch {lacking[0]} to {lacking[-1]}" if lacking else "batches that are no longer in the history"
            yield f"no topic had the rows of {batches}, when the sink had other outputs, or tables of other names"
        if others := other_writers(evidence, self.result.table):
            changed = ", and may have changed rows of this one" if self._keyed else ""
            yield f"sink {', '.join(others)} writes the table too{changed}"
        for at, start in sorted(evidence.logs.starts.items()):
            firsts = [claim.ranges[at][0] for claim in claims if at in claim.ranges]
            # If a claim shows the loss, that is a difference.
            if start and at.topic in self.topics and not any(first < start for first in firsts):
                yield f"the log of {at} begins at offset {start}, and earlier records are unknown"
                break
        packed = self.topics & evidence.logs.compacted
        if packed and self._target.mode != "upsert":
            topics = ", ".join(sorted(packed))
            yield f"log compaction of {topics} removes records that later ones of their key supersede"

    def _stage_and_compare(self, shape: TableShape, sql: Statements, tally: Tally, *, whole: bool) -> None:
        reader, progress, run = self.evidence.reader, self.request.progress, self._snapshot.run
        tombstone = self._target.tombstone if self._target.has_tombstones else None
        self._texts = RecordTexts(sql.compared.given.values(), self.read, tombstone)
        with ExitStack() as stack:
            thread = stack.enter_context(ThreadPoolExecutor(1, "verify-table"))
            staging = Staging(stack, self.evidence, sql, self._texts)
            made = thread.submit(run, sql.fingerprints(staged=False)) if whole else None
            self._stage(staging, tally, read_all(reader, self._bounds, tally, progress), seen=True)
            hidden = reader.read(self._hidden, committed=False)
            self._stage(staging, tally, ((at, each, offsets_of(each)) for at, each in hidden), seen=False)
            staging.finish()
            progress("comparing", 0, 1)
            # The database's own error must be raised before a statement fails in the ended transaction.
            table = None if made is None else made.result()
            # The changes are undone when it succeeds; otherwise the transaction cannot be used any more.
            run("SAVEPOINT comparison")
            self._compare(staging, table, shape, tally)
            run("ROLLBACK TO SAVEPOINT comparison; RELEASE SAVEPOINT comparison")
        progress("comparing", 1, 1)

    def _stage(self, staging: Staging, tally: Tally, portions: Iterable[Portion], *, seen: bool) -> None:
        """Load records, those that consumers see or hidden ones; none are held while the database compares."""
        for at, messages, offsets in portions:
            for part in tally.of(at).stretches(offsets):
                claim = None if part.claim < 0 else self.evidence.claims.claims[part.claim]
                hidden = claim is not None and bool(claim.hidden)
                in_scope = part.claim >= self._only if self._only is not None else claim is not None and claim.in_scope
                wanted = hidden or self.request.scope.is_all or in_scope
                if hidden is not seen and wanted and self.pair.describes(part.order, at.topic):
                    staging.take(at, messages, offsets, part)

    def _compare(self, staging: Staging, table: list[tuple[Any, ...]] | None, shape: TableShape, tally: Tally) -> None:
        """Compare the staged records with the table: all rows if there are fingerprints, else those of the records."""
        sql, rows, condition = staging.sessions[0].sql, 0, "true"
        of_batch = "false" if self._only is None else f"place / {len(sql.partitions)} = {self._only + 1}"
        counts = staging.each(f"SELECT count(*) FROM pg_temp.verify_staged WHERE {of_batch}")
        staged = sum(count for ((count,),) in counts)
        if self._keyed:
            staging.each(sql.keep_winners("verify_staged"))
        if table is not None:
            rows = sum(count for _, count, _ in table)
            numbers, sums = Counter[int](), Counter[int]()
            kafka = chain.from_iterable(staging.each(sql.fingerprints(staged=True)))
            for bucket, count, total in chain(kafka, ((bucket, -count, -int(total)) for bucket, count, total in table)):
                numbers[bucket] += count
                sums[bucket] += int(total)
            differing = [bucket for bucket, surplus in numbers.items() if surplus or sums[bucket]]
            if not differing:
                self.result = replace(self.result, rows=rows, columns=sql.compared.names)
                return
            condition = sql.in_buckets(sorted(differing))
        self._collect(staging, sql, condition)
        if self._only is not None:
            self._snapshot.run(f"DELETE FROM pg_temp.verify_records WHERE NOT ({of_batch})")
            ((left,),) = self._snapshot.run("SELECT count(*) FROM pg_temp.verify_records")
            self._skip_some(staged - left, "have been replaced by records of later batches")
        late = self._match(sql, None if table is None else condition)
        self._sql, self._tally, self._rows_too = sql, tally, table is not None
        count = self._report()
        if self.directory is not None and formats_of(self.pair.layout):
            why = "records with a schema cannot be restored from a file; restart the job with accept_replay instead"
            self.evidence.differences.skip("files with what either side lacks", why)
        elif self.directory is not None:
            self.written = self._write(self.directory, shape)
        if table is None:
            ((found, records),) = self._snapshot.run(
                "SELECT (SELECT count(*) FROM pg_temp.verify_rows), (SELECT count(*) FROM pg_temp.verify_records)"
            )
            rows, topics = found - late, self.result.topics
            self.opened = replace(self.opened, topics=topics, records=records, in_table=records - count)
        self.result = replace(self.result, rows=rows, columns=sql.compared.names)

    def _collect(self, staging: Staging, sql: Statements, condition: str) -> None:
        """Copy staged hashes of all sessions to that of the snapshot."""
        self._snapshot.run(sql.make_staged("verify_records"))
        for session in staging.sessions:
            with SpooledTemporaryFile(_SPOOLED_BYTES_MAX) as hashes:
                staged = f"COPY (SELECT * FROM pg_temp.verify_staged WHERE {condition}) TO STDOUT"
                with session.connection.cursor() as cursor:
                    cursor.copy_expert(staged, hashes)
                hashes.seek(0)
                with self._snapshot.driver.cursor() as cursor:
                    cursor.copy_expert("COPY pg_temp.verify_records FROM STDIN", hashes)
        if self._keyed:
            # The records of a key may have been in several sessions.
            self._snapshot.run(sql.keep_winners("verify_records"))

    def _match(self, sql: Statements, of_rows: str | None) -> int:
        """Match the hashes of both sides; the number of records left out because the table has a newer row."""
        run, late = self._snapshot.run, 0
        run("ANALYZE pg_temp.verify_records")
        run(sql.make_rows(of_rows))
        if sql.target.order_first and of_rows is None:
            ((late,),) = run(f"WITH late AS ({sql.drop_late_records()} RETURNING 1) SELECT count(*) FROM late")
            self._skip_some(late, "arrived late: the table keeps a newer row of their key")
        if sql.target.has_tombstones:
            # Their keys have no row, as expected; other tombstones differ from the table.
            obeyed = "gone AND NOT EXISTS (SELECT FROM pg_temp.verify_rows AS t WHERE t.k = r.k)"
            run(f"DELETE FROM pg_temp.verify_records AS r WHERE {obeyed}")
        run(sql.make_unmatched())
        return late

    def _skip_some(self, count: int, what: str) -> None:
        if count:
            scope = "the open transaction" if self.evidence.is_open else self.request.scope
            self.evidence.differences.skip(f"a part of {scope} against the table", f"{count} of its records {what}")

    # --- what differs -------------------------------------------------------------------------------------------------
    # Entries of one side that the other lacks, in a temporary table of the snapshot's session. They are read back from
    # their source by name, for the report and for files; if all records were compared, rows without a record too.

    def _report(self) -> int:
        """Count the differences, and name the first; the number of records without a row."""
        differences = self.evidence.differences
        counted = "SELECT reason, count(place), count(part) FROM pg_temp.verify_unmatched GROUP BY reason"
        counts = {reason: {"kafka": records, "table": rows} for reason, records, rows in self._snapshot.run(counted)}
        for side, reason, kind, text in _KINDS:
            if reason in counts and (count := counts[reason][side]) and (side == "kafka" or self._rows_too):
                named = self._named_records if side == "kafka" else self._named_rows
                found = list(named(reason, kind, text, differences.wanted(kind)))
                for difference in found:
                    differences.add(difference)
                differences.count(kind, count - len(found))
        return sum(sides["kafka"] for sides in counts.values())

    def _write(self, directory: Path, shape: TableShape) -> tuple[str, ...]:
        files = MissingFiles(
            directory=directory,
            shape=shape,
            sql=self._sql,
            layout=self.pair.layout,
            topics=sorted(self.topics),
            commands=Commands(self.request.options, vars(self.request.target)),
        )
        try:
            for reason in ROWS:
                for at, message in self._messages(self._snapshot.stream(self._unmatched(reason, "kafka"))):
                    # A tombstone's missing counterpart is a deletion, not a row.
                    if message.value() is not None or not self._target.has_tombstones:
                        files.add_record(reason, self._answer_about(at, message, self._sql.typed_records))
            of_rows: Iterable[Reason] = RECORDS if self._rows_too else ("differing",)
            for reason in of_rows:
                for found, *texts in self._snapshot.stream(self._sql.rows_at(self._unmatched(reason, "table"))):
                    files.add_row(reason, dict(zip(self._sql.compared.names, texts, strict=True)), found)
        finally:
            written = tuple(files.close())
        return written

    def _unmatched(self, reason: Reason, side: Side) -> str:
        """A query of records: (place, at, and of a pair the row's), or of rows: (part, at)."""
        columns, first = ("place, at, part, row_at", "place") if side == "kafka" else ("part, row_at", "part")
        order = f"place % {len(self._sql.partitions)}, at" if side == "kafka" else "part, row_at"
        found = f"FROM pg_temp.verify_unmatched WHERE reason = '{reason}' AND {first} IS NOT NULL"
        return f"SELECT {columns} {found} ORDER BY {order}"

    def _messages(self, wanted: Iterable[tuple[Any, ...]]) -> Iterator[tuple[TopicPartition, Message]]:
        partitions = self._sql.partitions
        return self.evidence.reader.pick((partitions[place % len(partitions)], at) for place, at, *_ in wanted)

    def _named_rows(self, reason: Reason, kind: DifferenceKind, text: str, most: int) -> Iterator[Difference]:
        side: Side | None = "table" if kind == "twice" else None
        for place in self._snapshot.run(f"{self._unmatched(reason, 'table')} LIMIT {most}"):
            row = self._row(*place)
            yield Difference(kind=kind, text=text, key=self._key(row), side=side, row=row)

    def _named_records(self, reason: Reason, kind: DifferenceKind, text: str, most: int) -> Iterator[Difference]:
        places = self._snapshot.run(f"{self._unmatched(reason, 'kafka')} LIMIT {most}")
        partitions = self._sql.partitions
        pairs = {(partitions[place % len(partitions)], at): row for place, at, *row in places}
        for at, message in self._messages(places):
            offset, key, row = message.offset() or 0, message.key(), None
            shown = as_object(self._texts.read(at.topic, message.value())) if self._texts.plain else None
            keys = {each.name: (shown or {}).get(each.field) for each in self._sql.compared.columns}
            nested = any(isinstance(keys[name], dict) for name in self._sql.key)
            named, what = None if shown is None or nested else self._key(keys), text
            if kind == "differing":
                row = self._row(*pairs[at, offset])
                what, named = self._difference(at, message, *pairs[at, offset]), self._key(row) or named
            elif kind != "twice" and shown is None and self._texts.plain:
                what = "this record is not a JSON object, and the table has no row for it"
            claim = self._tally.of(at).claim_at(offset)
            yield Difference(
                kind=kind,
                text=what,
                key=named or (None if key is None else f"key {key.decode(errors='backslashreplace')}"),
                batch=None if claim < 0 else self.evidence.claims.claims[claim].batch,
                **asdict(at),
                offset=offset,
                side="kafka" if kind == "twice" else None,
                record=shown,
                row=row,
            )

    def _key(self, row: Mapping[str, Any]) -> str | None:
        return ", ".join(f"{name}={row.get(name)}" for name in self._sql.key) or None

    def _row(self, part: int, at: str) -> Mapping[str, Any]:
        ((found, *_),) = self._snapshot.run(self._sql.rows_at(f"VALUES ({part}::oid, '{at}'::tid)"))
        return dict(json.loads(found))

    def _difference(self, at: TopicPartition, message: Message, part: int, row_at: str) -> str:
        """The differences between a record and the row of its key, in their compared form."""
        if message.value() is None and self._sql.target.has_tombstones:
            return "this record is a tombstone, and the table has a row with its key"
        place = f"tableoid = {part} AND ctid = '{row_at}'"
        found = self._answer_about(at, message, lambda record: self._sql.compare_pair(record, place)) or ()
        columns = zip(self._sql.compared.names, found[::3], found[1::3], found[2::3], strict=False)
        told = (f"{name} is {kafka} in Kafka and {row} in the table" for name, other, kafka, row in columns if other)
        return ", ".join(told) or "the row differs from this record"

    def _answer_about(
        self, at: TopicPartition, message: Message, statement: Callable[[str], str]
    ) -> tuple[Any, ...] | None:
        """The one row that a statement about a record returns, as SQL literal; None if the record is not a row."""
        self._snapshot.run("SAVEPOINT record")
        try:
            text = self._texts.make(at, message)
            found = self._snapshot.run(statement(literal([text], self._snapshot.driver)))
        except (psycopg2.DataError, UnicodeDecodeError):
            self._snapshot.run("ROLLBACK TO SAVEPOINT record")
            return None
        self._snapshot.run("RELEASE SAVEPOINT record")
        # A value with several objects is several rows.
        return found[0] if len(found) == 1 else None
