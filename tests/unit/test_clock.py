"""Deadlines over a clock that is an argument."""

from __future__ import annotations

from spark_2pc_sink.clock import QUIET_S, Deadline
from tests.unit.fakes.clock import FakeClock


def test_pauses_double_and_never_go_beyond_the_deadline() -> None:
    clock = FakeClock()
    deadline = Deadline(clock, 1_000, backoff_ms=100, backoff_ms_max=300)
    times = []
    while not deadline.passed:
        deadline.pause()
        times.append(round(clock.now, 3))
    assert times == [0.1, 0.3, 0.6, 0.9, 1.0]
    assert deadline.remaining_s == 0


def test_a_long_wait_is_said_again_and_again() -> None:
    """An operation that waits has a line in the log before its time-out, and one every ten seconds."""
    clock = FakeClock()
    deadline = Deadline(clock, 60_000)
    assert not deadline.is_due_for_log()
    clock.now += QUIET_S
    assert [deadline.is_due_for_log() for _ in range(3)] == [True, False, False]
    clock.now += 10
    assert [deadline.is_due_for_log() for _ in range(2)] == [True, False]
