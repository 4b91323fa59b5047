"""Entries of one side that the other lacks, by name: read back from their source, for the report and for files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg2

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.verification.api import Request
from spark_2pc_sink.verification.columns import TableShape, as_object
from spark_2pc_sink.verification.evidence import Evidence
from spark_2pc_sink.verification.expressions import record_key
from spark_2pc_sink.verification.history import Tally
from spark_2pc_sink.verification.missing_files import MissingFiles, Reason
from spark_2pc_sink.verification.next_steps import Commands
from spark_2pc_sink.verification.report import Difference, DifferenceKind, Differences
from spark_2pc_sink.verification.staging import RecordTexts, literal
from spark_2pc_sink.verification.statements import Statements
from spark_2pc_sink.verification.values import ValueReader

if TYPE_CHECKING:
    from confluent_kafka import Message

#: By reason, the places of records without a row, and vice versa.
_RECORDS: Final[Mapping[Reason, str]] = {
    "missing": "SELECT r.place, r.at FROM pg_temp.verify_lone_records AS r WHERE NOT twice AND NOT EXISTS "
    "(SELECT FROM pg_temp.verify_pairs AS p WHERE p.place = r.place AND p.record_at = r.at)",
    "differing": "SELECT p.place, p.record_at AS at FROM pg_temp.verify_pairs AS p",
    "twice": "SELECT r.place, r.at FROM pg_temp.verify_lone_records AS r WHERE twice",
}
_ROWS: Final[Mapping[Reason, str]] = {
    "missing": "SELECT t.part, t.at FROM pg_temp.verify_lone_rows AS t WHERE NOT twice AND NOT EXISTS "
    "(SELECT FROM pg_temp.verify_pairs AS p WHERE p.part = t.part AND p.row_at = t.at)",
    "differing": "SELECT p.part, p.row_at AS at FROM pg_temp.verify_pairs AS p",
    "twice": "SELECT t.part, t.at FROM pg_temp.verify_lone_rows AS t WHERE twice",
}
_KINDS: Final[Mapping[Reason, DifferenceKind]] = {
    "missing": "missing_in_table",
    "differing": "differing",
    "twice": "twice",
}


class Unmatched:
    """Names the differences that a comparison has left in the session of the snapshot.

    If all records were compared, ``rows_too`` names rows without a record too.
    """

    def __init__(
        self,
        request: Request,
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
        records = 0
        for reason, kind in _KINDS.items():
            count = self._count(_RECORDS[reason])
            records += count
            places = f"{self._ordered(reason)} LIMIT {differences.wanted(kind)}"
            _note(differences, kind, count, self._named_records(kind, self._snapshot.run(places)) if count else ())
        if self._rows_too:
            kinds: dict[Reason, DifferenceKind] = {"missing": "missing_in_kafka", "twice": "twice"}
            for reason, kind in kinds.items():
                count = self._count(_ROWS[reason])
                places = f"{_ROWS[reason]} ORDER BY 1, 2 LIMIT {differences.wanted(kind)}"
                _note(differences, kind, count, self._named_rows(kind, self._snapshot.run(places)) if count else ())
        return records

    def write(
        self, directory: Path, shape: TableShape, layout: SinkLayout | None, topics: Sequence[str]
    ) -> tuple[str, ...]:
        """Write all of them to files in a directory; their paths."""
        files = MissingFiles(
            directory,
            shape=shape,
            sql=self._sql,
            record_key=record_key(layout, columns=self._sql.compared.names, row_key=self._sql.key),
            topics=topics,
            commands=Commands.of(self._request.options, self._request.shape),
        )
        try:
            for reason in _RECORDS:
                wanted = ((place, at) for place, at in self._snapshot.stream(self._ordered(reason)))
                for at, message in self._messages(wanted):
                    # A tombstone's missing counterpart is a deletion, not a row.
                    if message.value() is not None or not self._sql.has_tombstones:
                        files.add_record(reason, self._answer_about(at, message, self._sql.typed_records))
            of_rows: Iterable[Reason] = _ROWS if self._rows_too else ("differing",)
            for reason in of_rows:
                for found, *texts in self._snapshot.stream(self._sql.rows_at(f"({_ROWS[reason]})")):
                    files.add_row(reason, dict(zip(self._sql.compared.names, texts, strict=True)), found)
        finally:
            written = tuple(files.close())
        return written

    def _count(self, places: str) -> int:
        ((count,),) = self._snapshot.run(f"SELECT count(*) FROM ({places}) AS p")
        return int(count)

    def _ordered(self, reason: Reason) -> str:
        return f"SELECT place, at FROM ({_RECORDS[reason]}) AS r ORDER BY place % {len(self._sql.partitions)}, at"

    def _messages(self, wanted: Iterable[tuple[Any, ...]]) -> Iterator[tuple[TopicPartition, Message]]:
        return self._evidence.reader.pick((self._sql.partition(place), at) for place, at in wanted)

    def _named_rows(self, kind: DifferenceKind, places: Iterable[tuple[Any, ...]]) -> Iterator[Difference]:
        for part, at in places:
            row = self._row(part, at)
            if kind == "twice":
                text = "the table has this row more often than Kafka has its record"
                yield Difference(kind=kind, text=text, key=self._key(row), side="table", row=row)
            else:
                yield Difference(kind=kind, text="Kafka has no record of this row", key=self._key(row), row=row)

    def _named_records(self, kind: DifferenceKind, places: Sequence[tuple[Any, ...]]) -> Iterator[Difference]:
        for at, message in self._messages(places):
            offset, key, row = message.offset() or 0, message.key(), None
            shown = as_object(self._texts.read(at.topic, message.value())) if self._texts.plain else None
            text = "the table has no row of this record"
            named = self._key_of_record(shown) if shown is not None else None
            if kind == "twice":
                text = "Kafka has this record more often than the table has its row"
            elif kind == "differing":
                found = self._pair_of(at, offset)
                row = self._row(*found)
                text, named = self._difference(at, message, found), self._key(row) or named
            elif shown is None and self._texts.plain:
                text = "this record is no JSON object, and the table has no row of it"
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
        told = {column.name: record.get(column.field) for column in self._sql.compared.named(self._sql.key)}
        return None if any(isinstance(value, dict) for value in told.values()) else self._key(told)

    def _pair_of(self, at: TopicPartition, offset: int) -> tuple[int, str]:
        """The place of the row with the key of a record."""
        index, count = self._sql.partitions.index(at), len(self._sql.partitions)
        wanted = f"place % {count} = {index} AND record_at = {offset}"
        [(part, row_at)] = self._snapshot.run(f"SELECT part, row_at FROM pg_temp.verify_pairs WHERE {wanted}")
        return part, row_at

    def _row(self, part: int, at: str) -> Mapping[str, Any]:
        ((found, *_),) = self._snapshot.run(self._sql.rows_at(f"VALUES ({part}::oid, '{at}'::tid)"))
        row: Mapping[str, Any] = json.loads(found)
        return row

    def _difference(self, at: TopicPartition, message: Message, row: tuple[int, str]) -> str:
        """The differences between a record and the row of its key, in their compared form."""
        if message.value() is None and self._sql.has_tombstones:
            return "this record is a tombstone, and the table has a row of its key"
        condition = "tableoid = {} AND ctid = '{}'".format(*row)
        found = self._answer_about(at, message, lambda record: self._sql.compare_pair(record, condition)) or ()
        columns = zip(self._sql.compared.names, found[::3], found[1::3], found[2::3], strict=False)
        told = [
            f"{name} is {kafka} in Kafka and {there} in the table" for name, differs, kafka, there in columns if differs
        ]
        return ", ".join(told) or "the row is not what this record says"

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


def _note(differences: Differences, kind: DifferenceKind, count: int, named: Iterable[Difference]) -> None:
    """Add the named ones, and count the rest."""
    for difference in named:
        differences.add(difference)
        count -= 1
    differences.count(kind, count)
