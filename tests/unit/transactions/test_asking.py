"""Asking again, and what is reported when time is up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.errors import KafkaTimeoutError
from spark_2pc_sink.kafka.transaction_queries import NotYetError, until_answered
from tests.unit.fakes.clock import FakeClock


def answers(clock: FakeClock, *errors: Exception) -> Callable[[], str]:
    """Each attempt takes 40 ms and fails as told, until none is left to fail with."""
    waiting = list(errors)

    def attempt() -> str:
        clock.now += 0.04
        if waiting:
            raise waiting.pop(0)
        return "answer"

    return attempt


def cut_short() -> KafkaTimeoutError:
    return KafkaTimeoutError(operation="METADATA", deadline_ms=1, last_error="has not answered in time")


def test_it_asks_until_the_answer_counts() -> None:
    clock = FakeClock()
    attempt = answers(clock, NotYetError("loading"), NotYetError("loading"))
    assert until_answered("asking", attempt, Deadline(clock, 1_000)) == "answer"


@pytest.mark.parametrize(
    ("errors", "reported"),
    [
        ([NotYetError("loading"), cut_short()], "loading"),
        ([NotYetError("loading"), NotYetError("no leader")], "no leader"),
        ([cut_short(), cut_short()], "has not answered in time"),
    ],
    ids=["answered and cut short", "answered twice", "cut short"],
)
def test_what_was_answered_is_reported_before_what_was_cut_short(errors: list[Exception], reported: str) -> None:
    clock = FakeClock()
    with pytest.raises(KafkaTimeoutError, match=f"asking found no answer within 90 ms: .*{reported}$"):
        until_answered("asking", answers(clock, *errors), Deadline(clock, 90))


def test_without_any_time_nothing_is_asked() -> None:
    clock = FakeClock()
    with pytest.raises(KafkaTimeoutError, match="no broker was asked in time"):
        until_answered("asking", answers(clock), Deadline(clock, 0))
    assert clock.now == 0
