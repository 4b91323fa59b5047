"""SQL of a user, cut into statements: what stands in quotes and comments is no SQL."""

from __future__ import annotations

import pytest

from spark_2pc_sink.options.sql_text import bare_statements


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1", ["select 1"]),
        ("SELECT 1;", ["select 1"]),
        ("a; b ;\n;c", ["a", "b", "c"]),
        ("SELECT 'a;b', \"c;d\"", ["select ,"]),
        ("SELECT 'it''s; so'; COMMIT", ["select", "commit"]),
        (r"SELECT E'it\'s; so'; COMMIT", ["select", "commit"]),
        ("DO $$ BEGIN; COMMIT; END $$; SELECT 1", ["do", "select 1"]),
        ("DO $a$ $$; $$ $a$", ["do"]),
        ("SELECT 1 -- ; COMMIT\n; x", ["select 1", "x"]),
        ("/* ; */ ROLLBACK", ["rollback"]),
        ("SELECT $1; $2", ["select $1", "$2"]),
        ("", []),
    ],
)
def test_statements(text: str, statements: list[str]) -> None:
    assert bare_statements(text) == statements
