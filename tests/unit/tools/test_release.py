"""What `make release`, `make audit` and `make matrix` refuse, name, and take out of the pages."""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli

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
