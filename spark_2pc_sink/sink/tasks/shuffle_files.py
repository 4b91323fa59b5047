"""The shuffle files: payloads of shuffle batches, where tasks run on the driver's machine.

Then only the place of a payload goes through Spark's shuffle. A payload that goes through it is copied some ten times,
from one process to the other and back, and compressed once more. Which task gets what, in which order and of which task
attempt, is the same in both ways: rows of the shuffle say it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, BinaryIO

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.sink.transfer.local_folder import unusable

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

    from spark_2pc_sink.wire.arrow_layout import ArrowBuffer
    from spark_2pc_sink.wire.framed_request import RecordBytes


class ShuffleFile:
    """The file that one attempt of one encode task writes. A context manager; all can be read when it is left.

    Args:
        folder: of the attempt's shuffle batches; what it is in is there.
        encode_task: the Spark partition id.
        task_attempt: tells the attempts of one encode task apart.
    """

    def __init__(self, folder: Path, encode_task: int, task_attempt: int) -> None:
        self._path = _path(folder, encode_task, task_attempt)
        self._file: BinaryIO | None = None
        self._bytes = 0

    def __enter__(self) -> ShuffleFile:
        return self

    def __exit__(self, *_: object) -> None:
        """Close it.

        Raises:
            BatchRetryError: the disk is full.
        """
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                raise unusable(self._path, error) from error

    def append(self, payload: RecordBytes | ArrowBuffer) -> tuple[int, int]:
        """Write the next shuffle batch; where it begins and how many bytes it has.

        Raises:
            BatchRetryError: the disk is full, or the folder is gone.
        """
        try:
            if self._file is None:
                self._path.parent.mkdir(exist_ok=True)
                self._file = self._path.open("xb")
            written = self._file.write(payload)
        except OSError as error:
            raise unusable(self._path, error) from error
        begin, self._bytes = self._bytes, self._bytes + written
        return begin, written


class ShuffleFiles:
    """The files of all encode tasks, for a task that sends what is in them. A context manager that closes them.

    Args:
        folder: of the attempt's shuffle batches.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._open: dict[tuple[int, int], FileIO] = {}

    def __enter__(self) -> ShuffleFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, encode_task: int, task_attempt: int, begin: int, length: int) -> bytearray:
        """One shuffle batch; it can be written to, so that nobody has to copy it once more.

        Raises:
            BatchRetryError: it is not there, or not whole.
        """
        path = _path(self._folder, encode_task, task_attempt)
        payload = bytearray(length)
        try:
            if (encode_task, task_attempt) not in self._open:
                self._open[encode_task, task_attempt] = self._stack.enter_context(path.open("rb", buffering=0))
            file = self._open[encode_task, task_attempt]
            file.seek(begin)
            found = file.readinto(payload)
        except OSError as error:
            raise unusable(path, error) from error
        if found != length:
            raise BatchRetryError(reason=f"{path} has {found} of {length} bytes at {begin}: it was cut off")
        return payload


def _path(folder: Path, encode_task: int, task_attempt: int) -> Path:
    return folder / f"{encode_task}-{task_attempt}"
