"""What a person is told to do next; files with what either side lacks: lines for COPY and the producer, the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import javaproperties
import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.columns import Column, ComparedColumn, ComparedColumns, TableShape
from spark_2pc_sink.verification.expressions import record_key
from spark_2pc_sink.verification.repairs import (
    PAGE,
    READER,
    READER_PROPERTIES,
    RECORDS,
    ROWS,
    UNSENDABLE,
    Commands,
    MissingFiles,
    next_steps,
    why_unsendable,
)
from spark_2pc_sink.verification.report import Difference, DifferenceKind, NotChecked, VerifyReport
from spark_2pc_sink.verification.statements import Statements


def options(**kafka: str) -> RecoveryOptions:
    return RecoveryOptions.parse(
        transactional_id="my orders",
        kafka={"bootstrap.servers": "h:1,i:2", **kafka},
        database="postgresql://ops:secret@db/shop",
        state_schema="ops",
    )


SHAPE = {"table": 'public."Orders"', "mode": "upsert", "keys": ["id", "line"], "order_by": None}
COMMANDS = Commands.of(options(), SHAPE)
COLUMNS = (Column("id", "bigint", "int8"), Column("a b", "text", "text"))

# --- the next commands ---


def report(*kinds: DifferenceKind, **fields: Any) -> VerifyReport:
    places: list[dict[str, Any]] = [{"offset": 5} if kind == "stranger" else {} for kind in kinds]
    named = [
        Difference(kind=kind, text="x", topic="t", partition=2, **at) for kind, at in zip(kinds, places, strict=True)
    ]
    told = {"verdict": "different", "counts": dict.fromkeys(kinds, 1), "differences": tuple(named), **fields}
    return VerifyReport(transactional_id="my orders", **told)


def test_commands_are_complete_and_have_no_password() -> None:
    sides = "--bootstrap-server h:1,i:2 --database postgresql://ops@db/shop --state-schema ops"
    assert COMMANDS.status == f"spark-2pc status --transactional-id 'my orders' {sides}"
    shape = """--table 'public."Orders"' --mode upsert --keys id,line"""
    assert COMMANDS.verify == f"spark-2pc verify --transactional-id 'my orders' {sides} {shape}"
    assert COMMANDS.psql == "psql postgresql://ops@db/shop -v ON_ERROR_STOP=1"
    assert "--command-config" not in COMMANDS.console_producer("t", "reader")
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    secured = Commands.of(options(**login, **{"sasl.password": "secret"}), {})
    for command in (secured.console_producer("t", "reader"), secured.console_consumer("t", 0, 5), secured.verify):
        assert "--command-config FILE" in command
        assert "secret" not in command


@pytest.mark.parametrize(
    ("found", "steps"),
    [
        (report(verdict="same"), []),
        (report(verdict="inconclusive", known=False), [COMMANDS.status]),
        (report(verdict="inconclusive", not_checked=(NotChecked("the table", "it has no column of a record"),)), []),
        *(
            (report(kind), [f"{COMMANDS.verify} --write-missing DIR"])
            for kind in ("missing_in_kafka", "missing_in_table", "topic_remade", "topic_deleted", "truncated")
        ),
        (report("missing_in_table", written=("files/a", "files/APPLY.md")), ["files/APPLY.md"]),
        (report("stranger"), ["consumer.sh --bootstrap-server h:1,i:2 --topic t --partition 2 --offset 5"]),
        # A database that is older than Kafka explains the rest.
        (report("missing_in_table", "gap"), [COMMANDS.status, "--write-missing"]),
    ],
)
def test_the_next_steps_depend_on_what_was_found(found: VerifyReport, steps: list[str]) -> None:
    told = next_steps(found, COMMANDS)
    assert len(told) == len(steps)
    assert all(part in step for part, step in zip(steps, told, strict=True)), told


# --- the files ---


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
        directory=folder,
        shape=TableShape(table, tuple(columns)),
        sql=Statements(table, compared, key=tuple(key)),
        record_key=record_key(None, columns=names, row_key=key),
        topics=topics,
        commands=COMMANDS,
    )


def closed(files: MissingFiles, folder: Path) -> dict[str, str]:
    """What it has written, which is all that is there."""
    written = {Path(path).name for path in files.close()}
    assert written == {path.name for path in folder.iterdir()}
    return {name: (folder / name).read_text() for name in written}


@pytest.mark.parametrize(("old", "told"), [("folder/old", "must be empty"), ("folder", "must be a readable directory")])
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
    written = closed(files, folder)
    assert written.keys() == {ROWS["missing"], PAGE}
    assert written[ROWS["missing"]] == "1\t\\N\n2\ttab\\t, break\\n, backslash\\\\N\n"
    copy = """-c 'COPY "public"."orders" ("id", "a b") FROM STDIN'"""
    assert f"\n    {COMMANDS.psql} {copy} < {ROWS['missing']}\n" in written[PAGE]
    assert f"\n    {COMMANDS.verify}\n" in written[PAGE]
    assert "secret" not in written[PAGE]


def test_records_are_written_as_the_console_producer_reads_them(tmp_path: Path) -> None:
    """Its LineMessageReader takes a line apart at the first separator (Kafka 4.3.1)."""
    files = files_in(tmp_path)
    files.add_row("missing", {"id": "1", "a b": None}, '{"id": 1}')
    files.add_row("missing", {"id": None, "a b": None}, '{"a": "\x1f"}')
    written = closed(files, tmp_path)
    assert written.keys() == {RECORDS["missing"], READER, PAGE}
    reader = javaproperties.loads(READER_PROPERTIES)
    told = [line.split(reader["key.separator"], 1) for line in (tmp_path / RECORDS["missing"]).open(newline="\n")]
    assert told == [["1", '{"id": 1}\n'], [reader["null.marker"], '{"a": "\x1f"}\n']]
    command = f"kafka-console-producer.sh --bootstrap-server h:1,i:2 --topic orders --reader-config {READER} <"
    assert command in written[PAGE]
    assert "the text of column id" in written[PAGE]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("k", "ä\t,:= \u2028 \\n \x1f", ""),
        (None, "", ""),
        ("k", "two\nlines", "the value has a line break"),
        ("a\rb", "v", "the key has a line break"),
        ("a\x1fb", "v", "the key contains the character that separates"),
        ("\x1anull", "v", "the key is the text that represents a null"),
        ("k", "\x1anull", "the value is the text that represents a null"),
    ],
)
def test_what_no_line_can_say_has_its_reason(key: str | None, value: str, reason: str) -> None:
    assert why_unsendable(key, value).startswith(reason)
    assert bool(why_unsendable(key, value)) is bool(reason)


def test_what_differs_is_written_for_both_ways(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.add_record("differing", ("1", "as in Kafka"))
    files.add_row("differing", {"id": "1", "a b": "as in the table"}, "{}")
    written = closed(files, tmp_path)
    assert written.keys() == {ROWS["differing"], RECORDS["differing"], READER, PAGE}
    assert written[ROWS["differing"]].splitlines() == [
        "BEGIN;",
        'CREATE TEMPORARY TABLE as_in_kafka ON COMMIT DROP AS SELECT "id", "a b" FROM "public"."orders" LIMIT 0;',
        'COPY pg_temp.as_in_kafka ("id", "a b") FROM STDIN;',
        "1\tas in Kafka",
        "\\.",
        'UPDATE "public"."orders" AS aimed SET ("a b") = ROW (found."a b")',
        'FROM pg_temp.as_in_kafka AS found WHERE aimed."id" IS NOT DISTINCT FROM found."id";',
        "COMMIT;",
    ]
    assert f"-f {ROWS['differing']}\n" in written[PAGE]


def test_columns_that_postgresql_computes_or_numbers_are_not_set(tmp_path: Path) -> None:
    """COPY may set an identity column, and UPDATE may not; neither may set a generated one."""
    made = (Column("no", "bigint", "int8", identity=True), Column("sum", "int", "int4", generated=True))
    files = files_in(tmp_path / "some", columns=[*COLUMNS, *made])
    files.add_record("missing", ("1", "x", "7", "8"))
    files.add_record("differing", ("2", "y", "7", "8"))
    written = closed(files, tmp_path / "some")
    assert written[ROWS["missing"]] == "1\tx\t7\n"
    assert "\n2\ty\t7\n" in written[ROWS["differing"]]
    assert 'SET ("a b") = ROW (found."a b")\n' in written[ROWS["differing"]]
    alone = files_in(tmp_path / "alone", columns=[COLUMNS[0], *made])
    alone.add_record("differing", ("2", "7", "8"))
    assert "## 1 row that an UPDATE cannot change" in closed(alone, tmp_path / "alone")[PAGE]


def test_a_key_of_several_columns_is_left_to_a_program(tmp_path: Path) -> None:
    files = files_in(tmp_path, key=("id", "a b"))
    row = {"id": "1", "a b": "x"}
    files.add_row("missing", row, '{"id": 1, "a b": "x"}')
    written = closed(files, tmp_path)
    assert written.keys() == {UNSENDABLE, PAGE}
    reason = "it is unknown how the columns id, a b make the record's key"
    assert json.loads(written[UNSENDABLE]) == {"row": row, "value": '{"id": 1, "a b": "x"}', "reason": reason}


def test_without_a_key_the_records_have_none_and_the_page_says_so(tmp_path: Path) -> None:
    files = files_in(tmp_path, key=(), topics=("one", "two"))
    files.add_row("twice", {"id": "1", "a b": "x"}, "{}")
    written = closed(files, tmp_path)
    assert written[RECORDS["twice"]] == "\x1anull\x1f{}\n"
    assert "The records have no key" in written[PAGE]
    assert "Replace TOPIC by the one" in written[PAGE]


@pytest.mark.parametrize(
    ("some", "told"), [(True, "1 record that cannot be a row of the table"), (False, "Nothing could be written")]
)
def test_a_record_that_can_be_no_row_is_counted_and_nothing_missing_is_said(
    tmp_path: Path, some: bool, told: str
) -> None:
    files = files_in(tmp_path)
    if some:
        files.add_record("missing", None)
    written = closed(files, tmp_path)
    assert told in written.pop(PAGE)
    assert written == {}
