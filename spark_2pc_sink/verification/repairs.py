"""What a person does about differences: the next commands, and files with what either side lacks.

The commands are complete, without passwords. The files have rows for PostgreSQL's COPY, and lines for Kafka's console
producer. Nothing is applied here: a person reads the included page, and decides. If both sides have a key, with
different values, either side can be made equal to the other: there are files for both directions.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import javaproperties

from spark_2pc_sink.choices.choice import STATUS, VERIFY, flags
from spark_2pc_sink.options import CommonOptions
from spark_2pc_sink.options.database import as_libpq_uri
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.plural import counted
from spark_2pc_sink.recovery.report import sink_flags
from spark_2pc_sink.verification.columns import TableShape
from spark_2pc_sink.verification.report import VerifyReport
from spark_2pc_sink.verification.staging import Reason, Statements
from spark_2pc_sink.verification.target import only_column

PAGE: Final = "APPLY.md"
#: What a directory of files can restore or show.
_LACKING: Final = frozenset({"missing_in_kafka", "missing_in_table", "topic_remade", "topic_deleted", "truncated"})
#: Unexpected or different records: a person has to inspect one of them.
_TO_LOOK_AT: Final = ("stranger", "gap", "twice", "differing")


@dataclass(frozen=True)
class Commands:
    """Beginnings of the commands for a sink; ``shape`` has the keywords of `verify` that describe the table."""

    options: CommonOptions
    shape: Mapping[str, str | Sequence[str] | None]

    @property
    def verify(self) -> str:
        named = {name: value for name, value in self.shape.items() if value is not None}
        given = {name: value if isinstance(value, str) else ",".join(value) for name, value in named.items()}
        return " ".join([VERIFY, sink_flags(self.options), *flags(given)])

    @property
    def status(self) -> str:
        return f"{STATUS} {sink_flags(self.options)}"

    @property
    def psql(self) -> str:
        return shlex.join(["psql", as_libpq_uri(self.options.database), "-v", "ON_ERROR_STOP=1"])

    def console_producer(self, topic: str, reader: str) -> str:
        return self._kafka("kafka-console-producer.sh", "--topic", topic, "--reader-config", reader)

    def console_consumer(self, topic: str, partition: int, offset: int) -> str:
        place = ["--topic", topic, "--partition", str(partition), "--offset", str(offset)]
        one = ["--max-messages", "1", "--isolation-level", "read_committed"]
        shown = ["--property", "print.key=true", "--property", "print.headers=true"]
        return self._kafka("kafka-console-consumer.sh", *place, *one, *shown)

    def _kafka(self, program: str, *words: str) -> str:
        kafka = self.options.kafka
        secured = "" if kafka.security_protocol == "PLAINTEXT" else " --command-config FILE"
        return shlex.join([program, "--bootstrap-server", ",".join(kafka.bootstrap_servers), *words]) + secured


def next_steps(report: VerifyReport, commands: Commands) -> tuple[str, ...]:
    """The next actions for a person, each with its reason, the safest first; () if both sides are the same."""
    if not report.known:
        return (f"check that database and state table are the right ones: {commands.status}",)
    if report.verdict == "same":
        return ()
    steps = []
    if "gap" in report.counts:
        # A database state older than Kafka explains all the rest, so it is first.
        steps.append(f"check whether the database is older than Kafka, as after a restored backup: {commands.status}")
    located = [each for each in report.differences if None not in (each.topic, each.partition, each.offset)]
    found = next((each for kind in _TO_LOOK_AT for each in located if each.kind == kind), None)
    if found is not None:
        command = commands.console_consumer(str(found.topic), int(found.partition or 0), int(found.offset or 0))
        steps.append(f"inspect the record ({found.kind}): {command}")
    pages = [path for path in report.written if path.endswith(PAGE)]
    steps += [f"read {page}, and run those of its commands that restore what is missing" for page in pages]
    if not report.written and not _LACKING.isdisjoint(report.counts):
        command = f"{commands.verify} --write-missing DIR"
        steps.append(f"write files with what is missing, and commands to restore it: {command}")
    return tuple(steps)


#: Properties of the console producer's reader, for ``--reader-config``.
READER: Final = "console-producer-reader.properties"
UNSENDABLE: Final = "records_for_another_producer.jsonl"
#: Files of rows that Kafka has and the table lacks, and of records that the table has and Kafka lacks.
ROWS: Final[Mapping[Reason, str]] = {
    "missing": "rows_missing_in_table.copy",
    "differing": "rows_as_in_kafka.sql",
    "twice": "rows_twice_in_kafka.copy",
}
RECORDS: Final[Mapping[Reason, str]] = {
    "missing": "records_missing_in_kafka.txt",
    "differing": "records_as_in_table.txt",
    "twice": "records_twice_in_table.txt",
}
_REASONS: Final[Mapping[Reason, str]] = {
    "missing": "One side lacks what the other has",
    "differing": "Both sides have the key, with different values. Change the table, or change Kafka, but not both",
    "twice": "One side has duplicates. The file adds them to the other side; delete them by hand to remove them",
}
_PSQL: Final = (
    "psql applies the whole file or nothing. It takes the password from PGPASSWORD or ~/.pgpass. Triggers fire."
)
_PRODUCER: Final = (
    "Each record is sent separately: consumers see some before others. The producer chooses the partition by the key,\n"
    "as Java's default partitioner does, and the timestamp is the time of sending. Headers are not sent, as the table\n"
    "does not contain them. The producer exits with code 0 even if a record was refused; see its standard error.\n"
    "Before Kafka 4.2 its --command-config is called --producer.config."
)
#: Escapes of COPY's text format.
_ESCAPES: Final = str.maketrans(
    {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
)

# --- lines for the console producer --------------------------------------------------------------------------------
# Its reader (LineMessageReader) splits a line at a configurable separator, and has no escapes. The separator here is a
# control character, which hardly occurs in texts and JSON.

_SEPARATOR: Final = "\x1f"
_NULL_MARKER: Final = "\x1anull"


def why_unsendable(key: str | None, value: str) -> str:
    """Why the reader would make a different record from a line; '' if it does not."""
    for what, text in {"the key": key, "the value": value}.items():
        if text == _NULL_MARKER:
            return f"{what} is the text that represents a null here"
        if text is not None and ("\n" in text or "\r" in text):
            return f"{what} has a line break"
    separated = key is not None and _SEPARATOR in key
    return "the key contains the character that separates it from the value" if separated else ""


class RecordKey(NamedTuple):
    #: Column whose text it is; None for a record without a key.
    column: str | None
    #: A sentence for the page of the files.
    note: str = ""
    #: Why it cannot be made; '' if it can.
    unknown: str = ""


def record_key(layout: SinkLayout | None, *, columns: Sequence[str], row_key: Sequence[str]) -> RecordKey:
    """Find the source of the key in a record that is made from a row, of which the columns ``row_key`` identify one."""
    if layout is None:
        if len(row_key) > 1:
            return RecordKey(None, unknown=f"it is unknown how the columns {', '.join(row_key)} make the record's key")
        if not row_key:
            note = "The records have no key, as no column identifies a row. Make sure that the sink sends none."
            return RecordKey(None, note)
        note = f"The key of each record is the text of column {row_key[0]}. Make sure that the sink sends the same."
        return RecordKey(row_key[0], note)
    # Without an expression the column of this name is the key, as with Spark's own Kafka sink.
    expression = layout.key or "key"
    if layout.key is None and expression not in columns:
        return RecordKey(None, "The records have no key, like those of the sink.")
    column = only_column(expression)
    if column not in columns:
        return RecordKey(None, unknown=f"the sink's key is {expression}, which only Spark can compute")
    return RecordKey(column, f"The key of each record is the text of column {column}, like that of the sink.")


@dataclass(kw_only=True)
class MissingFiles:
    """A directory of such files, created if it does not exist; see `checked_directory`."""

    directory: Path
    shape: TableShape
    sql: Statements
    layout: SinkLayout | None
    topics: Sequence[str]
    commands: Commands

    def __post_init__(self) -> None:
        checked_directory(self.directory).mkdir(parents=True, exist_ok=True)
        self._compared = self.sql.compared.names
        made = {column.name for column in self.shape.columns if column.generated}
        fixed = {column.name for column in self.shape.columns if column.identity} | made | {*self.sql.key}
        #: The table computes the others. COPY may set identity columns, and UPDATE may not.
        self._columns = [name for name in self._compared if name not in made]
        self._updated = [name for name in self._compared if name not in fixed]
        self._names = ", ".join(map(quote_identifier, self._columns))
        other = [column.name for column in self.sql.compared.columns if column.field != column.name]
        renamed = f"the record has other field names than the columns {', '.join(other)}" if other else ""
        self._record_key = record_key(self.layout, columns=self._compared, row_key=self.sql.key)
        self._unknown = renamed or self._record_key.unknown
        self._files: dict[str, IO[str]] = {}
        self._counts: Counter[str] = Counter()
        self._open = ExitStack()

    def add_record(self, reason: Reason, row: Sequence[Any] | None) -> None:
        """Write the row of a record, as texts in COPY's form; None for a record that cannot be a row."""
        if row is None:
            self._counts["no rows"] += 1
        elif reason == "differing" and not self._updated:
            self._counts["fixed"] += 1
        else:
            texts = dict(zip(self._compared, row, strict=True))
            copied = ("\\N" if texts[name] is None else texts[name].translate(_ESCAPES) for name in self._columns)
            self._write(ROWS[reason], "\t".join(copied))

    def add_row(self, reason: Reason, columns: Mapping[str, str | None], value: str) -> None:
        """Write the record of a row, with the row's JSON as value."""
        key = None if self._record_key.column is None else columns[self._record_key.column]
        why = self._unknown or why_unsendable(key, value)
        if why:
            self._write(UNSENDABLE, json.dumps({"row": dict(columns), "value": value, "reason": why}))
        else:
            self._write(RECORDS[reason], f"{_NULL_MARKER if key is None else key}{_SEPARATOR}{value}")

    def close(self) -> Sequence[str]:
        """Finish the files, and write the page with the commands; the paths of all."""
        if ROWS["differing"] in self._files:
            quoted = [quote_identifier(name) for name in self._updated]
            news = ", ".join(f"found.{name}" for name in quoted)
            keys = map(quote_identifier, self.sql.key)
            same = " AND ".join(f"aimed.{name} IS NOT DISTINCT FROM found.{name}" for name in keys)
            self._files[ROWS["differing"]].write(
                f"\\.\nUPDATE {self.shape.table} AS aimed SET ({', '.join(quoted)}) = ROW ({news})\n"
                f"FROM pg_temp.as_in_kafka AS found WHERE {same};\nCOMMIT;\n"
            )
        self._open.close()
        if not self._files.keys().isdisjoint(RECORDS.values()):
            reader = {"parse.key": "true", "key.separator": _SEPARATOR, "null.marker": _NULL_MARKER}
            (self.directory / READER).write_text(javaproperties.dumps(reader, timestamp=None))
        parts, verify = list(self._parts()), self.commands.verify
        page = [
            "# What is missing\n",
            f"Stop the job before you apply any of these files. Run the commands in {self.directory.absolute()}.\n",
            *parts,
            f"## Afterwards\n\nCompare both sides again:\n\n    {verify}\n",
            "Records that you have sent belong to no batch, and are reported (gap). To compare only the table:\n",
            f"    {verify} --table-only\n",
        ]
        nothing = "# What is missing\n\nNothing could be written to a file.\n"
        (self.directory / PAGE).write_text("\n".join(page) if parts else nothing, encoding="utf-8")
        return sorted(str(path) for path in self.directory.iterdir())

    def _write(self, name: str, line: str) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._open.enter_context((self.directory / name).open("w", encoding="utf-8", newline=""))
            self._files[name] = file
            if name == ROWS["differing"]:
                empty = f"SELECT {self._names} FROM {self.shape.table} LIMIT 0"
                made = f"CREATE TEMPORARY TABLE as_in_kafka ON COMMIT DROP AS {empty}"
                file.write(f"BEGIN;\n{made};\nCOPY pg_temp.as_in_kafka ({self._names}) FROM STDIN;\n")
        file.write(f"{line}\n")
        self._counts[name] += 1

    def _parts(self) -> Iterator[str]:
        counts = self._counts
        topic = self.topics[0] if len(self.topics) == 1 else "TOPIC"
        several = f"The sink has several topics: {', '.join(self.topics)}. Replace TOPIC by the one for these records."
        notes = [self._record_key.note, *([] if len(self.topics) == 1 else [several])]
        for reason, reason_text in _REASONS.items():
            rows, records = ROWS[reason], RECORDS[reason]
            if rows in counts:
                how = shlex.join(["-c", f"COPY {self.shape.table} ({self._names}) FROM STDIN"]) + f" < {rows}"
                command = f"{self.commands.psql} {f'-f {rows}' if reason == 'differing' else how}"
                title = f"## {rows}: {counted(counts[rows], 'row')} as in Kafka"
                yield f"{title}\n\n{reason_text}.\n\n{_PSQL}\n\n    {command}\n"
            if records in counts:
                command = f"    {self.commands.console_producer(topic, READER)} < {records}\n"
                title = f"## {records}: {counted(counts[records], 'record')} as in the table"
                yield "\n\n".join([title, f"{reason_text}.", _PRODUCER, *notes, command])
        if UNSENDABLE in counts:
            yield (
                f"## {UNSENDABLE}: {counted(counts[UNSENDABLE], 'record')} that the console producer cannot send\n\n"
                "It reads one record per line, as UTF-8, and needs a known key. Each line of the file has the row and\n"
                "the reason. Send these records by your own program.\n"
            )
        if "no rows" in counts:
            title = f"## {counted(counts['no rows'], 'record')} that cannot be a row of the table"
            yield f"{title}\n\nThe report names the first of them.\n"
        if "fixed" in counts:
            yield (
                f"## {counted(counts['fixed'], 'row')} that an UPDATE cannot change\n\n"
                "They differ only in columns that PostgreSQL computes or numbers itself. Delete such a row, and run\n"
                "verify with --write-missing again: it then writes the row for COPY.\n"
            )


def checked_directory(directory: Path) -> Path:
    """The directory, if it does not exist yet or is empty."""
    try:
        if next(directory.iterdir(), None) is None:
            return directory
        rule = "must be empty, so that files of two comparisons are not mixed"
    except FileNotFoundError:
        return directory
    except OSError as error:
        rule = f"must be a readable directory: {error.strerror}"
    raise refused("write_missing", str(directory), rule, "name a directory that does not exist yet")
