"""Spark runs a task or a stage again: nothing of the second run is written, the batch runs in a new transaction."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink.testing import assert_same_multiset, read_topic
from tests.integration.sink.test_sink import table_rows
from tests.support.retry_main import ROWS
from tests.support.streams import sink_options

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.providers import Broker


pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.spark]


@pytest.mark.parametrize(
    ("scenario", "key", "refusal"),
    [
        pytest.param("source", None, "ran again as attempt 1", marks=pytest.mark.thorough),
        ("task", "id", "ran again as attempt 1"),
        # Spark gives the job up by itself where it sees that the second run of a source made other pieces.
        ("stage", "id", "attempt 0 of the task in attempt 1 of its stage|cannot rollback the ResultStage"),
    ],
)
def test_a_second_attempt_refuses_and_the_batch_runs_again(
    tmp_path: Path,
    kafka: Broker,
    database: str,
    topic: MakeTopic,
    transactional_id: str,
    scenario: str,
    key: str | None,
    refusal: str,
) -> None:
    """A4, A5, A6, B30: a failing task, and shuffle files deleted in mid-stage; both sides equal the input."""
    name = topic(partitions=8)
    options = sink_options(
        broker=kafka, database=database, transactional_id=transactional_id, topic=name, key=key, table="public.target"
    )
    stderr = run_with_a_failure(tmp_path, scenario, options)
    assert re.search(refusal, stderr), [line for line in stderr.splitlines() if "attempt" in line]
    committed = assert_all_there(kafka, name, database)
    everything = read_topic(kafka.bootstrap, name, isolation="read_uncommitted")
    assert len(everything) > committed, "the first attempt had sent nothing that could be aborted"


@pytest.mark.thorough
def test_a_task_that_has_sent_nothing_may_run_again(
    tmp_path: Path, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str
) -> None:
    """A4: tasks that only read and encode are no reason to throw a batch away."""
    name = topic(partitions=8)
    options = sink_options(
        broker=kafka, database=database, transactional_id=transactional_id, topic=name, key="id", table="public.target"
    )
    assert "ran again" not in run_with_a_failure(tmp_path, "source", options)
    committed = assert_all_there(kafka, name, database)
    assert len(read_topic(kafka.bootstrap, name, isolation="read_uncommitted")) == committed


@pytest.mark.parametrize(
    "files", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["in files", "in tables"]
)
def test_a_task_that_has_staged_rows_may_not_run_again(
    tmp_path: Path, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str, files: bool
) -> None:
    """A4, C10: the driver may have taken some already; what they leave is dropped by the attempt that follows."""
    name = topic(partitions=8)
    options = sink_options(
        broker=kafka, database=database, transactional_id=transactional_id, topic=name, key="id", table="public.target"
    )
    stderr = run_with_a_failure(tmp_path, "encoded", {**options, "inline_copy_bytes_max": 0, "local_files": files})
    assert "is there already: its source ran again" in stderr
    assert_all_there(kafka, name, database)
    assert table_rows(database, "relname", "pg_class WHERE relname LIKE '\\_2pc\\_stage%'") == []
    assert list((tmp_path / "local").glob("**/spark-2pc-sink-*")) == []


def run_with_a_failure(directory: Path, scenario: str, options: dict[str, Any]) -> str:
    """Run one batch in a driver of its own; what that wrote to its standard error."""
    arguments = [sys.executable, "-m", "tests.support.retry_main", scenario, json.dumps(options), str(directory)]
    done = subprocess.run(
        arguments,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (directory / "failed-once").exists(), done.stderr[-3000:]
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def assert_all_there(kafka: Broker, topic: str, database: str) -> int:
    """Every row on both sides, once; the number of records."""
    assert_same_multiset(table_rows(database, "id"), [(number,) for number in range(ROWS)], what="rows")
    committed = [record.value for record in read_topic(kafka.bootstrap, topic)]
    assert_same_multiset(committed, [f"value-{number}".encode() for number in range(ROWS)], what="records")
    return len(committed)
