"""The local folder that driver and tasks share where they run on one machine (Spark's master ``local[n]``).

What tasks hand to the driver and to each other then needs no server and no shuffle in between: see `staging_files` and
`shuffle_files`. The folder belongs to one sink of one process, and goes with it: at the end of the process, or when
another sink starts and finds that it has gone. Below it each attempt has a folder of its own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import BatchRetryError

if TYPE_CHECKING:
    from spark_2pc_sink.sink.contract.batch_work import TransactionTicket

_PREFIX: Final = "spark-2pc-sink-"
#: Of a folder that nobody has locked yet.
_NEW: Final = "new-"
_LOCK: Final = ".lock"


class LocalFolder:
    """A folder of this process; only its user can read it.

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
        (made / _LOCK).touch(mode=0o600)
        lock = _open_lock(made)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only now others may look whether somebody holds it.
        self.path = made.rename(parent / made.name.removeprefix(_NEW))
        self._remove = weakref.finalize(self, _remove, self.path, lock)

    def begin(self, ticket: TransactionTicket) -> Path:
        """Make the folder of an attempt; no two attempts have the same.

        Raises:
            BatchRetryError: the disk is full, or somebody has removed the folder of the sink.
        """
        folder = self.path / f"{ticket.generation}_{ticket.transaction}"
        try:
            folder.mkdir()
        except OSError as error:
            raise unusable(folder, error) from error
        return folder

    def end(self) -> None:
        """Remove the folders of attempts."""
        for folder in self.path.glob("*_*"):
            # A late task of an attempt that was given up may still write into it; what it leaves goes with the sink.
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove everything; once is enough."""
        self._remove()


def unusable(path: Path, error: OSError) -> BatchRetryError:
    """The exception for an error of the disk."""
    return BatchRetryError(
        reason=f"{path} cannot be used: {error.strerror}; spark.local.dir names another place, and local_files=False "
        "does without"
    )


def _open_lock(folder: Path) -> int:
    # Never made anew: what tidies /tmp may have removed it, and a second one would be free while the first is held.
    return os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)


def _remove(folder: Path, lock: int) -> None:
    # What a late task puts there in this moment is removed as abandoned.
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = _open_lock(folder)
        except (FileNotFoundError, PermissionError):  # gone in this moment, or nobody can tell, or another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody holds it
            os.close(lock)
        else:
            _remove(folder, lock)
