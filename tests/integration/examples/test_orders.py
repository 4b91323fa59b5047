"""The demo as a user runs it, to its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_2pc_sink.testing.java import find_java_home
from spark_2pc_sink.testing.kafka_broker import find_libs
from spark_2pc_sink.testing.postgres import find_binaries
from tests.conftest import or_skip

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "examples" / "orders_demo.py"
EVENTS = 4_000


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for everything that the demo makes; open to PostgreSQL's user, which tmp_path is not."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_kills_the_job_and_both_sides_are_equal_in_the_end(
    pytestconfig: pytest.Config, temporary: Path
) -> None:
    """A1: a batch whose driver died after the database commit, and before Kafka's, comes again and is written once."""
    for needed in (find_java_home, find_libs, find_binaries):
        or_skip(pytestconfig, needed)
    done = subprocess.run(
        [sys.executable, DEMO, f"--events={EVENTS}"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    story = done.stdout + done.stderr
    assert done.returncode == 0, story
    assert story.count(" s killed\n") == 2, story
    for recovered in ("aborted the open transaction", "committed"):
        assert re.search(rf"\| orders: recovered: {recovered}", story), story
    assert story.count("not written again") == 1, story
    assert re.search(rf"\| Kafka {{5}} +{EVENTS:,} +{EVENTS:,} +{EVENTS:,} +0 +0 +0\n", story), story
    assert re.search(rf"\| PostgreSQL +{EVENTS:,} +([\d,]+) +\1 +0 +0 +0\n", story), story
    assert list(temporary.iterdir()) == []
