"""The first job of README.md runs as it is pasted, by itself, and both sides are the same.

``make release`` does it with the wheel in a new environment, and takes the time: tools/first_job.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT
from tools.first_job import job_of


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(200)
def test_the_first_job_of_the_readme(tmp_path: Path) -> None:
    """In a directory of its own, with the PATH of an environment that is activated."""
    job, expected = job_of((ROOT / "README.md").read_text())
    (tmp_path / "first_job.py").write_text(job)
    done = subprocess.run(
        [sys.executable, "first_job.py"],
        cwd=tmp_path,
        env={**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().splitlines()[-1] == expected
    assert "Traceback" not in done.stderr
