"""A benchmark that puts parts of its own in the place of the product's runs with the product of today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.results import newest

pytestmark = [pytest.mark.thorough, pytest.mark.spark, pytest.mark.kafka, pytest.mark.java, pytest.mark.timeout(400)]

RUN_DEADLINE_S = 350
#: More than the driver writes by itself: the benchmark's parts are those of tasks.
ROWS = 30_000


def test_the_price_of_exactly_once_can_be_measured(tmp_path: Path) -> None:
    """It compares both sides of both ways, and ends with an error where they differ."""
    file = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rows", str(ROWS), "--results", str(file), "price"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_DEADLINE_S)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert newest(file)["price"].figures["with_rows_per_s"]["median"] > 0
