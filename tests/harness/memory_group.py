"""A cgroup with a limit of memory, as a driver's container has one, and a file system that is soon full.

The kernel offers groups in two ways. Version 1 has a hierarchy for memory alone, version 2 one for everything.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import subprocess
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.testing.errors import CapabilityError, ServerError

#: A process that was killed leaves its group a moment later.
_EMPTY_DEADLINE_S = 30.0
#: How much the limit is raised at a time, where the kernel cannot take away what is used.
_STEP_BYTES = 1 << 20
_TRIES = 200


class MemoryGroup(AbstractContextManager["MemoryGroup"]):
    """An empty group without a limit; leaving the ``with`` block waits until its processes are gone, and removes it.

    What a process takes from the moment on in which it is added counts, and what its children take.
    """

    def __init__(self) -> None:
        parent, self._version = _hierarchy()
        self._folder = parent / f"spark-2pc-{secrets.token_hex(4)}"
        try:
            self._folder.mkdir()
            if not self._limit.exists():
                self._folder.rmdir()
                raise CapabilityError(f"a cgroup in {parent} gets no limit of memory")
        except OSError as error:
            raise CapabilityError(f"no cgroup can be made in {parent}, which takes root: {error}") from error

    @property
    def processes(self) -> set[int]:
        return {int(pid) for pid in (self._folder / "cgroup.procs").read_text().split()}

    @property
    def kills(self) -> int:
        """How many of its processes the kernel has killed for want of memory."""
        return self._numbers("memory.oom_control" if self._version == 1 else "memory.events")["oom_kill"]

    def add(self, pid: int) -> None:
        """Take a process in; the children that it has from now on come with it."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def leave(self, free_bytes: int) -> None:
        """Set the limit to what its processes cannot give back, and this much more."""
        # Pages of files are not counted: the kernel drops them where memory is short.
        limit = self._numbers("memory.stat")["rss" if self._version == 1 else "anon"] + free_bytes
        for _ in range(_TRIES):
            try:
                self._limit.write_text(str(limit))
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                limit += _STEP_BYTES
            else:
                return
        raise ServerError(f"the kernel takes no limit of {limit} bytes for {self._folder}")

    def close(self) -> None:
        wait_until(self._removed, deadline_s=_EMPTY_DEADLINE_S, what=f"the end of the processes in {self._folder}")

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _limit(self) -> Path:
        return self._folder / ("memory.limit_in_bytes" if self._version == 1 else "memory.max")

    def _numbers(self, name: str) -> dict[str, int]:
        lines = (self._folder / name).read_text().splitlines()
        return {key: int(number) for key, number in map(str.split, lines)}

    def _removed(self) -> bool:
        with contextlib.suppress(OSError):  # as long as a process is in it
            self._folder.rmdir()
        return not self._folder.exists()


def prefer(pid: int) -> None:
    """Let the kernel take this process first when its group is out of memory; its later children too."""
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def _hierarchy() -> tuple[Path, int]:
    """Where groups with a limit of memory are made, and the version of cgroups there."""
    mounts = Path("/proc/self/mounts")
    lines = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
    for _, folder, kind, options, *_ in lines:
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(folder), 1
    for _, folder, kind, *_ in lines:
        controllers = Path(folder) / "cgroup.controllers"
        if kind == "cgroup2" and "memory" in controllers.read_text().split():
            with contextlib.suppress(OSError):  # it is on already, or the group will have no limit
                (Path(folder) / "cgroup.subtree_control").write_text("+memory")
            return Path(folder), 2
    raise CapabilityError("no cgroup of memory is mounted")


_DEADLINE_S = 20.0


class SmallDisk(AbstractContextManager["SmallDisk"]):
    """A mounted file system of a given size; leaving the ``with`` block removes it. Needs root.

    No server of ours keeps it: a process that is killed leaves it mounted, in ``/tmp/spark-2pc-disk-…``.

    Args:
        owner: numeric user and group whose it is; None for ours.
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
        return shutil.disk_usage(self.path).used

    def resize(self, size_bytes: int) -> None:
        """Make room, or take it away; what is on it stays."""
        done = _run(["mount", "-o", f"remount,size={size_bytes}", str(self.path)])
        if done.returncode != 0:
            raise ServerError(f"{self.path} cannot be made {size_bytes} bytes large: {done.stderr.strip()}")

    def close(self) -> None:
        if self.path.is_mount():
            _run(["umount", "--lazy", str(self.path)]).check_returncode()
        shutil.rmtree(self.path, ignore_errors=True)

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
