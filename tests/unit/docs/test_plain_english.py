"""Comments, docstrings, printed texts and pages use the words of docs/design/glossary.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.plain_english import findings


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "code.py",
            '"""Whoever reads.\n\nOf it."""\n\n\nclass Anew:  # by\n    # now, nobody\n    x = "all the same"\n',
            [(1, "whoever"), (3, "of"), (6, "by now"), (7, "nobody"), (8, "all the same")],
        ),
        (
            "page.md",
            'By now\n```\nnobody\n```\n`anew` "somebody" [x](anew.md)\n| Of these | a kind of\n',
            [(1, "by now"), (6, "of")],
        ),
    ],
)
def test_what_is_searched(tmp_path: Path, name: str, text: str, expected: list[tuple[int, str]]) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert [(finding.line, finding.word) for finding in findings(path)] == expected
