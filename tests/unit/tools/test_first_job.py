"""tools/first_job.py: what it takes out of README.md, and how it fails. The job itself: make release."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import first_job
from tools.first_job import FirstJobError, Seconds, job_of, main

README = """
## A first job

Text.

```python
print("a batch")
```

It ends with `a batch`.

## Next
"""


def test_the_job_is_that_of_the_readme() -> None:
    job, line = job_of((first_job.ROOT / "README.md").read_text())
    assert "foreachBatch(sink)" in job
    assert "the same: True" in line
    assert job_of(README) == ('print("a batch")\n', "a batch")


@pytest.mark.parametrize(("said", "ends"), [("a batch", True), ("two batches", False)])
def test_the_job_ends_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, ends: bool
) -> None:
    (tmp_path / "README.md").write_text(README.replace('print("a batch")', f'print("{said}")'))
    monkeypatch.setattr(first_job, "ROOT", tmp_path)
    python = Path(sys.executable)
    if ends:
        first_job.run_job(python, tmp_path)
    else:
        with pytest.raises(FirstJobError, match=r"the job has printed .*two batches.* and not 'a batch'"):
            first_job.run_job(python, tmp_path)


def test_the_job_imports_the_package_from_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not from what this process has on its path."""
    (tmp_path / "README.md").write_text(README.replace('print("a batch")', "import in_package"))
    monkeypatch.setattr(first_job, "ROOT", tmp_path)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "in_package.py").write_text('print("a batch")')
    first_job.run_job(Path(sys.executable), tmp_path, package=tmp_path / "source")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "source"))
    with pytest.raises(FirstJobError, match="No module named 'in_package'"):
        first_job.run_job(Path(sys.executable), tmp_path)


@pytest.mark.parametrize(
    ("seconds", "code"), [((40.0, 19.0), 0), ((50.0, 11.0), 1)], ids=["in a minute", "in more than a minute"]
)
def test_a_minute_is_the_bound(
    seconds: tuple[float, float], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(first_job, "timed", lambda *_: Seconds(*seconds))
    assert main(["folder", "a.whl"]) == code
    assert f"together {sum(seconds):.1f} s of at most 60 s" in capsys.readouterr().out
    assert main(["folder"]) == 2
