"""Files with what either side lacks, and the commands that put it there.

Rows that the table lacks are in the text format of PostgreSQL's COPY, records that Kafka lacks are lines for Kafka's
console producer. Nothing is applied here: a person reads ``APPLY.md``, and does it or does not.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from sqlalchemy.engine import URL

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.verification.console_lines import READER_PROPERTIES, ConsoleRecord, UnsayableError, console_line

ROWS: Final = "rows_missing_in_table.copy"
RECORDS: Final = "records_missing_in_kafka.txt"
UNSAYABLE: Final = "records_for_another_producer.jsonl"
READER: Final = "console-producer-reader.properties"
COMMANDS: Final = "APPLY.md"


@dataclass
class MissingFiles:
    """A directory of such files. It is made if it is not there.

    Args:
        folder: the directory.

    Raises:
        ConfigurationError: it is not empty, or cannot be made.
    """

    folder: Path
    _written: list[Path] = field(default_factory=list, init=False)
    _parts: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        remedy = "name a new directory"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            empty = next(self.folder.iterdir(), None) is None
        except OSError as error:
            raise _refusal(self.folder, f"it cannot be made or read: {error.strerror}", remedy) from error
        if not empty:
            rule = "the directory is empty: files of two comparisons must not be taken for one"
            raise _refusal(self.folder, rule, remedy)

    def write_rows(
        self, *, table: str, columns: Sequence[str], database: URL, copy_out: Callable[[IO[bytes]], int]
    ) -> None:
        """Write the rows that the table lacks.

        Args:
            table: quoted as in SQL.
            columns: of the file, quoted as in SQL, in their order.
            database: of the table; its secrets are not written.
            copy_out: writes the rows to the file, in COPY's text format; it returns how many.
        """
        with self._file(ROWS).open("wb") as file:
            count = copy_out(file)
        statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
        place = URL.create(
            "postgresql", username=database.username, host=database.host, port=database.port, database=database.database
        )
        psql = shlex.join(["psql", place.render_as_string(), "-v", "ON_ERROR_STOP=1", "-c", statement])
        self._parts.append(
            f"## {count} rows that the table lacks\n\n"
            "This adds them in one transaction, or none of them. psql takes the password from PGPASSWORD or\n"
            "~/.pgpass. Triggers of the table fire.\n\n"
            f"    {psql} < {ROWS}\n"
        )

    def write_records(
        self, records: Iterable[ConsoleRecord], *, topic: str, bootstrap_servers: str, notes: Sequence[str] = ()
    ) -> None:
        """Write the records that Kafka lacks.

        Args:
            records: in the order in which they are to be sent.
            topic: the topic.
            bootstrap_servers: brokers, with commas between.
            notes: what is not known of the records, such as their headers; sentences.
        """
        sayable = unsayable = 0
        with self._file(RECORDS).open("wb") as lines, (self.folder / UNSAYABLE).open("w") as others:
            for record in records:
                try:
                    lines.write(console_line(record))
                    sayable += 1
                except UnsayableError as error:
                    others.write(json.dumps(_as_json(record, error)) + "\n")
                    unsayable += 1
        if unsayable:
            self._written.append(self.folder / UNSAYABLE)
        else:
            (self.folder / UNSAYABLE).unlink()
        self._file(READER).write_text(READER_PROPERTIES)
        words = ["kafka-console-producer.sh", "--bootstrap-server", bootstrap_servers, "--topic", topic]
        command = shlex.join([*words, "--reader-config", READER])
        self._parts.append(
            f"## {sayable} records that Kafka lacks\n\n"
            "This sends them, each on its own: readers see some before others. The producer chooses the partition by\n"
            "the key, as Java's default partitioner does, and the time is that of sending. It ends with exit code 0\n"
            "also where a record was refused, and says so on standard error. Where the brokers want a login or TLS,\n"
            "add --command-config FILE (before Kafka 4.2: --producer.config FILE).\n\n"
            f"    {command} < {RECORDS}\n"
        )
        self._parts += [f"{note}\n" for note in notes]
        if unsayable:
            self._parts.append(
                f"{unsayable} more records cannot be sent by the console producer: to it a line is a record,\n"
                f"and bytes are UTF-8. They are in {UNSAYABLE}, with key, value and header values in base64,\n"
                "each with its reason. Send them by a program of your own.\n"
            )

    def finish(self, verify_again: str) -> tuple[str, ...]:
        """Write the commands; the paths of all files.

        Args:
            verify_again: the command that compares both sides afterwards.
        """
        parts = self._parts or ["Neither side lacks anything that can be written to a file.\n"]
        ending = f"## Afterwards\n\nCompare both sides once more:\n\n    {verify_again}\n"
        head = (
            f"# What either side lacks\n\nStop the job first. Then run, in this directory ({self.folder.absolute()}):\n"
        )
        self._file(COMMANDS).write_text("\n".join([head, *parts, *([ending] if self._parts else [])]))
        return tuple(str(path) for path in self._written)

    def _file(self, name: str) -> Path:
        path = self.folder / name
        self._written.append(path)
        return path


def _as_json(record: ConsoleRecord, error: UnsayableError) -> dict[str, object]:
    return {
        "key": _base64(record.key),
        "value": _base64(record.value),
        "headers": [{"name": name, "value": _base64(value)} for name, value in record.headers],
        "reason": str(error),
    }


def _base64(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _refusal(folder: Path, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option="write_missing", value=str(folder), rule=rule, remedy=remedy)
