"""SQL of a user, cut into statements: what stands in quotes and comments is no SQL."""

from __future__ import annotations

import pytest

from spark_2pc_sink.options.sql_text import bare_statements, transaction_command


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("a; b ;\n;c", ["a", "b", "c"]),
        ("SELECT 'a;b', \"c;d\"", ["select ,"]),
        ("SELECT 'it''s; so'; COMMIT", ["select", "commit"]),
        (r"SELECT E'it\'s; so'; COMMIT", ["select", "commit"]),
        ("DO $$ BEGIN; COMMIT; END $$; SELECT 1", ["do", "select 1"]),
        ("DO $a$ $$; $$ $a$", ["do"]),
        ("SELECT 1 -- ; COMMIT\n; x", ["select 1", "x"]),
        ("/* ; */ ROLLBACK", ["rollback"]),
        ("SELECT $1; $2", ["select $1", "$2"]),
    ],
)
def test_statements(text: str, statements: list[str]) -> None:
    assert bare_statements(text) == statements


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("INSERT INTO audit VALUES (1); COMMIT", "commit"),
        ("commit and chain", "commit and chain"),
        ("/* now */ Rollback", "rollback"),
        ("PREPARE TRANSACTION 'x'", "prepare transaction"),
        ("ROLLBACK TO SAVEPOINT a", None),
        ("rollback work to a", None),
        ("PREPARE audit AS SELECT 1", None),
        ("SELECT 'COMMIT'; -- COMMIT", None),
        ("UPDATE commits SET ended = 1", None),
    ],
)
def test_commands_that_end_the_transaction(text: str, command: str | None) -> None:
    assert transaction_command(text) == command
