"""A driver whose login is refused in the middle of a batch."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import AuthorizationError, InDoubtError
from spark_2pc_sink.recipe.steps import Step
from tests.unit.sink.driver.batch_jobs import started


@pytest.mark.parametrize("decided", [False, True])
def test_a_login_that_is_refused_ends_the_query_at_once(*, decided: bool, caplog: pytest.LogCaptureFixture) -> None:
    """B25: neither recovery nor the next attempt would be let in, so nothing is waited for, and no line repeated."""
    job = started()
    refused = AuthorizationError(api="SaslAuthenticate", code=58, name="SASL_AUTHENTICATION_FAILED", detail="refused")

    def refuse(_: str) -> None:
        raise refused

    def shut_out(step: Step) -> None:
        if step is (Step.DECIDE if decided else Step.BEGIN):
            job.kafka.before = refuse

    job.on_step = shut_out
    began_s = job.clock.now_s()
    with pytest.raises(InDoubtError if decided else AuthorizationError, match="refused"):
        job.driver.write(0, job.work(fail=[] if decided else [refused]))
    assert job.clock.now_s() == began_s
    assert "did not get through" not in caplog.text
