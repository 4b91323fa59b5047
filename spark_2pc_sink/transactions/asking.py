"""Retries of a question to brokers, until one answers it or the deadline has passed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.errors import KafkaTimeoutError

_Found = TypeVar("_Found")


class NotYetError(Exception):
    """The answer only says "ask again". Never leaves this package."""


def until_answered(operation: str, attempt: Callable[[], _Found], deadline: Deadline) -> _Found:
    """Run ``attempt`` until it does not raise `NotYetError`, with growing pauses.

    Args:
        operation: what is asked, for the error.
        attempt: asks once.
        deadline: when to give up.

    Raises:
        KafkaTimeoutError: no such answer within the deadline.
    """
    last_error: str | None = None
    while not deadline.passed:
        try:
            return attempt()
        except NotYetError as error:
            last_error = str(error)
        except KafkaTimeoutError as error:
            # An attempt that the deadline cut short says less than what was answered before it.
            last_error = last_error or error.last_error
        deadline.pause()
    raise KafkaTimeoutError(
        operation=operation, deadline_ms=deadline.limit_ms, last_error=last_error or "no broker was asked in time"
    )
