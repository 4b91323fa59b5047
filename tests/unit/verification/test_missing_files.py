"""The directory of files with what either side lacks, and the page with the commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.verification.apply_page import PAGE, READER, RECORDS, ROWS, UNSAYABLE
from spark_2pc_sink.verification.commands import Commands
from spark_2pc_sink.verification.console_lines import ConsoleRecord, console_line
from spark_2pc_sink.verification.missing import LoneRecord, LoneRow, Reason
from spark_2pc_sink.verification.missing_files import MissingFiles
from spark_2pc_sink.verification.record_key import record_key

COMMANDS = Commands.of(
    RecoveryOptions.parse(
        transactional_id="orders", kafka={"bootstrap.servers": "h:1"}, database="postgresql://ops:secret@db/shop"
    ),
    {"table": "orders"},
)


def files_in(folder: Path, *, key: Sequence[str] = ("id",), topics: Sequence[str] = ("orders",)) -> MissingFiles:
    columns = ("id", "a b")
    return MissingFiles(
        folder,
        table='"public"."orders"',
        columns=columns,
        key=key,
        record_key=record_key(None, columns=columns, row_key=key),
        topics=topics,
        commands=COMMANDS,
    )


def record(reason: Reason, row: dict[str, str | None] | None) -> LoneRecord:
    return LoneRecord(reason, "orders", 0, 7, b"1", b"{}", (), row)


def row(reason: Reason, text: str | None, json_text: str = "{}") -> LoneRow:
    return LoneRow(reason, {"id": "1", "a b": text}, json_text)


def closed(files: MissingFiles) -> set[str]:
    """The names of what it has written, which is all that is there."""
    written = {Path(path).name for path in files.close()}
    assert written == {path.name for path in files._directory.iterdir()}
    return written


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(ConfigurationError, match="the directory is empty") as refused:
        files_in(tmp_path)
    assert refused.value.option == "write_missing"


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="it is a directory that can be read"):
        files_in(tmp_path / "file")


def test_rows_are_written_as_copy_reads_them(tmp_path: Path) -> None:
    files = files_in(tmp_path / "new" / "folder")
    files.add_record(record("missing", {"id": "1", "a b": None}))
    files.add_record(record("missing", {"id": "2", "a b": "tab\t, break\n, backslash\\N"}))
    assert closed(files) == {ROWS["missing"], PAGE}
    folder = tmp_path / "new" / "folder"
    assert (folder / ROWS["missing"]).read_text() == "1\t\\N\n2\ttab\\t, break\\n, backslash\\\\N\n"
    command = (
        """psql postgresql://ops@db/shop -v ON_ERROR_STOP=1 -c 'COPY "public"."orders" ("id", "a b") FROM STDIN'"""
    )
    page = (folder / PAGE).read_text()
    assert f"\n    {command} < {ROWS['missing']}\n" in page
    assert f"\n    {COMMANDS.verify}\n" in page
    assert "secret" not in page


def test_records_are_written_as_the_console_producer_reads_them(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.add_row(row("missing", None, '{"id": 1}'))
    assert closed(files) == {RECORDS["missing"], READER, PAGE}
    assert (tmp_path / RECORDS["missing"]).read_text() == console_line(ConsoleRecord(b"1", b'{"id": 1}')) + "\n"
    page = (tmp_path / PAGE).read_text()
    assert f"kafka-console-producer.sh --bootstrap-server h:1 --topic orders --reader-config {READER} <" in page
    assert "the text of column id" in page


def test_what_differs_is_written_for_both_ways(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.add_record(record("differing", {"id": "1", "a b": "as in Kafka"}))
    files.add_row(row("differing", "as in the table"))
    assert closed(files) == {ROWS["differing"], RECORDS["differing"], READER, PAGE}
    assert (tmp_path / ROWS["differing"]).read_text().splitlines() == [
        "BEGIN;",
        'CREATE TEMPORARY TABLE as_in_kafka ON COMMIT DROP AS SELECT "id", "a b" FROM "public"."orders" LIMIT 0;',
        'COPY pg_temp.as_in_kafka ("id", "a b") FROM STDIN;',
        "1\tas in Kafka",
        "\\.",
        'UPDATE "public"."orders" AS aimed SET ("a b") = ROW (found."a b")',
        'FROM pg_temp.as_in_kafka AS found WHERE aimed."id" IS NOT DISTINCT FROM found."id";',
        "COMMIT;",
    ]
    assert f"-f {ROWS['differing']}\n" in (tmp_path / PAGE).read_text()


def test_a_key_of_several_columns_is_left_to_a_program(tmp_path: Path) -> None:
    files = files_in(tmp_path, key=("id", "a b"))
    files.add_row(row("missing", "x", '{"id": 1, "a b": "x"}'))
    assert closed(files) == {UNSAYABLE, PAGE}
    found = json.loads((tmp_path / UNSAYABLE).read_text())
    assert found.pop("reason") == "which key the columns id, a b make is not known"
    assert found == {"row": {"id": "1", "a b": "x"}, "value": '{"id": 1, "a b": "x"}'}


def test_without_a_key_the_records_have_none_and_the_page_says_so(tmp_path: Path) -> None:
    files = files_in(tmp_path, key=(), topics=("one", "two"))
    files.add_row(row("twice", "x"))
    closed(files)
    assert (tmp_path / RECORDS["twice"]).read_text() == console_line(ConsoleRecord(None, b"{}")) + "\n"
    page = (tmp_path / PAGE).read_text()
    assert "The records have no key" in page
    assert "put one in the place of TOPIC" in page


def test_a_record_that_can_be_no_row_is_counted(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.add_record(record("missing", None))
    assert closed(files) == {PAGE}
    assert "1 record that can be no row of the table" in (tmp_path / PAGE).read_text()


def test_where_nothing_is_missing_the_page_says_so(tmp_path: Path) -> None:
    assert closed(files_in(tmp_path)) == {PAGE}
    assert "Nothing that could be written" in (tmp_path / PAGE).read_text()
