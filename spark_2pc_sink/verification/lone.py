"""What one side alone has, by name: read back from where it is, for the report and for files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg2

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.differences import Differences
from spark_2pc_sink.verification.missing import LoneRecord, LoneRow, MissingWriter, Reason
from spark_2pc_sink.verification.places import Places
from spark_2pc_sink.verification.record_facts import as_object
from spark_2pc_sink.verification.report import Difference, DifferenceKind, Side
from spark_2pc_sink.verification.schema_values import ValueReader
from spark_2pc_sink.verification.side_sql import SideSql
from spark_2pc_sink.verification.snapshot import Snapshot
from spark_2pc_sink.verification.staging import RecordTexts, literal
from spark_2pc_sink.verification.topic_reader import TopicReader, headers_of

if TYPE_CHECKING:
    from confluent_kafka import Message


#: By reason, where the records are that a row is missing of, and the other way round.
_RECORDS: Final[Mapping[Reason, str]] = {
    "missing": "SELECT r.place, r.at FROM pg_temp.verify_lone_records AS r WHERE NOT twice AND NOT EXISTS "
    "(SELECT FROM pg_temp.verify_pairs AS p WHERE p.place = r.place AND p.record_at = r.at)",
    "twice": "SELECT r.place, r.at FROM pg_temp.verify_lone_records AS r WHERE twice",
    "differing": "SELECT p.place, p.record_at AS at FROM pg_temp.verify_pairs AS p",
}
_ROWS: Final[Mapping[Reason, str]] = {
    "missing": "SELECT t.part, t.at FROM pg_temp.verify_lone_rows AS t WHERE NOT twice AND NOT EXISTS "
    "(SELECT FROM pg_temp.verify_pairs AS p WHERE p.part = t.part AND p.row_at = t.at)",
    "twice": "SELECT t.part, t.at FROM pg_temp.verify_lone_rows AS t WHERE twice",
    "differing": "SELECT p.part, p.row_at AS at FROM pg_temp.verify_pairs AS p",
}


class Lone:
    """Names what a comparison has left.

    Args:
        snapshot: in whose session it was left.
        sql: of the comparison.
        reader: of the topics.
        places: that the records were staged with.
        batch_at: the batch that has an offset; None for none.
        read: makes JSON of a value.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        sql: SideSql,
        reader: TopicReader,
        places: Places,
        *,
        batch_at: Callable[[TopicPartition, int], int | None],
        read: ValueReader,
    ) -> None:
        self._snapshot = snapshot
        self._sql = sql
        self._reader = reader
        self._places = places
        self._batch_at = batch_at
        self._texts = RecordTexts.of(sql, read)

    def count_records(self, reason: Reason) -> int:
        """How many records have no row, for this reason."""
        ((count,),) = self._snapshot.run(f"SELECT count(*) FROM ({_RECORDS[reason]}) AS r")
        return int(count)

    def count_rows(self, reason: Reason) -> int:
        """How many rows have no record, for this reason."""
        ((count,),) = self._snapshot.run(f"SELECT count(*) FROM ({_ROWS[reason]}) AS t")
        return int(count)

    def report(self, differences: Differences, *, rows_too: bool) -> None:
        """Count what differs, and name the first.

        Args:
            differences: takes it.
            rows_too: also rows without a record, where all records were compared.
        """
        self._report_records(differences, "missing_in_table", "missing")
        self._report_pairs(differences)
        self._report_records(differences, "twice", "twice")
        if rows_too:
            self._report_rows(differences, "missing_in_kafka", "missing")
            self._report_rows(differences, "twice", "twice")

    def write(self, writer: MissingWriter, *, rows_too: bool) -> None:
        """Hand over all of it."""
        for reason in _RECORDS:
            for record in self._lone_records(reason):
                writer.add_record(record)
        of_rows: Sequence[Reason] = tuple(_ROWS) if rows_too else ("differing",)
        for reason in of_rows:
            for row in self._lone_rows(reason):
                writer.add_row(row)

    # --- for the report --------------------------------------------------------------------------------------------

    def _report_records(self, differences: Differences, kind: DifferenceKind, reason: Reason) -> None:
        count, wanted = self.count_records(reason), differences.wanted(kind)
        if not count:
            return
        named = 0
        for partition, message in self._messages(self._first_records(reason, wanted)):
            shown = as_object(self._texts.read(partition.topic, message.value())) if self._texts.plain else None
            text = "the table has no row of this record"
            if reason == "twice":
                text = "Kafka has this record more often than the table has its row"
            elif shown is None and self._texts.plain:
                text = "this record is no JSON object, and the table has no row of it"
            differences.add(self._of_record(kind, text, partition, message, shown))
            named += 1
        differences.count(kind, count - named)

    def _report_rows(self, differences: Differences, kind: DifferenceKind, reason: Reason) -> None:
        count, wanted = self.count_rows(reason), differences.wanted(kind)
        if not count:
            return
        named = 0
        for part, at in self._snapshot.run(f"{_ROWS[reason]} ORDER BY 1, 2 LIMIT {wanted}"):
            row = self._row(part, at)
            text = "Kafka has no record of this row"
            side: Side | None = None
            if reason == "twice":
                text, side = "the table has this row more often than Kafka has its record", "table"
            differences.add(Difference(kind=kind, text=text, key=self._key(row), side=side, row=row))
            named += 1
        differences.count(kind, count - named)

    def _report_pairs(self, differences: Differences) -> None:
        count, wanted = self.count_records("differing"), differences.wanted("differing")
        if not count:
            return
        pairs = self._snapshot.run(
            "SELECT place, record_at, part, row_at FROM pg_temp.verify_pairs "
            f"ORDER BY place % {len(self._places)}, record_at LIMIT {wanted}"
        )
        rows = {(self._places.partition(place), at): (part, row_at) for place, at, part, row_at in pairs}
        named = 0
        for partition, message in self._messages([(place, at) for place, at, _, _ in pairs]):
            part, row_at = rows[partition, message.offset() or 0]
            row = self._row(part, row_at)
            shown = as_object(self._texts.read(partition.topic, message.value())) if self._texts.plain else None
            text = self._difference(partition, message, f"tableoid = {part} AND ctid = '{row_at}'")
            found = self._of_record("differing", text, partition, message, shown)
            differences.add(replace(found, row=row, key=self._key(row) or found.key))
            named += 1
        differences.count("differing", count - named)

    def _of_record(
        self,
        kind: DifferenceKind,
        text: str,
        partition: TopicPartition,
        message: Message,
        shown: Mapping[str, Any] | None,
    ) -> Difference:
        offset = message.offset() or 0
        key = message.key()
        named = self._key_of_record(shown) if shown is not None and self._sql.key else None
        return Difference(
            kind=kind,
            text=text,
            key=named or (None if key is None else f"key {key.decode(errors='backslashreplace')}"),
            batch=self._batch_at(partition, offset),
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            side="kafka" if kind == "twice" else None,
            record=shown,
        )

    def _key(self, row: Mapping[str, Any]) -> str | None:
        return ", ".join(f"{name}={row.get(name)}" for name in self._sql.key) or None

    def _key_of_record(self, record: Mapping[str, Any]) -> str | None:
        columns = self._sql.compared.named(self._sql.key)
        told = {column.name: record.get(column.field) for column in columns}
        return None if any(isinstance(value, dict) for value in told.values()) else self._key(told)

    def _row(self, part: int, at: str) -> Mapping[str, Any]:
        ((found, *_),) = self._snapshot.run(self._sql.rows_at(f"VALUES ({part}::oid, '{at}'::tid)"))
        row: Mapping[str, Any] = json.loads(found)
        return row

    def _difference(self, partition: TopicPartition, message: Message, row: str) -> str:
        """What of a key is not the same, in the form in which it is compared."""
        if message.value() is None and self._sql.tombstones is not None:
            return "this record is a tombstone, and the table has a row of its key"
        found = self._with_record(partition, message, lambda record: self._sql.compare_pair(record, row)) or ()
        columns = zip(self._sql.compared.names, found[::3], found[1::3], found[2::3], strict=False)
        told = [
            f"{name} is {kafka} in Kafka and {table} in the table" for name, differs, kafka, table in columns if differs
        ]
        return ", ".join(told) or "the row is not what this record says"

    def _first_records(self, reason: Reason, wanted: int) -> list[tuple[int, int]]:
        found = self._snapshot.run(f"{self._ordered(reason)} LIMIT {wanted}")
        return [(place, at) for place, at in found]

    def _ordered(self, reason: Reason) -> str:
        return f"SELECT place, at FROM ({_RECORDS[reason]}) AS r ORDER BY place % {len(self._places)}, at"

    def _messages(self, wanted: Iterable[tuple[int, int]]) -> Iterator[tuple[TopicPartition, Message]]:
        named = ((self._places.partition(place), at) for place, at in wanted)
        return self._reader.pick(named)

    # --- for files -------------------------------------------------------------------------------------------------

    def _lone_records(self, reason: Reason) -> Iterator[LoneRecord]:
        wanted = ((place, at) for place, at in self._snapshot.stream(self._ordered(reason)))
        for partition, message in self._messages(wanted):
            if message.value() is None and self._sql.tombstones is not None:
                continue  # what is lacking is a deletion, and no row
            yield LoneRecord(
                reason=reason,
                topic=partition.topic,
                partition=partition.partition,
                offset=message.offset() or 0,
                key=message.key(),
                value=message.value(),
                headers=headers_of(message) or (),
                row=self._typed(partition, message),
            )

    def _lone_rows(self, reason: Reason) -> Iterator[LoneRow]:
        for found, *texts in self._snapshot.stream(self._sql.rows_at(f"({_ROWS[reason]})")):
            yield LoneRow(reason, dict(zip(self._sql.compared.names, texts, strict=True)), found)

    def _typed(self, partition: TopicPartition, message: Message) -> Mapping[str, str | None] | None:
        """The record's columns as PostgreSQL writes them; None where it cannot be a row."""
        texts = self._with_record(partition, message, self._sql.typed_records)
        return None if texts is None else dict(zip(self._sql.compared.names, texts, strict=True))

    def _with_record(
        self, partition: TopicPartition, message: Message, statement: Callable[[str], str]
    ) -> tuple[Any, ...] | None:
        """The one row that a statement about a record answers; None where the record cannot be a row.

        Args:
            partition: of the record.
            message: the record.
            statement: of the SQL literal of a JSON array with the record alone.
        """
        offset, headers = message.offset() or 0, headers_of(message)
        text = self._texts.make(partition, offset, message.key(), message.value(), headers)
        self._snapshot.run("SAVEPOINT record")
        try:
            found = self._snapshot.run(statement(literal(b"[" + text + b"]", self._snapshot.driver)))
        except (psycopg2.DataError, UnicodeDecodeError):
            self._snapshot.run("ROLLBACK TO SAVEPOINT record")
            return None
        self._snapshot.run("RELEASE SAVEPOINT record")
        # A value of several objects is several rows.
        return found[0] if len(found) == 1 else None
