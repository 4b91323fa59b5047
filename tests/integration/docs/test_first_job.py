"""The first job of README.md runs as it is pasted, by itself, and both sides are the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(200)
def test_the_first_job_of_the_readme(tmp_path: Path) -> None:
    """In a directory of its own, with the PATH of an environment that is activated."""
    readme = (ROOT / "README.md").read_text()
    (job,) = re.findall("```python\n(.*?)```", readme.split("## A first job")[1].split("\n## ")[0], re.DOTALL)
    (expected,) = re.findall("It ends with `(.*?)`", readme)
    (tmp_path / "first_job.py").write_text(job)
    # `make release` names the Python of a clean environment that has the wheel alone.
    python = os.environ.get("FIRST_JOB_PYTHON", sys.executable)
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])}
    if python != sys.executable:
        env.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, "first_job.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().splitlines()[-1] == expected
    assert "Traceback" not in done.stderr
