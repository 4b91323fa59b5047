"""The workflows of GitHub: what they may do and call, unchanged from outside; and the specification's mutants."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.specification import ACTIONS, INVARIANTS, LIVENESS, MUTANTS, SPECIFICATION

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
READS = {"contents": "read"}
#: What jobs may do that bring something to the outside.
UPLOADS = {
    ("release.yml", "publish"): {**READS, "id-token": "write"},
    ("docs.yml", "deploy"): {"pages": "write", "id-token": "write"},
}
#: The options of a `make`, as the shell takes them.
_ARGS = r"ARGS=('[^']*'|\S+)"
_PINNED = re.compile(r"^ *(?:- )?uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v[\d.]+$")


def name_of(path: Path) -> str:
    return path.name


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def commands(path: Path) -> Iterator[str]:
    """What the steps run, and what a matrix puts into them."""
    for job in jobs(path).values():
        yield from job.get("strategy", {}).get("matrix", {}).get("run", [])
        yield from (step["run"] for step in job["steps"] if "run" in step)


def options_of(target: str, path: Path) -> list[str]:
    """The ``ARGS`` of each `make` of a target."""
    return [found for command in commands(path) for found in re.findall(f"^make {target} {_ARGS}", command)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_an_action_is_a_commit_and_not_a_name_that_may_move(path: Path) -> None:
    used = [line for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    assert [line for line in used if not _PINNED.match(line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_a_job_may_read_and_only_uploads_may_do_more(path: Path) -> None:
    whole = yaml.safe_load(path.read_text())
    assert whole["permissions"] in ({}, {"contents": "read"})
    for name, job in jobs(path).items():
        assert job.get("permissions", READS) == UPLOADS.get((path.name, name), READS)
        assert "timeout-minutes" in job
        checkout = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout")]
        assert all(step["with"]["persist-credentials"] is False for step in checkout)


def test_what_they_make_can_be_made() -> None:
    targets = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in WORKFLOWS:
        for command in commands(path):
            if command.startswith("make "):
                words = re.sub(_ARGS, "", command).split()[1:]
                assert set(words) <= targets, command


@pytest.mark.parametrize(
    ("target", "module"),
    [
        pytest.param("simulate", "simulation", marks=pytest.mark.slow),
        pytest.param("chaos", "chaos", marks=pytest.mark.slow),
        ("fuzz", "fuzz"),
    ],
)
def test_commands_take_the_options_that_they_are_given(target: str, module: str) -> None:
    given = {shlex.split(text)[0] for path in WORKFLOWS for text in options_of(target, path)}
    assert given
    for options in given:
        command = (sys.executable, "-m", f"tests.{module}", *shlex.split(options), "--help")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"make {target} ARGS='{options}': {done.stderr}"


def test_no_text_of_a_stranger_becomes_a_command() -> None:
    """Titles and names of branches are written by whoever opens a pull request."""
    for path in WORKFLOWS:
        for command in commands(path):
            assert set(re.findall(r"\$\{\{ *([\w.]+) *\}\}", command)) <= {"matrix.run", "matrix.python"}
    assert "pull_request_target" not in "".join(path.read_text() for path in WORKFLOWS)


def test_every_defect_of_the_specification_is_tried_and_no_other() -> None:
    built_in = set(re.findall(r'Mutant (?:=|#) "([^"]+)"', SPECIFICATION.read_text()))
    assert built_in == {model.name for model in MUTANTS}


def test_every_property_is_broken_by_a_mutant() -> None:
    """TLC does not say which property of liveness was violated: a mutant of either breaks both."""
    assert {model.breaks for model in MUTANTS} == {*INVARIANTS, *ACTIONS, *LIVENESS}
