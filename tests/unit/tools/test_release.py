"""What a release refuses, names and takes out of pages: locks, audits, and the page of the package at an index."""

from __future__ import annotations

import fnmatch
import json
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from email import message_from_string
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import spark_2pc_sink
from tools import audit, first_job, matrix
from tools.first_job import FirstJobError
from tools.matrix import cells
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


HARMLESS = {"name": "six", "version": "1.0", "vulns": []}
FLAW = {"id": "PYSEC-1", "fix_versions": ["2.0"]}


def audited(folder: Path, *, known: Any, locked: Any) -> int:
    """An audit by a program that answers as pip-audit does: JSON, or a text as the last line of a traceback."""
    (folder / "lock.txt").write_text("six==1.0 --hash=sha256:0\n")
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
    return audit.main(str(program), str(folder / "lock.txt"))


VULNERABLE = {"name": "requests", "version": "2.19.0", "vulns": [FLAW]}


def test_it_passes_where_nothing_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(tmp_path, known=[VULNERABLE], locked=[HARMLESS]) == 0
    assert capsys.readouterr().out == "audit: 1 packages, 0 known vulnerabilities\n"


def test_what_is_known_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(tmp_path, known=[VULNERABLE], locked=[HARMLESS | {"vulns": [FLAW]}]) == 1
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], known: Any, locked: Any, reason: str
) -> None:
    """One sentence, with the reason and what to do."""
    assert audited(tmp_path, known=known, locked=locked) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert reason in said.err
    assert "Run make audit where https://pypi.org answers" in said.err


README = """
## A first job

Text.

```python
print("two batches")
```

It ends with `a batch`.

## Next
"""


def test_a_job_that_ends_otherwise_than_the_readme_says_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job itself is run by tests/integration/docs/test_first_job.py."""
    (tmp_path / "README.md").write_text(README)
    monkeypatch.setattr(first_job, "ROOT", tmp_path)
    with pytest.raises(FirstJobError, match=r"the job has printed .*two batches.* and not 'a batch'"):
        first_job.run_job(Path(sys.executable), tmp_path)


def test_every_cell_has_tests_that_there_are() -> None:
    assert {cell.kind for cell in cells()} == {"spark", "postgres", "kafka"}
    assert all((matrix.ROOT / name).exists() for cell in cells() for name in cell.tests)
    left_out = {test.partition("::") for cell in cells() for test in cell.left_out}
    assert all(f"def {test}(" in (matrix.ROOT / file).read_text() for file, _, test in left_out)


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


README_TEXT = (ROOT / "README.md").read_text()
PROJECT_TEXT = (ROOT / "pyproject.toml").read_text()
index_page = runpy.run_path(str(ROOT / "setup.py"))["index_page"]


def code(text: str) -> list[str]:
    """The blocks of a page."""
    return re.findall("```.*?```", text, flags=re.DOTALL)


def links(text: str) -> list[str]:
    """Where links between brackets go, outside of code."""
    return re.findall(r"\]\(([^)]+)\)", re.sub("```.*?```", "", text, flags=re.DOTALL))


def test_links_go_to_the_address_of_the_project() -> None:
    with_address = f'{PROJECT_TEXT}\n[project.urls]\nSource = "https://host.example/team/sink/"\n'
    made = links(index_page(README_TEXT, with_address))
    assert len(made) == len(links(README_TEXT)) > 20
    start = "https://host.example/team/sink/blob/main/"
    assert [link for link in made if "/raw/main/" in link] == [
        "https://host.example/team/sink/raw/main/docs/images/recipe.svg"
    ]
    assert [link for link in made if not link.startswith(("https://", "#"))] == []
    assert [ROOT / link.removeprefix(start).partition("#")[0] for link in made if link.startswith(start)] != []
    assert all((ROOT / link.removeprefix(start).partition("#")[0]).exists() for link in made if link.startswith(start))


def test_without_an_address_a_link_is_its_text() -> None:
    readme = (
        "[![a\npicture](one.svg)](page.md) ![two](https://x.example/two.svg) ![three](three.svg)\n"
        "[`four.md`](four.md#b) [`4/`](4/four.md) [four](4/four.md)\n"
        "[five](https://x.example) [six](#a) [![seven](https://x.example/7.svg)](seven.md)\n"
    )
    assert index_page(readme, '[project]\n# Source = "https://x.example"\n') == (
        "a\npicture (page.md) ![two](https://x.example/two.svg) three\n"
        "`four.md` `4/` four (4/four.md)\n"
        "[five](https://x.example) [six](#a) ![seven](https://x.example/7.svg) (seven.md)\n"
    )


@pytest.mark.slow
def test_the_page_of_an_archive_leads_somewhere(tmp_path: Path) -> None:
    """As a build writes it: links have an address, and files that it names in their place are in the source archive."""
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info"))
    build = "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel('..'); b.build_sdist('..')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    [metadata], [archive] = tmp_path.glob("*.dist-info/METADATA"), tmp_path.glob("*.tar.gz")
    page = message_from_string(metadata.read_text()).get_payload()
    assert isinstance(page, str)
    headings = {heading.lower().replace(" ", "-") for heading in re.findall("^#+ (.*)$", page, re.MULTILINE)}
    found = [link for link in links(page) if not link.startswith("https://") and link.removeprefix("#") not in headings]
    assert found == []
    with tarfile.open(archive) as files:
        inside = {name.partition("/")[2] for name in files.getnames()}
        shown = files.extractfile(f"{archive.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert shown is not None
        assert message_from_string(shown.read().decode()).get_payload() == page
    linked = {link.partition("#")[0] for link in links(README_TEXT) if not link.startswith(("https://", "#"))}
    assert linked - inside == set()
