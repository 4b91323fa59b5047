"""`make audit` passes only where the service of known vulnerabilities has been asked and could have said something."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import audit

HARMLESS = {"name": "six", "version": "1.0", "vulns": []}
FLAW = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
LOCKED = "six==1.0 --hash=sha256:0\n"


@pytest.fixture
def lock(tmp_path: Path) -> str:
    path = tmp_path / "lock.txt"
    path.write_text(LOCKED)
    return str(path)


def answering(folder: Path, *, known: Any, locked: Any) -> str:
    """A program that answers as pip-audit does: JSON, or a text as the last line of a traceback."""
    program = folder / "pip-audit"
    answers = {"known": known, "locked": locked}
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        f"answers = json.loads({json.dumps(answers)!r})\n"
        "asked = pathlib.Path(sys.argv[-1]).read_text()\n"
        f"answer = answers['known' if asked.strip() == {audit.KNOWN!r} else 'locked']\n"
        "if isinstance(answer, str):\n"
        "    sys.exit('Traceback (most recent call last):\\n' + answer)\n"
        "print(json.dumps({'dependencies': answer, 'fixes': []}))\n"
        "sys.exit(any(each.get('vulns') for each in answer))\n"
    )
    program.chmod(0o755)
    return str(program)


VULNERABLE = {"name": "requests", "version": "2.19.0", "vulns": [FLAW]}


def test_it_passes_where_nothing_is_known(tmp_path: Path, lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(answering(tmp_path, known=[VULNERABLE], locked=[HARMLESS]), lock) == 0
    assert capsys.readouterr().out == "audit: 1 packages, 0 known vulnerabilities\n"


def test_what_is_known_is_named(tmp_path: Path, lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(answering(tmp_path, known=[VULNERABLE], locked=[HARMLESS | {"vulns": [FLAW]}]), lock) == 1
    assert capsys.readouterr().out.startswith("six 1.0: PYSEC-1, mended in 2.0\n")


@pytest.mark.parametrize(
    ("known", "locked", "reason"),
    [
        ("ProxyError: no route", [HARMLESS], "ProxyError: no route"),
        ([VULNERABLE], "ConnectionError: lost", "ConnectionError: lost"),
        # A mirror that knows no vulnerability of anything.
        ([VULNERABLE | {"vulns": []}], [HARMLESS], f"it knows of none of {audit.KNOWN}"),
        ([{"name": "requests", "skip_reason": "not found"}], [HARMLESS], "not found"),
        ([VULNERABLE], [HARMLESS, {"name": "own", "skip_reason": "not found on PyPI"}], "not found on PyPI"),
    ],
)
def test_who_could_not_be_asked_is_no_good_news(
    tmp_path: Path, lock: str, capsys: pytest.CaptureFixture[str], known: Any, locked: Any, reason: str
) -> None:
    """One sentence, with the reason and what to do."""
    assert audit.main(answering(tmp_path, known=known, locked=locked), lock) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert reason in said.err
    assert "Run make audit where https://pypi.org answers" in said.err
