"""The directory of files with what either side lacks: lines for COPY and the console producer, and the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import javaproperties
import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.columns import Column, ComparedColumn, ComparedColumns, TableShape
from spark_2pc_sink.verification.expressions import record_key
from spark_2pc_sink.verification.missing_files import (
    READER,
    READER_PROPERTIES,
    RECORDS,
    ROWS,
    UNSAYABLE,
    MissingFiles,
    why_unsayable,
)
from spark_2pc_sink.verification.next_steps import PAGE, Commands
from spark_2pc_sink.verification.statements import Statements

COMMANDS = Commands.of(
    RecoveryOptions.parse(
        transactional_id="orders", kafka={"bootstrap.servers": "h:1"}, database="postgresql://ops:secret@db/shop"
    ),
    {"table": "orders"},
)
COLUMNS = (Column("id", "bigint", "int8"), Column("a b", "text", "text"))


def files_in(
    folder: Path,
    *,
    key: Sequence[str] = ("id",),
    topics: Sequence[str] = ("orders",),
    columns: Sequence[Column] = COLUMNS,
) -> MissingFiles:
    names = [column.name for column in columns]
    table = TableName("orders", "public")
    compared = ComparedColumns(tuple(ComparedColumn(name, name, *["text"] * 5) for name in names))
    return MissingFiles(
        folder,
        shape=TableShape(table, tuple(columns)),
        sql=Statements(table, compared, key=tuple(key)),
        record_key=record_key(None, columns=names, row_key=key),
        topics=topics,
        commands=COMMANDS,
    )


def closed(files: MissingFiles) -> set[str]:
    """The names of what it has written, which is all that is there."""
    written = {Path(path).name for path in files.close()}
    assert written == {path.name for path in files._directory.iterdir()}
    return written


@pytest.mark.parametrize(
    ("old", "told"), [("folder/old", "the directory is empty"), ("folder", "it is a directory that can be read")]
)
def test_a_directory_that_is_not_empty_or_a_file_is_refused(tmp_path: Path, old: str, told: str) -> None:
    (tmp_path / old).parent.mkdir(exist_ok=True)
    (tmp_path / old).touch()
    with pytest.raises(ConfigurationError, match=told) as refused:
        files_in(tmp_path / "folder")
    assert refused.value.option == "write_missing"


def test_rows_are_written_as_copy_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    files = files_in(folder)
    files.add_record("missing", ("1", None))
    files.add_record("missing", ("2", "tab\t, break\n, backslash\\N"))
    assert closed(files) == {ROWS["missing"], PAGE}
    assert (folder / ROWS["missing"]).read_text() == "1\t\\N\n2\ttab\\t, break\\n, backslash\\\\N\n"
    command = (
        """psql postgresql://ops@db/shop -v ON_ERROR_STOP=1 -c 'COPY "public"."orders" ("id", "a b") FROM STDIN'"""
    )
    page = (folder / PAGE).read_text()
    assert f"\n    {command} < {ROWS['missing']}\n" in page
    assert f"\n    {COMMANDS.verify}\n" in page
    assert "secret" not in page


def test_records_are_written_as_the_console_producer_reads_them(tmp_path: Path) -> None:
    """Its LineMessageReader takes a line apart at the first separator (Kafka 4.3.1)."""
    files = files_in(tmp_path)
    files.add_row("missing", {"id": "1", "a b": None}, '{"id": 1}')
    files.add_row("missing", {"id": None, "a b": None}, '{"a": "\x1f"}')
    assert closed(files) == {RECORDS["missing"], READER, PAGE}
    reader = javaproperties.loads(READER_PROPERTIES)
    lines = (tmp_path / RECORDS["missing"]).read_text().splitlines()
    told = [line.split(reader["key.separator"], 1) for line in (tmp_path / RECORDS["missing"]).open(newline="\n")]
    assert told == [["1", '{"id": 1}\n'], [reader["null.marker"], '{"a": "\x1f"}\n']]
    assert lines
    page = (tmp_path / PAGE).read_text()
    assert f"kafka-console-producer.sh --bootstrap-server h:1 --topic orders --reader-config {READER} <" in page
    assert "the text of column id" in page


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("k", "ä\t,:= \u2028 \\n \x1f", ""),
        (None, "", ""),
        ("k", "two\nlines", "the value has a line break"),
        ("a\rb", "v", "the key has a line break"),
        ("a\x1fb", "v", "the key has the character that separates"),
        ("\x1anull", "v", "the key is the text that stands for a null"),
        ("k", "\x1anull", "the value is the text that stands for a null"),
    ],
)
def test_what_no_line_can_say_has_its_reason(key: str | None, value: str, reason: str) -> None:
    assert why_unsayable(key, value).startswith(reason)
    assert bool(why_unsayable(key, value)) is bool(reason)


def test_what_differs_is_written_for_both_ways(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.add_record("differing", ("1", "as in Kafka"))
    files.add_row("differing", {"id": "1", "a b": "as in the table"}, "{}")
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


def test_columns_that_postgresql_computes_or_numbers_are_not_set(tmp_path: Path) -> None:
    """COPY may set an identity column, and UPDATE may not; neither may set a generated one."""
    made = (Column("no", "bigint", "int8", identity=True), Column("sum", "int", "int4", generated=True))
    files = files_in(tmp_path / "some", columns=[*COLUMNS, *made])
    files.add_record("missing", ("1", "x", "7", "8"))
    files.add_record("differing", ("2", "y", "7", "8"))
    closed(files)
    assert (tmp_path / "some" / ROWS["missing"]).read_text() == "1\tx\t7\n"
    update = (tmp_path / "some" / ROWS["differing"]).read_text()
    assert "\n2\ty\t7\n" in update
    assert 'SET ("a b") = ROW (found."a b")\n' in update
    alone = files_in(tmp_path / "alone", columns=[COLUMNS[0], *made])
    alone.add_record("differing", ("2", "7", "8"))
    assert closed(alone) == {PAGE}
    assert "## 1 row that no UPDATE can make like Kafka" in (tmp_path / "alone" / PAGE).read_text()


def test_a_key_of_several_columns_is_left_to_a_program(tmp_path: Path) -> None:
    files = files_in(tmp_path, key=("id", "a b"))
    files.add_row("missing", {"id": "1", "a b": "x"}, '{"id": 1, "a b": "x"}')
    assert closed(files) == {UNSAYABLE, PAGE}
    found = json.loads((tmp_path / UNSAYABLE).read_text())
    assert found.pop("reason") == "which key the columns id, a b make is not known"
    assert found == {"row": {"id": "1", "a b": "x"}, "value": '{"id": 1, "a b": "x"}'}


def test_without_a_key_the_records_have_none_and_the_page_says_so(tmp_path: Path) -> None:
    files = files_in(tmp_path, key=(), topics=("one", "two"))
    files.add_row("twice", {"id": "1", "a b": "x"}, "{}")
    closed(files)
    assert (tmp_path / RECORDS["twice"]).read_text() == "\x1anull\x1f{}\n"
    page = (tmp_path / PAGE).read_text()
    assert "The records have no key" in page
    assert "put one in the place of TOPIC" in page


def test_a_record_that_can_be_no_row_is_counted_and_nothing_missing_is_said(tmp_path: Path) -> None:
    files = files_in(tmp_path / "some")
    files.add_record("missing", None)
    assert closed(files) == {PAGE}
    assert "1 record that can be no row of the table" in (tmp_path / "some" / PAGE).read_text()
    assert closed(files_in(tmp_path / "none")) == {PAGE}
    assert "Nothing that could be written" in (tmp_path / "none" / PAGE).read_text()
