"""The transfer of rows to the table: what the tasks of a batch send, stage, and are told about it by the driver.

The COPY bytes of a task wait in memory for its end, and travel as one transfer. A task that has too many of them stages
them while it runs, part by part: a part is a complete COPY BINARY stream, which is there at once and whole or not at
all. The driver takes each part as soon as it is there, in the transaction that decides. Where that is:
`staging_tables`, which needs nothing but the database, and `staging_files`, which costs less where driver and tasks
are on one machine.

What is staged is written once and read once, and need not outlive a crash. So what was read is compared with the
receipt of the task, and an attempt of which something is missing is thrown away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.table.column_plan import ColumnPlan
    from spark_2pc_sink.sink.table.copy_stream import Stream


@dataclass(frozen=True)
class Transfer:
    """The COPY bytes of one task, on their way to the driver.

    Attributes:
        attempt: `TransactionTicket.attempt`.
        encode_task: the Spark partition id.
        task_attempt: tells the attempts of one encode task apart.
        stream: a complete COPY BINARY stream, in chunks.
        lane: whose rows these are.
    """

    attempt: tuple[str, int, int]
    encode_task: int
    task_attempt: int
    stream: tuple[bytes, ...]
    lane: int = 0


class TransferSender(Protocol):
    """The encoders' end: an accumulator, or the channel itself where the driver encodes."""

    def add(self, term: list[Transfer], /) -> None:
        """Send transfers when this task has succeeded."""


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


@dataclass(frozen=True)
class RowEncoderPlan:
    """How tasks encode the rows of a lane for its table, and where the COPY bytes go. Can be pickled.

    Attributes:
        columns: how each column is checked and encoded.
        staging: where a task puts its rows when they are more than `inline_bytes_max`.
        sender: brings transfers to the driver; None where nothing does, and all rows are staged.
        inline_bytes_max: COPY bytes of one transfer; a task that makes more stages them.
        row_key: the column that tells rows apart in error texts; None for the upsert keys.
        lane: the index of the lane.
    """

    columns: ColumnPlan
    staging: Staging
    sender: TransferSender | None
    inline_bytes_max: int
    row_key: str | None
    lane: int = 0
