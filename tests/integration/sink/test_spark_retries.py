"""Spark runs a task or a stage again: each row and each record is there once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.one_batch_main import ROWS

if TYPE_CHECKING:
    from tests.integration.sink.one_batch import OneBatch


pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.spark]

UPSERT: dict[str, Any] = {"mode": "upsert", "upsert_keys": ["id"], "upsert_order_by": "id"}


@pytest.mark.parametrize(
    "options", [{}, pytest.param(UPSERT, marks=pytest.mark.thorough)], ids=["while it streams", "ordered"]
)
def test_a_second_attempt_is_refused_and_the_batch_runs_again(one_batch: OneBatch, options: dict[str, Any]) -> None:
    """A4, A5, A6, B30: what the first one has sent was being written already; both sides equal the input."""
    # Nothing waits for a full request: what the driver has of a task is on its way to the brokers.
    kafka = {"bootstrap.servers": one_batch.kafka.bootstrap, "compression.type": "none", "max.request.size": 20_000}
    stderr = run_with_a_failure(one_batch, "streaming", key="id", kafka=kafka | {"batch.size": 10_000}, **options)
    lines = [line for line in stderr.splitlines() if "attempt" in line]
    assert "had sent was already being written" in stderr, lines
    one_batch.assert_all_there(ROWS)
    assert one_batch.records_not_committed(ROWS) > 0, "the first attempt had sent nothing that could be aborted"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("place", "options"),
    [("reading", {}), ("stage", UPSERT)],
    ids=["task", "stage"],
)
def test_a_task_that_is_held_back_may_run_again(one_batch: OneBatch, place: str, options: dict[str, Any]) -> None:
    """A4: what it has sent is dropped, and the batch goes on, also where Spark runs a whole stage again."""
    stderr = run_with_a_failure(one_batch, place, key="id", **options)
    assert "attempt 1 of" not in stderr
    one_batch.assert_all_there(ROWS)
    assert one_batch.records_not_committed(ROWS) == 0


def run_with_a_failure(batch: OneBatch, place: str, **options: Any) -> str:
    """Run the batch in a driver in which something fails once; what that wrote to its standard error."""
    _, stderr = batch.run("tests.harness.one_batch_main", "fail", place, **options)
    assert (batch.directory / "struck").exists(), stderr[-3000:]
    return stderr
