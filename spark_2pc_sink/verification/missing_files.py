"""Files with what either side lacks: rows for PostgreSQL's COPY, and lines for Kafka's console producer.

Nothing is applied here: a person reads the page beside them (`apply_page`), and does it or does not. Where both sides
have a key, with other values, either side can be made like the other: there are files for both ways.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.verification.apply_page import PAGE, READER, RECORDS, ROWS, UNSAYABLE, apply_page
from spark_2pc_sink.verification.commands import Commands
from spark_2pc_sink.verification.console_lines import READER_PROPERTIES, ConsoleRecord, UnsayableError, console_line
from spark_2pc_sink.verification.missing import LoneRecord, LoneRow
from spark_2pc_sink.verification.record_key import RecordKey

#: What COPY's text format has in place of a character.
_ESCAPES: Final = str.maketrans(
    {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
)
_NULL: Final = "\\N"


class MissingFiles:
    """A directory of such files, a `MissingWriter`. It is made if it is not there.

    Args:
        directory: the directory.
        table: as SQL.
        columns: of the table, all that are compared.
        key: those that name a row; () where nothing does.
        record_key: of a record that is made of a row.
        record_unknown: why no record can be made of a row; '' where one can.
        topics: of the sink.
        commands: what the commands on the page begin with.

    Raises:
        ConfigurationError: see `checked_directory`.
        OSError: it cannot be made.
    """

    def __init__(
        self,
        directory: Path,
        *,
        table: str,
        columns: Sequence[str],
        key: Sequence[str],
        record_key: RecordKey,
        record_unknown: str = "",
        topics: Sequence[str],
        commands: Commands,
    ) -> None:
        self._directory = checked_directory(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._table = table
        self._columns = tuple(columns)
        self._key = tuple(key)
        self._record_key = record_key
        self._record_unknown = record_unknown
        self._topics = tuple(topics)
        self._commands = commands
        self._files: dict[str, IO[str]] = {}
        self._counts: Counter[str] = Counter()
        self._no_rows = 0
        self._open = ExitStack()

    def add_record(self, record: LoneRecord) -> None:
        """Take a record that the table has no row of: the row is written."""
        if record.row is None:
            self._no_rows += 1
        else:
            self._write(ROWS[record.reason], "\t".join(_copied(record.row[name]) for name in self._columns))

    def add_row(self, row: LoneRow) -> None:
        """Take a row that Kafka has no record of: the record is written, and its value is the row as JSON."""
        try:
            self._write(RECORDS[row.reason], console_line(ConsoleRecord(self._key_of(row), row.json.encode())))
        except UnsayableError as error:
            self._write(UNSAYABLE, json.dumps({"row": dict(row.columns), "value": row.json, "reason": str(error)}))

    def close(self) -> Sequence[str]:
        """End the files, and write the page with the commands; the paths of all."""
        if ROWS["differing"] in self._files:
            self._files[ROWS["differing"]].write(self._update_end())
        self._open.close()
        if not self._files.keys().isdisjoint(RECORDS.values()):
            (self._directory / READER).write_text(READER_PROPERTIES)
        page = apply_page(
            self._counts,
            directory=str(self._directory.absolute()),
            table=self._table,
            columns=self._columns,
            key_note=self._record_key.note,
            topics=self._topics,
            no_rows=self._no_rows,
            commands=self._commands,
        )
        (self._directory / PAGE).write_text(page)
        return sorted(str(path) for path in self._directory.iterdir())

    def _write(self, name: str, line: str) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._open.enter_context((self._directory / name).open("w", encoding="utf-8", newline=""))
            self._files[name] = file
            if name == ROWS["differing"]:
                file.write(self._update_begin())
        file.write(f"{line}\n")
        self._counts[name] += 1

    def _key_of(self, row: LoneRow) -> bytes | None:
        """The record's key.

        Raises:
            UnsayableError: it is not known, or the rest of the record is not.
        """
        if unknown := self._record_unknown or self._record_key.unknown:
            raise UnsayableError(unknown)
        text = None if self._record_key.column is None else row.columns[self._record_key.column]
        return None if text is None else text.encode()

    def _update_begin(self) -> str:
        names = self._names(self._columns)
        empty = f"SELECT {names} FROM {self._table} LIMIT 0"
        made = f"CREATE TEMPORARY TABLE as_in_kafka ON COMMIT DROP AS {empty}"
        return f"BEGIN;\n{made};\nCOPY pg_temp.as_in_kafka ({names}) FROM STDIN;\n"

    def _update_end(self) -> str:
        others = [name for name in self._columns if name not in self._key]
        news = self._names(others, "found.")
        same = " AND ".join(
            f"aimed.{quote_identifier(name)} IS NOT DISTINCT FROM found.{quote_identifier(name)}" for name in self._key
        )
        return (
            "\\.\n"
            f"UPDATE {self._table} AS aimed SET ({self._names(others)}) = ROW ({news})\n"
            f"FROM pg_temp.as_in_kafka AS found WHERE {same};\n"
            "COMMIT;\n"
        )

    @staticmethod
    def _names(columns: Sequence[str], before: str = "") -> str:
        return ", ".join(f"{before}{quote_identifier(name)}" for name in columns)


def _copied(text: str | None) -> str:
    return _NULL if text is None else text.translate(_ESCAPES)


def checked_directory(directory: Path) -> Path:
    """The directory, which is not there yet or is empty.

    Raises:
        ConfigurationError: it has files, or is none.
    """
    try:
        empty = next(directory.iterdir(), None) is None
    except FileNotFoundError:
        return directory
    except OSError as error:
        raise _refusal(directory, f"it is a directory that can be read: {error.strerror}") from error
    if not empty:
        raise _refusal(directory, "the directory is empty: files of two comparisons must not be taken for one")
    return directory


def _refusal(directory: Path, rule: str) -> ConfigurationError:
    return ConfigurationError(
        option="write_missing", value=str(directory), rule=rule, remedy="name a directory that is not there yet"
    )
