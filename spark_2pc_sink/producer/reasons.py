"""What a time-out says about why."""

from __future__ import annotations

import logging

from spark_2pc_sink.clock import Deadline

_log = logging.getLogger(__name__)


class Reasons:
    """The newest reason of failed attempts, for the error at the end, and for the log where they go on for long.

    An attempt that the deadline cut short was not answered in time whatever the trouble is: it says less than what was
    found before it, and does not take its place.

    Args:
        deadline: of all attempts.

    Attributes:
        newest: None before the first.
    """

    def __init__(self, deadline: Deadline) -> None:
        self.newest: str | None = None
        self._deadline = deadline

    def note(self, reason: object) -> None:
        """An attempt has failed."""
        if self.newest is None or not self._deadline.passed:
            self.newest = str(reason)
        if self._deadline.got_long():
            _log.warning("still waiting for Kafka, for up to %.0f s more: %s", self._deadline.remaining_s, self.newest)
