"""What is told at the end of a deadline."""

from __future__ import annotations

import pytest

from spark_2pc_sink.clock import QUIET_S, Deadline
from spark_2pc_sink.producer.broker_connections import Reasons
from tests.unit.fakes.clock import FakeClock


def test_the_newest_reason_is_told_unless_the_deadline_cut_the_attempt_short() -> None:
    clock = FakeClock()
    reasons = Reasons(Deadline(clock, 1000))
    reasons.note("refused")
    reasons.note(OSError("loading"))
    assert reasons.newest == "loading"
    clock.sleep(1)
    reasons.note("not answered in time")
    assert reasons.newest == "loading"


def test_a_first_attempt_that_was_cut_short_is_all_there_is_to_tell() -> None:
    clock = FakeClock()
    reasons = Reasons(Deadline(clock, 1000))
    clock.sleep(1)
    reasons.note("not answered in time")
    assert reasons.newest == "not answered in time"


def test_attempts_that_go_on_for_long_are_in_the_log_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    """At night a job that hangs says what it waits for, not only in the error at the end."""
    clock = FakeClock()
    deadline = Deadline(clock, 60_000)
    for reason in ("refused", "loading", "loading"):
        Reasons(deadline).note(reason)
        clock.sleep(QUIET_S)
    assert caplog.messages == ["still waiting for Kafka, for up to 55 s more: loading"]
