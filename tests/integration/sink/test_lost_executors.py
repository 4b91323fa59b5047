"""An executor is killed, or decommissioned, at each place of a batch: both sides equal the input, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.one_batch_main import ROWS
from tests.integration.sink.test_executors import home_of_spark

if TYPE_CHECKING:
    from tests.integration.sink.one_batch import OneBatch

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(400), pytest.mark.spark]

RUN_DEADLINE_S = 350
#: Between the steps no task runs; what it has left in an executor is not needed any more.
PLACES = [("KILL", place) for place in ("reading", "streaming", "sent", "PRODUCE", "DECIDE")] + [("PWR", "streaming")]


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_batch_outlives_an_executor(one_batch: OneBatch, name: str, place: str) -> None:
    """A4, A5: Spark runs lost tasks again; of what those had sent nothing is committed."""
    _, stderr = one_batch.run(
        "tests.harness.one_batch_main",
        name,
        place,
        environment={"SPARK_HOME": str(home_of_spark(one_batch.directory))},
        key="id",
        deadline_s=RUN_DEADLINE_S,
    )
    assert (one_batch.directory / "struck").exists(), stderr[-3000:]
    one_batch.assert_all_there(ROWS)
