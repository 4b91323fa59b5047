"""Spark runs a task or a stage again: nothing of the second run is written, the batch runs in a new transaction."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.retry_main import ROWS

if TYPE_CHECKING:
    from tests.integration.sink.one_batch import OneBatch


pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.spark]


@pytest.mark.parametrize(
    ("scenario", "key", "refusal"),
    [
        pytest.param("source", None, "ran again as attempt 1", marks=pytest.mark.thorough),
        pytest.param("task", "id", "ran again as attempt 1", marks=pytest.mark.thorough),
        # Spark gives the job up by itself where it sees that the second run of a source made other pieces.
        ("stage", "id", "attempt 0 of the task in attempt 1 of its stage|cannot rollback the ResultStage"),
    ],
)
def test_a_second_attempt_refuses_and_the_batch_runs_again(
    one_batch: OneBatch, scenario: str, key: str | None, refusal: str
) -> None:
    """A4, A5, A6, B30: a failing task, and shuffle files deleted in mid-stage; both sides equal the input."""
    stderr = run_with_a_failure(one_batch, scenario, key=key)
    assert re.search(refusal, stderr), [line for line in stderr.splitlines() if "attempt" in line]
    one_batch.assert_all_there(ROWS)
    assert one_batch.records_not_committed(ROWS) > 0, "the first attempt had sent nothing that could be aborted"


@pytest.mark.thorough
def test_a_task_that_has_sent_nothing_may_run_again(one_batch: OneBatch) -> None:
    """A4: tasks that only read and encode are no reason to throw a batch away."""
    assert "ran again" not in run_with_a_failure(one_batch, "source", key="id")
    one_batch.assert_all_there(ROWS)
    assert one_batch.records_not_committed(ROWS) == 0


@pytest.mark.parametrize("files", [True, False], ids=["in files", "in tables"])
@pytest.mark.thorough
def test_a_task_that_has_staged_rows_may_not_run_again(one_batch: OneBatch, files: bool) -> None:
    """A4, C10: the driver may have taken some already; what they leave is dropped by the attempt that follows."""
    stderr = run_with_a_failure(one_batch, "encoded", key="id", inline_copy_bytes_max=0, local_files=files)
    assert "is there already: its encode task ran again" in stderr
    one_batch.assert_all_there(ROWS)
    assert list((one_batch.directory / "local").glob("**/spark-2pc-sink-*")) == []


def run_with_a_failure(batch: OneBatch, scenario: str, **options: Any) -> str:
    """Run the batch in a driver in which something fails once; what that wrote to its standard error."""
    _, stderr = batch.run("tests.harness.retry_main", scenario, **options)
    assert (batch.directory / "failed-once").exists(), stderr[-3000:]
    return stderr
