"""The staging of COPY bytes that are too many to wait in memory for the end of their task.

It puts them there part by part while it runs: a part is a complete COPY BINARY stream, which is there at once and whole
or not at all. The driver takes each part as soon as it is there, in the transaction that decides. Where that is:
`staging_tables`, which needs nothing but the database, and `staging_files`, which costs less where driver and tasks
are on one machine.

What is put there is written once and read once, and need not outlive a crash. So what was read is compared with the
receipt of the task, and an attempt of which something is missing is thrown away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.sink.table.copy_stream import HEADER, TRAILER, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection


class PartStore(Protocol):
    """A task's end."""

    def put(self, number: int, stream: Stream) -> None:
        """Store one part; it is complete, and the driver may have taken it, when this returns.

        Args:
            number: its place among the parts of this attempt, from 0.
            stream: a complete COPY BINARY stream.
        """


class StagedParts(ABC):
    """The driver's end: what the tasks of one attempt have staged, also while they go on.

    Attributes:
        taken: of each encode task the task attempt and how many parts were read.
    """

    def __init__(self) -> None:
        self.taken: dict[int, tuple[int, int]] = {}

    def arrived(self) -> Iterator[Stream]:
        """Parts that were not there before, one in memory at a time.

        Each look is also a sign of life to the server, which ends transactions that are idle for long.

        Raises:
            BatchRetryError: what an encode task has staged has vanished.
        """
        for encode_task, place in self._places():
            while (part := self._read(place, self.taken.get(encode_task, (0, 0))[1])) is not None:
                task_attempt, stream = part
                self.taken[encode_task] = (task_attempt, self.taken.get(encode_task, (task_attempt, 0))[1] + 1)
                yield stream

    @abstractmethod
    def _places(self) -> list[tuple[int, Any]]:
        """Each encode task that has staged something, and where. The server is asked something, in any case."""

    @abstractmethod
    def _read(self, place: Any, number: int) -> tuple[int, Stream] | None:
        """The task attempt and the stream of one part; None where it is not there yet."""


class Staging(Protocol):
    """A place for the parts of one attempt. Can be pickled: tasks get it with their plan."""

    @property
    def look_s(self) -> float:
        """Seconds after which the driver looks again."""

    @property
    def part_bytes(self) -> int:
        """Of a part. The last output of the encoder may exceed it; several of them fit any executor and the driver."""

    def store(self, encode_task: int, task_attempt: int) -> AbstractContextManager[PartStore]:
        """The task's end, of one attempt of one encode task.

        Args:
            encode_task: the Spark partition id.
            task_attempt: tells the attempts of one encode task apart.

        Raises:
            BatchRetryError: another attempt of the task was here; on entering.
            DatabaseUnreachableError: no connection could be made; on entering.
        """

    def staged(self, connection: Connection) -> StagedParts:
        """The driver's end.

        Args:
            connection: of the transaction that decides.
        """


class PartWriter:
    """Cuts the output of a `CopyEncoder` into parts; at most one part and one more chunk are in memory.

    Args:
        store: where parts go.
        part_bytes: see `Staging`.

    Attributes:
        parts: how many were stored.
    """

    def __init__(self, store: PartStore, *, part_bytes: int) -> None:
        self._store = store
        self._part_bytes = part_bytes
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._begun = False
        self.parts = 0

    def write(self, data: bytes) -> None:
        """Take the next output of the encoder.

        Raises:
            LocalProtocolError: it is the first, and has no header.
        """
        if not self._begun and data:
            if not data.startswith(HEADER):
                raise LocalProtocolError(operation="write", state="begun", rule="a stream begins with its header")
            data = data[len(HEADER) :]
            self._begun = True
        self._chunks.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= self._part_bytes:
            self._flush()

    def finish(self, tail: bytes) -> None:
        """Take what the encoder's ``finish`` returned; all parts are stored then.

        Raises:
            LocalProtocolError: ``tail`` is not the end of the stream.
        """
        if not tail.endswith(TRAILER):
            raise LocalProtocolError(operation="finish", state="begun", rule="a stream ends with its trailer")
        self.write(tail[: -len(TRAILER)])
        if self._held_bytes:
            self._flush()

    def _flush(self) -> None:
        part = (HEADER, *self._chunks, TRAILER)
        self._chunks, self._held_bytes = [], 0
        self._store.put(self.parts, part)
        self.parts += 1
