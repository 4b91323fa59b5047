"""A new cause of a halt edits one file: errors, commands, the runbook, the dashboard and pages have it then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT

#: Adds a cause to the table; nothing else is touched.
_MEMBER = """    #: Made up.
    MOON_IS_FULL = "moon_is_full"
    #: The state row belongs to another Kafka cluster.
"""
_ENTRY = """HALTS: Final[dict[HaltCause, Entry]] = {
    HaltCause.MOON_IS_FULL: Entry(
        title="the moon is full",
        meaning="Nothing is decided until it wanes.",
        choices=(Choice(name="wait", title="wait for the morning", steps=("sleep",)), DROP),
        says="the moon has been seen",
        advice="Sleep first.",
        walk=(("drop", "it was urgent"),),
    ),
"""


@pytest.mark.slow
def test_a_new_cause_edits_one_file(tmp_path: Path) -> None:
    """In a copy of the packages, as a table of this process has readers that have read it."""
    for package in ("spark_2pc_sink", "jdbc_state", "tools"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    table = tmp_path / "spark_2pc_sink" / "choices" / "halts.py"
    text = table.read_text()
    for line, changed in (
        (_MEMBER.splitlines(keepends=True)[-1], _MEMBER),
        (_ENTRY.splitlines(keepends=True)[0], _ENTRY),
    ):
        assert text.count(line) == 1
        text = text.replace(line, changed)
    table.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.choices.readers_of_the_table", "moon_is_full", "the moon has been seen"],
        # The path alone: the folder of the tests has the packages without the new cause.
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    # The dashboard writes it with a capital.
    words = {"told": "True", "schema": "moon_is_full", "error": "wait for the morning", "recover": "(moon_is_full)"}
    words["docs/after-a-crash.md"] = "Nothing is decided until it wanes"
    for reader, text in shown.items():
        assert words.get(reader, "he moon is full") in text, reader
    for reader in ("error", "recover", "runbook"):
        assert "wait for the morning" in shown[reader], reader
        assert "--batch 7 --drop" in shown[reader], reader
    assert 'value="drop"' in shown["dashboard"]
    assert "Which one → drop\nWhy → it was urgent\nDo it → yes\n" in shown["RUNBOOK.md"]
    assert "| `moon_is_full` |" in shown["docs/after-a-crash.md"]
