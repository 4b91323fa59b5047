"""What `make lock` has written: packages with their hashes, from no index, within the bounds of pyproject.toml."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
LOCKS = {"dev": ROOT / "tools" / "requirements-dev.txt", "release": ROOT / "tools" / "requirements-release.txt"}
#: Of the Python that continuous integration runs, and of the others that users have.
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
_PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[^ ;]+)(?: ; (?P<marker>.+?))? \\$")
_HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


@cache
def project() -> dict[str, list[str]]:
    """The requirements of pyproject.toml by extra; '' has those of everybody, ``release`` those of that group."""
    read = tomli.loads((ROOT / "pyproject.toml").read_text())
    of_all = {"": read["project"]["dependencies"], **read["project"]["optional-dependencies"]}
    return {**of_all, "release": read["dependency-groups"]["release"]}


def wanted(extra: str) -> list[Requirement]:
    """Those of an extra, and of the extras of ours that it names."""
    found = [Requirement(text) for text in project()[extra]]
    ours = [each for each in found if each.name == "spark-2pc-sink"]
    others = [each for each in found if each.name != "spark-2pc-sink"]
    return others + [more for each in ours for name in each.extras for more in wanted(name)]


def locked(lock: Path, python: str) -> dict[str, Version]:
    """The packages that are installed with a Python on Linux."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
    }
    pins = [found for line in lock.read_text().splitlines() if (found := _PIN.match(line))]
    chosen = [
        (each["name"], Version(each["version"]))
        for each in pins
        if each["marker"] is None or Requirement(f"x; {each['marker']}").marker.evaluate(environment)  # type: ignore[union-attr]
    ]
    assert len(dict(chosen)) == len(chosen), "a package is there once"
    return dict(chosen)


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_each_line_is_a_package_or_its_hash_and_none_is_an_address(lock: Path) -> None:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not _PIN.match(line) and not _HASH.match(line)] == []
    assert "://" not in lock.read_text()
    # Behind a package and a backslash is a hash, or pip would take any file.
    for before, line in zip(lines, [*lines[1:], ""], strict=True):
        assert _HASH.match(line) if before.endswith("\\") else not _HASH.match(line)


@pytest.mark.parametrize("python", PYTHONS)
def test_what_pyproject_names_is_locked_within_its_bounds(python: str) -> None:
    """Else `make lock` was forgotten after a change."""
    for lock, requirements in (("dev", [*wanted(""), *wanted("dev")]), ("release", wanted("release"))):
        found = locked(LOCKS[lock], python)
        due = [each for each in requirements if each.marker is None or each.marker.evaluate({"python_version": python})]
        missing = [str(each) for each in due if canonicalize_name(each.name) not in found]
        assert missing == []
        wrong = [str(each) for each in due if found[canonicalize_name(each.name)] not in each.specifier]
        assert wrong == []


def test_a_client_of_spark_connect_is_told_the_same_bounds() -> None:
    """docs/connect.md lists what the package needs beside PySpark, by name."""
    page = (ROOT / "docs" / "connect.md").read_text()
    (command,) = re.findall(r"^pip install pyspark-client ((?:.*\\\n)*.*)", page, flags=re.MULTILINE)
    listed = {Requirement(word.strip("'")) for word in command.replace("\\\n", " ").split()}
    assert {(each.name, str(each.specifier)) for each in listed} == {
        (each.name, str(each.specifier)) for each in wanted("") if each.name not in {"pyspark", "tomli"}
    }
