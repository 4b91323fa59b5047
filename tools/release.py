"""Checks and texts of a release; its version is that of the package.

python tools/release.py COMMAND:

check       what keeps this commit from being a release; exit code 1 where something does
notes       the part of CHANGELOG.md that is about this version
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_VERSION: Final = re.compile(r'^__version__: Final = "(.+)"$', re.MULTILINE)
_FINAL: Final = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
#: The workflow of a release runs for a tag, and GitHub names it here.
_TAG: Final = "GITHUB_REF_NAME"


def version_in(source: str) -> str:
    """The version that the source of the package says."""
    (found,) = _VERSION.findall(source)
    return str(found)


def notes_of(changelog: str, version: str) -> str:
    """The section of a version, without its heading; '' where there is none."""
    head = f"\n## {version}\n"
    return changelog.partition(head)[2].partition("\n## ")[0].strip() if head in changelog else ""


def problems(version: str, changelog: str, project: str, environment: Mapping[str, str]) -> Iterator[str]:
    """What keeps a commit from being a release, each with what to do; ``project``: the text of pyproject.toml."""
    if not _FINAL.fullmatch(version):
        yield f"__version__ is {version!r}: set it to X.Y.Z, X.Y.ZaN, X.Y.ZbN or X.Y.ZrcN in spark_2pc_sink/__init__.py"
    if not notes_of(changelog, version):
        yield f"CHANGELOG.md has no section '## {version}': put what is under Unreleased there"
    if notes_of(changelog, "Unreleased"):
        yield "CHANGELOG.md has lines under Unreleased: they belong to this version"
    if not re.search(r'^Source = "https://', project, re.MULTILINE):
        yield "pyproject.toml has no Source in [project.urls]: without it README.md has no links to files at an index"
    tag = environment.get(_TAG, "")
    if tag.startswith("v") and tag != f"v{version}":
        yield f"the tag is {tag!r} and the version {version!r}: they must be the same"


def main(words: list[str]) -> int:
    """Do what a command says; the exit code."""
    version = version_in((ROOT / "spark_2pc_sink" / "__init__.py").read_text())
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if words == ["notes"]:
        sys.stdout.write(f"{notes_of(changelog, version)}\n")
        return 0
    if words == ["check"]:
        found = list(problems(version, changelog, (ROOT / "pyproject.toml").read_text(), os.environ))
        sys.stderr.write("".join(f"no release: {each}\n" for each in found))
        return 1 if found else 0
    sys.stderr.write(f"{__doc__}")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
