"""Staged rows in files, where tasks run on the driver's machine (Spark's master ``local[n]``).

What a server would write and read again for them costs more than everything else that a task does for PostgreSQL, so
where both ends see the same files, they need no server. A task fills a folder of its own, one file for each part,
named when it is complete (`_FileStore`); the driver removes each when it has read it (`StagedFiles`). The folder that
all of this is in belongs to one sink of one process, and goes with it: at the end of the process, or when another sink
starts and finds that it has gone (`StagingFolder`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.sink.target import driver_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.batch_work import TransactionTicket
    from spark_2pc_sink.sink.copy_stream import Stream

_PREFIX: Final = "spark-2pc-sink-"
#: Of a folder that nobody has locked yet.
_NEW: Final = "new-"
_LOCK: Final = ".lock"
_UNFINISHED: Final = "unfinished"


@dataclass(frozen=True)
class FileStaging:
    """See `Staging`.

    Attributes:
        folder: seen by the driver and all tasks.
        look_s: see `Staging`; a look at a folder is cheap.
        part_bytes: see `Staging`; so is a file, and small parts are written sooner.
    """

    folder: Path
    look_s: float = 0.05
    part_bytes: int = 1024 * 1024

    def store(self, ticket: TransactionTicket, source: int, run: int) -> _FileStore:
        """See `Staging.store`."""
        return _FileStore(self._of_attempt(ticket), source, run)

    def staged(self, ticket: TransactionTicket, connection: Connection) -> StagedFiles:
        """See `Staging.staged`."""
        return StagedFiles(self._of_attempt(ticket), connection)

    def drop_leftovers(self, generation: int, begin: Callable[[], AbstractContextManager[Connection]]) -> int:
        """See `Staging.drop_leftovers`."""
        del begin
        dropped = 0
        for attempt in self.folder.glob("*_*"):
            if int(attempt.name.partition("_")[0]) < generation:
                dropped += len(list(attempt.iterdir()))
                shutil.rmtree(attempt)
        return dropped

    def _of_attempt(self, ticket: TransactionTicket) -> Path:
        return self.folder / f"{ticket.generation}_{ticket.transaction}"


class _FileStore:
    """The files of one run of one source.

    Args:
        attempt: the folder of the attempt.
        source: the Spark partition id.
        run: tells the runs of one source apart.
    """

    def __init__(self, attempt: Path, source: int, run: int) -> None:
        self._source = attempt / str(source)
        self._run = self._source / str(run)

    def __enter__(self) -> _FileStore:
        try:
            self._source.parent.mkdir(exist_ok=True)
            self._source.mkdir()
            self._run.mkdir()
        except FileExistsError as error:
            raise BatchRetryError(
                reason=f"staging folder {self._source} is there already: its source ran again"
            ) from error
        except OSError as error:
            raise _unusable(self._source, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def put(self, number: int, stream: Stream) -> None:
        """See `PartStore.put`.

        Raises:
            BatchRetryError: the disk is full, or the folder is gone.
        """
        unfinished = self._run / _UNFINISHED
        try:
            with unfinished.open("wb") as file:
                file.writelines(stream)
            unfinished.rename(self._run / str(number))
        except OSError as error:
            raise _unusable(self._run, error) from error


class StagedFiles:
    """See `StagedParts`.

    Args:
        attempt: the folder of the attempt.
        connection: of the transaction that decides.

    Attributes:
        taken: see `StagedParts`.
    """

    def __init__(self, attempt: Path, connection: Connection) -> None:
        self._attempt = attempt
        self._connection = driver_connection(connection)
        self.taken: dict[int, tuple[int, int]] = {}

    def arrived(self) -> Iterator[Stream]:
        """See `StagedParts.arrived`."""
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        for folder in sorted(self._attempt.glob("*/*")):
            source, run = int(folder.parent.name), int(folder.name)
            while (stream := self._take(folder, self.taken.get(source, (run, 0))[1])) is not None:
                self.taken[source] = (run, self.taken.get(source, (run, 0))[1] + 1)
                yield [stream]

    def drop(self) -> None:
        """See `StagedParts.drop`."""
        if self.taken:
            shutil.rmtree(self._attempt)

    def _take(self, folder: Path, number: int) -> bytes | None:
        part = folder / str(number)
        try:
            stream = part.read_bytes()
        except FileNotFoundError:
            return None
        # What is gone before the system gets to it is never written to a disk.
        part.unlink()
        return stream


class StagingFolder:
    """A folder of this process, for one sink; only its user can read it.

    A process that is killed cannot remove it. So it is locked as long as the process lives, and folders beside it that
    nobody holds are removed.

    Args:
        parent: where it is made, such as Spark's local directory.

    Attributes:
        path: of the folder.
    """

    def __init__(self, parent: Path) -> None:
        _remove_abandoned(parent)
        made = Path(tempfile.mkdtemp(prefix=_NEW + _PREFIX, dir=parent))
        lock = _open_lock(made)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only now others may look whether somebody holds it.
        self.path = made.rename(parent / made.name.removeprefix(_NEW))
        self._remove = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove it; once is enough."""
        self._remove()


def _open_lock(folder: Path) -> int:
    return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _remove(folder: Path, lock: int) -> None:
    # A late task of an attempt that was given up may still write into it: what it leaves is removed as abandoned.
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = _open_lock(folder)
        except (FileNotFoundError, PermissionError):  # gone in this moment, or another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody holds it
            os.close(lock)
        else:
            _remove(folder, lock)


def _unusable(folder: Path, error: OSError) -> BatchRetryError:
    return BatchRetryError(
        reason=f"rows could not be staged in {folder}: {error.strerror}; spark.local.dir names another disk, and "
        "staging_schema has them staged in the database"
    )
