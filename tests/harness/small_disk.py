"""A small file system of its own (tmpfs), for servers whose disk is to be full."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from spark_2pc_sink.testing.errors import CapabilityError, ServerError

if TYPE_CHECKING:
    from typing_extensions import Self

_DEADLINE_S = 20.0


class SmallDisk:
    """A mounted file system of a given size; leaving the ``with`` block removes it. Needs root.

    No server of ours keeps it: a process that is killed leaves it mounted, in ``/tmp/spark-2pc-disk-…``.

    Args:
        size_bytes: what fits on it, roughly.
        owner: numeric user and group whose it is; None for ours.

    Attributes:
        path: where it is mounted.

    Raises:
        CapabilityError: nothing can be mounted here.
    """

    def __init__(self, size_bytes: int, *, owner: tuple[int, int] | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="spark-2pc-disk-"))
        refusal = _mount(self.path, size_bytes)
        if refusal:
            self.path.rmdir()
            raise CapabilityError(f"no file system can be mounted, which takes root: {refusal}")
        if owner is not None:
            os.chown(self.path, *owner)

    @property
    def used_bytes(self) -> int:
        """What is on it."""
        return shutil.disk_usage(self.path).used

    def resize(self, size_bytes: int) -> None:
        """Make room, or take it away; what is on it stays.

        Raises:
            ServerError: more than that is on it.
        """
        done = _run(["mount", "-o", f"remount,size={size_bytes}", str(self.path)])
        if done.returncode != 0:
            raise ServerError(f"{self.path} cannot be made {size_bytes} bytes large: {done.stderr.strip()}")

    def close(self) -> None:
        """Unmount it, whoever still has files open there, and forget what was on it."""
        if self.path.is_mount():
            _run(["umount", "--lazy", str(self.path)]).check_returncode()
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mount(path: Path, size_bytes: int) -> str:
    """Why it could not be mounted; '' when it is."""
    try:
        done = _run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "spark-2pc-disk", str(path)])
    except OSError as error:
        return str(error)
    return done.stderr.strip() or "mount failed without a word" if done.returncode != 0 else ""


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
