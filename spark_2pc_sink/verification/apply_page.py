"""The page beside the files with what either side lacks: for each file the command that puts its content there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.plural import counted
from spark_2pc_sink.verification.commands import Commands
from spark_2pc_sink.verification.missing import Reason

PAGE: Final = "APPLY.md"
READER: Final = "console-producer-reader.properties"
UNSAYABLE: Final = "records_for_another_producer.jsonl"
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
#: What is true of the content of both files of a reason.
_REASONS: Final[Mapping[Reason, str]] = {
    "missing": "One side has what the other lacks",
    "differing": "Both sides have the key, with other values. Make the table like Kafka, or Kafka like the table, or\n"
    "neither: not both",
    "twice": "One side has it once more than the other. To remove what is too much is a third way, which no file here\n"
    "takes",
}
_PSQL: Final = (
    "psql does all of it, or nothing. It takes the password from PGPASSWORD or ~/.pgpass. Triggers of the table fire."
)
_PRODUCER: Final = (
    "Each record is sent on its own: readers see some before others. The producer chooses the partition by the key,\n"
    "as Java's default partitioner does, and the time is that of sending. Headers are not sent: the table does not\n"
    "tell them. The producer ends with exit code 0 also where a record was refused; it says that on standard error.\n"
    "Before Kafka 4.2 its --command-config is called --producer.config."
)


def apply_page(
    counts: Mapping[str, int],
    *,
    directory: str,
    table: str,
    columns: Sequence[str],
    key_note: str,
    topics: Sequence[str],
    no_rows: int,
    commands: Commands,
) -> str:
    """The text of the page.

    Args:
        counts: how many rows or records each file has; those without any are not there.
        directory: where the files are.
        table: as SQL.
        columns: of the files with rows.
        key_note: about the keys of records.
        topics: of the sink.
        no_rows: records that can be no row of the table.
        commands: what the commands begin with.
    """
    parts = []
    names = ", ".join(map(quote_identifier, columns))
    for reason, told in _REASONS.items():
        rows, records = ROWS[reason], RECORDS[reason]
        if rows in counts:
            how = ["-f", rows] if reason == "differing" else ["-c", f"COPY {table} ({names}) FROM STDIN"]
            given = "" if reason == "differing" else f" < {rows}"
            title = f"## {rows}: {counted(counts[rows], 'row')} that Kafka has"
            parts.append(f"{title}\n\n{told}.\n\n{_PSQL}\n\n    {commands.psql} {shlex.join(how)}{given}\n")
        if records in counts:
            command = commands.console_producer(topics[0] if len(topics) == 1 else "TOPIC", READER)
            title = f"## {records}: {counted(counts[records], 'record')} that the table has"
            said = [told + ".", _PRODUCER, key_note, *_topic_note(topics)]
            parts.append("\n\n".join([title, *said, f"    {command} < {records}\n"]))
    if UNSAYABLE in counts:
        parts.append(
            f"## {UNSAYABLE}: {counted(counts[UNSAYABLE], 'record')} that the console producer cannot send\n\n"
            "To it a line is a record, bytes are UTF-8, and a key has to be known. Each line of the file has the row\n"
            "and the reason. Send them by a program of your own.\n"
        )
    if no_rows:
        title = f"## {counted(no_rows, 'record')} that can be no row of the table"
        parts.append(f"{title}\n\nThe comparison names the first of them.\n")
    if not parts:
        return "# What either side lacks\n\nNothing that could be written to a file.\n"
    head = f"# What either side lacks\n\nStop the job before you apply any of this. Run the commands in {directory}.\n"
    end = (
        f"## Afterwards\n\nCompare both sides once more:\n\n    {commands.verify}\n\n"
        "Records that you have sent are of no batch, and it says so (gap). This compares with the table alone:\n\n"
        f"    {commands.verify} --table-only\n"
    )
    return "\n".join([head, *parts, end])


def _topic_note(topics: Sequence[str]) -> list[str]:
    named = ", ".join(topics)
    note = f"The sink has several topics ({named}), and the table does not tell which: put one in the place of TOPIC."
    return [] if len(topics) == 1 else [note]
