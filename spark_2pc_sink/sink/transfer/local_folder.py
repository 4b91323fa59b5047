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
_LOCK: Final = ".lock"
#: The lock before somebody holds it.
_NEW_LOCK: Final = ".lock-new"
#: As mkdtemp makes it.
_PRIVATE: Final = 0o700


class LocalFolder:
    """A folder of this process; only its user can read it.

    A process that is killed cannot remove it. So it is locked as long as the process lives, and folders beside it that
    nobody holds are removed. In a place like ``/tmp`` every user of the machine can put something beside it under such
    a name: only a folder that this user owns, and nobody else can enter, is looked into.

    Args:
        parent: where it is made, such as Spark's local directory.

    Attributes:
        path: of the folder.
    """

    def __init__(self, parent: Path) -> None:
        _remove_abandoned(parent)
        self.path: Path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        new_lock = self.path / _NEW_LOCK
        lock = os.open(new_lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only now others may look whether somebody holds it. The folder keeps its name: somebody could take another
        # name before us.
        new_lock.rename(self.path / _LOCK)
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


def _open_lock(folder: Path) -> int | None:
    """The open lock of a folder that this user made; None where somebody else made it, or nobody can tell who holds it.

    A folder that cannot be looked into, for whatever reason, is none to remove: an error is an answer here.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone in this moment, another user's, a file, or a link
        return None
    try:
        # Never made anew: what tidies /tmp may have removed it, and a second one would be free while the first is held.
        return os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW, dir_fd=opened) if _is_ours(os.fstat(opened)) else None
    except OSError:
        return None
    finally:
        os.close(opened)


def _is_ours(folder: os.stat_result) -> bool:
    # As root, the permissions of another user's folder keep nobody out.
    return folder.st_uid == os.geteuid() and folder.st_mode & 0o777 == _PRIVATE


def _remove(folder: Path, lock: int) -> None:
    # What a late task puts there in this moment is removed as abandoned.
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        lock = _open_lock(folder)
        if lock is None:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody holds it
            os.close(lock)
        else:
            _remove(folder, lock)
