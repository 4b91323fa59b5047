"""Entries of one side that the other lacks, by name: read back from their source, for the report and for files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg2

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.verification.api import VerifyRequest
from spark_2pc_sink.verification.columns import TableShape, as_object
from spark_2pc_sink.verification.evidence import Evidence
from spark_2pc_sink.verification.expressions import record_key
from spark_2pc_sink.verification.history import Tally
from spark_2pc_sink.verification.repairs import Commands, MissingFiles
from spark_2pc_sink.verification.report import Difference, DifferenceKind, Differences
from spark_2pc_sink.verification.staging import RecordTexts, literal
from spark_2pc_sink.verification.statements import Reason, Statements
from spark_2pc_sink.verification.values import ValueReader

if TYPE_CHECKING:
    from confluent_kafka import Message

_OF_RECORDS: Final[Mapping[Reason, DifferenceKind]] = {
    "missing": "missing_in_table",
    "differing": "differing",
    "twice": "twice",
}
_OF_ROWS: Final[Mapping[Reason, DifferenceKind]] = {"missing": "missing_in_kafka", "twice": "twice"}


class Unmatched:
    """Names the differences that a comparison has left in the session of the snapshot.

    If all records were compared, ``rows_too`` names rows without a record too.
    """

    def __init__(
        self,
        request: VerifyRequest,
        evidence: Evidence,
        sql: Statements,
        read: ValueReader,
        *,
        tally: Tally,
        rows_too: bool,
    ) -> None:
        self._request = request
        self._evidence = evidence
        self._snapshot = evidence.snapshot
        self._sql = sql
        self._tally = tally
        self._texts = RecordTexts(sql.compared.given.values(), read)
        self._rows_too = rows_too

    def report(self, differences: Differences) -> int:
        """Count the differences, and name the first; the number of records without a row."""
        counted = "SELECT reason, count(place), count(part) FROM pg_temp.verify_unmatched GROUP BY reason"
        counts = {reason: (records, rows) for reason, records, rows in self._snapshot.run(counted)}
        for of_rows, kinds, named in ((0, _OF_RECORDS, self._named_records), (1, _OF_ROWS, self._named_rows)):
            for reason, kind in kinds.items() if self._rows_too or not of_rows else ():
                count = counts.get(reason, (0, 0))[of_rows]
                found = list(named(reason, kind, differences.wanted(kind))) if count else []
                for difference in found:
                    differences.add(difference)
                differences.count(kind, count - len(found))
        return sum(records for records, _ in counts.values())

    def write(
        self, directory: Path, shape: TableShape, layout: SinkLayout | None, topics: Sequence[str]
    ) -> tuple[str, ...]:
        key = record_key(layout, columns=self._sql.compared.names, row_key=self._sql.key)
        commands = Commands.of(self._request.options, self._request.shape)
        files = MissingFiles(directory, shape=shape, sql=self._sql, record_key=key, topics=topics, commands=commands)
        try:
            for reason in _OF_RECORDS:
                for at, message in self._messages(self._snapshot.stream(self._records(reason))):
                    # A tombstone's missing counterpart is a deletion, not a row.
                    if message.value() is not None or not self._sql.has_tombstones:
                        files.add_record(reason, self._answer_about(at, message, self._sql.typed_records))
            of_rows: Iterable[Reason] = _OF_RECORDS if self._rows_too else ("differing",)
            for reason in of_rows:
                for found, *texts in self._snapshot.stream(self._sql.rows_at(self._rows(reason))):
                    files.add_row(reason, dict(zip(self._sql.compared.names, texts, strict=True)), found)
        finally:
            written = tuple(files.close())
        return written

    def _records(self, reason: Reason) -> str:
        partition = f"place % {len(self._sql.partitions)}"
        found = f"FROM pg_temp.verify_unmatched WHERE reason = '{reason}' AND place IS NOT NULL"
        return f"SELECT place, at, part, row_at {found} ORDER BY {partition}, at"

    def _rows(self, reason: Reason) -> str:
        found = f"FROM pg_temp.verify_unmatched WHERE reason = '{reason}' AND part IS NOT NULL"
        return f"SELECT part, row_at {found} ORDER BY part, row_at"

    def _messages(self, wanted: Iterable[tuple[Any, ...]]) -> Iterator[tuple[TopicPartition, Message]]:
        partitions = self._sql.partitions
        return self._evidence.reader.pick((partitions[place % len(partitions)], at) for place, at, *_ in wanted)

    def _named_rows(self, reason: Reason, kind: DifferenceKind, most: int) -> Iterator[Difference]:
        text = {
            "missing": "Kafka has no record of this row",
            "twice": "the table has this row more often than Kafka has its record",
        }[reason]
        for part, at in self._snapshot.run(f"{self._rows(reason)} LIMIT {most}"):
            row = self._row(part, at)
            side = "table" if kind == "twice" else None
            yield Difference(kind=kind, text=text, key=self._key(row), side=side, row=row)  # type: ignore[arg-type]

    def _named_records(self, reason: Reason, kind: DifferenceKind, most: int) -> Iterator[Difference]:
        places = self._snapshot.run(f"{self._records(reason)} LIMIT {most}")
        partitions = self._sql.partitions
        pairs = {(partitions[place % len(partitions)], at): row for place, at, *row in places}
        for at, message in self._messages(places):
            offset, key, row = message.offset() or 0, message.key(), None
            shown = as_object(self._texts.read(at.topic, message.value())) if self._texts.plain else None
            text = "the table has no row for this record"
            named = self._key_of_record(shown) if shown is not None else None
            if kind == "twice":
                text = "Kafka has this record more often than the table has its row"
            elif kind == "differing":
                row = self._row(*pairs[at, offset])
                text, named = self._difference(at, message, *pairs[at, offset]), self._key(row) or named
            elif shown is None and self._texts.plain:
                text = "this record is not a JSON object, and the table has no row for it"
            claim = self._tally.of(at).claim_at(offset)
            yield Difference(
                kind=kind,
                text=text,
                key=named or (None if key is None else f"key {key.decode(errors='backslashreplace')}"),
                batch=None if claim < 0 else self._evidence.claims.claims[claim].batch,
                topic=at.topic,
                partition=at.partition,
                offset=offset,
                side="kafka" if kind == "twice" else None,
                record=shown,
                row=row,
            )

    def _key(self, row: Mapping[str, Any]) -> str | None:
        return ", ".join(f"{name}={row.get(name)}" for name in self._sql.key) or None

    def _key_of_record(self, record: Mapping[str, Any]) -> str | None:
        found = {column.name: record.get(column.field) for column in self._sql.compared.named(self._sql.key)}
        return None if any(isinstance(value, dict) for value in found.values()) else self._key(found)

    def _row(self, part: int, at: str) -> Mapping[str, Any]:
        ((found, *_),) = self._snapshot.run(self._sql.rows_at(f"VALUES ({part}::oid, '{at}'::tid)"))
        row: Mapping[str, Any] = json.loads(found)
        return row

    def _difference(self, at: TopicPartition, message: Message, part: int, row_at: str) -> str:
        """The differences between a record and the row of its key, in their compared form."""
        if message.value() is None and self._sql.has_tombstones:
            return "this record is a tombstone, and the table has a row with its key"
        place = f"tableoid = {part} AND ctid = '{row_at}'"
        found = self._answer_about(at, message, lambda record: self._sql.compare_pair(record, place)) or ()
        columns = zip(self._sql.compared.names, found[::3], found[1::3], found[2::3], strict=False)
        texts = [
            f"{name} is {kafka} in Kafka and {row} in the table" for name, differs, kafka, row in columns if differs
        ]
        return ", ".join(texts) or "the row differs from this record"

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
