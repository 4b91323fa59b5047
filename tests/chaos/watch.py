"""Watching how long readers of committed records stand still: the last stable offset, against the high watermark."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

_PERIOD_S = 0.05
_REQUEST_DEADLINE_S = 2.0
_STOP_DEADLINE_S = 20.0
#: A partition: its topic and its number.
Partition = tuple[str, int]


@dataclass(frozen=True)
class Ends:
    """Where a partition ends for the two kinds of readers."""

    stable: int
    high: int


@dataclass(frozen=True)
class Standstill:
    """A time in which records waited in a partition and the last stable offset did not move.

    Attributes:
        topic: of the partition.
        since_s: when the first look ended that saw it, on the machine's monotonic clock: it had begun by then.
        last_seen_s: when the last look began that still saw it: the true end is not before that.
    """

    topic: str
    since_s: float
    last_seen_s: float


class Watch:
    """A thread that looks some twenty times a second, past all proxies; a context manager.

    Args:
        bootstrap: of the broker.
        partitions: those that are watched.
    """

    def __init__(self, bootstrap: str, partitions: Sequence[Partition]) -> None:
        self._settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "socket.timeout.ms": 2_000,
        }
        self._admin = AdminClient(self._settings)
        self._partitions = partitions
        self._open: dict[Partition, tuple[int, float, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        #: All that have ended.
        self.standstills: list[Standstill] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_STOP_DEADLINE_S)

    def ends(self) -> dict[Partition, Ends]:
        """Where the partitions end now.

        Raises:
            KafkaException: the broker does not answer, or has answered an older client. The next look has a new one.
            TimeoutError: the client itself did not answer.
        """
        try:
            return self._both_ends()
        except (KafkaException, TimeoutError):
            # Killed, paused or starting, or the machine stalled. The client keeps the leader epochs that it has seen
            # before, and would go on being refused with them.
            self._admin = AdminClient(self._settings)
            raise

    def ends_at_rest(self, deadline_s: float) -> dict[Partition, Ends]:
        """Where the partitions end when nothing is written any more; as they are, when a transaction stays open.

        Args:
            deadline_s: seconds for open transactions to end, and for a broker that does not answer to answer again.

        Raises:
            KafkaException: it still does not.
            TimeoutError: nor does the client.
        """
        end_s = time.monotonic() + deadline_s
        while True:
            late = time.monotonic() >= end_s
            try:
                ends = self.ends()
            except (KafkaException, TimeoutError):
                if late:
                    raise
            else:
                if late or all(end.stable == end.high for end in ends.values()):
                    return ends
            time.sleep(_PERIOD_S)

    def _both_ends(self) -> dict[Partition, Ends]:
        # The stable end first: a transaction that begins between the two makes a standstill that has begun when the
        # second answer is there, and not before.
        stable = self._ask(IsolationLevel.READ_COMMITTED)
        high = self._ask(IsolationLevel.READ_UNCOMMITTED)
        return {partition: Ends(stable[partition], high[partition]) for partition in self._partitions}

    def look(self, begun_s: float, ended_s: float, ends: dict[Partition, Ends]) -> None:
        """Take note of what was seen by a look from ``begun_s`` to ``ended_s``."""
        for partition, end in ends.items():
            before = self._open.get(partition)
            if before is not None and (before[0] != end.stable or end.high <= end.stable):
                self.standstills.append(Standstill(partition[0], before[1], before[2]))
                del self._open[partition]
                before = None
            if end.high > end.stable:
                since_s = ended_s if before is None else before[1]
                self._open[partition] = (end.stable, since_s, begun_s)

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            begun_s = time.monotonic()
            try:
                ends = self.ends()
            except (KafkaException, TimeoutError):
                # Nobody can read then, and the time is the fault's.
                continue
            self.look(begun_s, time.monotonic(), ends)

    def _ask(self, isolation: IsolationLevel) -> dict[Partition, int]:
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(*partition): latest for partition in self._partitions}
        answers = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_REQUEST_DEADLINE_S)
        return {
            (at.topic, at.partition): answer.result(_REQUEST_DEADLINE_S * 2).offset for at, answer in answers.items()
        }
