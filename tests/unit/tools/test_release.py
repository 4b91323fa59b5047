"""tools/release.py: what is refused as a release, and the part of the changelog that goes with one."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest
import tomli

import spark_2pc_sink
from tools.release import problems, version_in

ROOT = Path(__file__).resolve().parents[3]
CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 1.2.0\n\n- New.\n\n## 1.1.0\n\n- Old.\n"
PROJECT = '[project.urls]\nSource = "https://host.example/sink"\n'


@pytest.mark.parametrize(
    ("version", "changelog", "project", "tag", "why"),
    [
        ("1.2.0.dev0", CHANGELOG.replace("1.2.0", "1.2.0.dev0"), PROJECT, "", "set it to X.Y.Z"),
        ("1.3.0", CHANGELOG, PROJECT, "", "no section '## 1.3.0'"),
        ("1.2.0", CHANGELOG.replace("Unreleased\n", "Unreleased\n\n- More.\n"), PROJECT, "", "under Unreleased"),
        ("1.2.0", CHANGELOG, "", "", r"no Source in \[project.urls\]"),
        ("1.2.0", CHANGELOG, PROJECT, "v1.2.1", "the tag is 'v1.2.1'"),
    ],
    ids=["version", "section", "unreleased", "address", "tag"],
)
def test_what_is_missing_is_named(version: str, changelog: str, project: str, tag: str, why: str) -> None:
    (found,) = problems(version, changelog, project, {"GITHUB_REF_NAME": tag})
    assert re.search(why, found)


def test_the_version_has_one_place() -> None:
    assert version_in((ROOT / "spark_2pc_sink" / "__init__.py").read_text()) == spark_2pc_sink.__version__
    assert 'version = { attr = "spark_2pc_sink.__version__" }' in (ROOT / "pyproject.toml").read_text()


def test_the_wheel_has_no_bytecode_of_whoever_builds_it() -> None:
    """It was there: data of the dashboard were all files of its folders, and Python makes one more."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        data = tomli.load(file)["tool"]["setuptools"]["package-data"]
    made = [path.parent.relative_to(ROOT / "spark_2pc_sink") for path in (ROOT / "spark_2pc_sink").rglob("*.py")]
    bytecode = {str(folder / "__pycache__" / "a.pyc") for folder in made}
    assert [pattern for pattern in data["spark_2pc_sink"] if fnmatch.filter(bytecode, pattern)] == []
    assert all(list((ROOT / "spark_2pc_sink").glob(pattern)) for pattern in data["spark_2pc_sink"])
