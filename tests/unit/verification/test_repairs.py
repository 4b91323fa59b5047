"""What a person is told to do next; files with what either side lacks: lines for COPY and the producer, the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.columns import Column, ComparedColumn, ComparedColumns, TableShape
from spark_2pc_sink.verification.repairs import (
    PAGE,
    RECORDS,
    UNSENDABLE,
    Commands,
    MissingFiles,
    RecordKey,
    next_steps,
    record_key,
    why_unsendable,
)
from spark_2pc_sink.verification.report import Difference, DifferenceKind, NotChecked, VerifyReport
from spark_2pc_sink.verification.staging import Statements
from spark_2pc_sink.verification.target import Target


def options(**kafka: str) -> RecoveryOptions:
    return RecoveryOptions.parse(
        transactional_id="my orders",
        kafka={"bootstrap.servers": "h:1,i:2", **kafka},
        database="postgresql://ops:secret@db/shop",
        state_schema="ops",
    )


SHAPE = {"table": 'public."Orders"', "mode": "upsert", "keys": ["id", "line"], "order_by": None}
COMMANDS = Commands(options(), SHAPE)
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
    secured = Commands(options(**login, **{"sasl.password": "secret"}), {})
    for command in (secured.console_producer("t", "reader"), secured.console_consumer("t", 0, 5), secured.verify):
        assert "--command-config FILE" in command
        assert "secret" not in command


@pytest.mark.parametrize(
    ("found", "steps"),
    [
        (report(verdict="same"), []),
        (report(verdict="inconclusive", known=False), [COMMANDS.status]),
        (report(verdict="inconclusive", not_checked=(NotChecked("the table", "it has no column of a record"),)), []),
        *((report(kind), [f"{COMMANDS.verify} --write-missing DIR"]) for kind in ("missing_in_kafka", "topic_remade")),
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


def files_in(folder: Path, *, key: Sequence[str] = ("id",), topics: Sequence[str] = ("orders",)) -> MissingFiles:
    names = [column.name for column in COLUMNS]
    table = TableName("orders", "public")
    compared = ComparedColumns(tuple(ComparedColumn(name, name, *["text"] * 5) for name in names))
    return MissingFiles(
        directory=folder,
        shape=TableShape(table, COLUMNS),
        sql=Statements(Target(), table, compared, key=tuple(key)),
        layout=None,
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


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
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


# --- the key of a record that is made of a row ---------------------------------------------------------------------

NAMES = ("order_id", "a b", "amount")


def key_of(expression: str | None, columns: tuple[str, ...] = NAMES) -> RecordKey:
    return record_key(SinkLayout(table="t", key=expression), columns=columns, row_key=("order_id",))


@pytest.mark.parametrize(
    ("expression", "column"),
    [
        *((each, "order_id") for each in ("order_id", "CAST(order_id AS STRING)", "cast( `order_id` as string )")),
        ("`a b`", "a b"),
        (None, None),
    ],
)
def test_a_key_is_the_text_of_a_column_or_none(expression: str | None, column: str | None) -> None:
    assert (key_of(expression).column, key_of(expression).unknown) == (column, "")


@pytest.mark.parametrize("expression", ["customer", "CAST(order_id AS BINARY)", "upper(order_id)"])
def test_what_only_spark_can_make_is_not_guessed(expression: str) -> None:
    assert expression in key_of(expression).unknown


@pytest.mark.parametrize(
    ("row_key", "column", "known"),
    [((), None, True), (("order_id",), "order_id", True), (("order_id", "amount"), None, False)],
)
def test_without_a_note_of_the_sink_the_columns_that_name_a_row_tell(
    row_key: tuple[str, ...], column: str | None, known: bool
) -> None:
    """And a person is told to make sure of it."""
    found = record_key(None, columns=NAMES, row_key=row_key)
    assert (found.column, not found.unknown) == (column, known)
    assert ("Make sure" in found.note) is known
