"""The first job of README.md runs as it is pasted, by itself, and both sides are the same.

``make release`` does it with the wheel in a new environment, and takes the time: tools/first_job.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.harness import ROOT
from tools.first_job import run_job


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(200)
def test_the_first_job_of_the_readme(tmp_path: Path) -> None:
    """In a directory of its own, with the packages of this environment and the source of this checkout."""
    run_job(Path(sys.executable), tmp_path, package=ROOT)
