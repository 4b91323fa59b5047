"""What a machine may do to processes: little memory, a full disk, an fsync that fails, a clock that moves.

The kernel offers groups with a limit of memory in two ways. Version 1 has a hierarchy for memory alone, version 2 one
for everything. Clock and fsync are by libraries in front of the C library, loaded by LD_PRELOAD (ld.so(8)), and
compiled when a test needs them. It is the wall clock that is moved: the monotonic clock goes on as it does, and so do
waits. A virtual machine of Java runs with it too, at its usual speed: a look at the clock costs one addition more.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import shutil
import struct
import subprocess
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.testing.processes import CapabilityError, ServerError

if TYPE_CHECKING:
    from typing_extensions import Self

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

    def __exit__(self, *_: object) -> None:
        wait_until(self._removed, what=f"the end of the processes in {self._folder}")

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

    def __exit__(self, *_: object) -> None:
        if self.path.is_mount():
            _run(["umount", "--lazy", str(self.path)]).check_returncode()
        shutil.rmtree(self.path, ignore_errors=True)


def _mount(path: Path, size_bytes: int) -> str:
    """Why it could not be mounted; '' when it is."""
    try:
        done = _run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "spark-2pc-disk", str(path)])
    except OSError as error:
        return str(error)
    return done.stderr.strip() or "mount failed without a word" if done.returncode != 0 else ""


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)


_MOVED_DEADLINE_S = 60.0


class _Preloaded:
    """A library in front of the C library, of processes that begin within `preloaded`; it goes with the ``with`` block.

    Args:
        name: of the library.
        source: in C.
        variable: of the environment, which tells processes where the file is by which they are told what to do.
    """

    def __init__(self, name: str, source: str, variable: str) -> None:
        compiler = shutil.which("cc")
        if compiler is None or os.uname().sysname != "Linux":
            raise CapabilityError("no C compiler for Linux: apt-get install gcc libc6-dev")
        self._folder = Path(tempfile.mkdtemp(prefix=f"spark-2pc-{name}-"))
        # Servers under another user read it.
        self._folder.chmod(0o755)
        self._file = self._folder / "told"
        library, text = self._folder / f"{name}.so", self._folder / f"{name}.c"
        text.write_text(source)
        command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(text), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOVED_DEADLINE_S, check=False)
        if done.returncode != 0:
            raise ServerError(f"the compiler refused the library: {done.stderr}")
        self._variables = {"LD_PRELOAD": str(library), variable: str(self._file)}

    def preloaded(self) -> AbstractContextManager[Any]:
        """Processes that begin in the block have the library, and their children."""
        return mock.patch.dict(os.environ, self._variables)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


#: How many seconds the clock is ahead, in a file that all processes have mapped: they see a move at once.
_OFFSET: Final = struct.Struct("@q")
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long none;
static const volatile long *ahead_s = &none;
static int (*real)(clockid_t, struct timespec *);

/* Before it has run, the clock is the machine's. */
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("MOVED_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *seen = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        if (seen != MAP_FAILED) ahead_s = seen;
        close(file);
    }
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = real ? real(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead_s;
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found) != 0) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now) {
    struct timespec found;
    if (clock_gettime(CLOCK_REALTIME_COARSE, &found) != 0) return -1;
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""


class MovedClock(_Preloaded):
    """The clock of processes that were started within `preloaded`."""

    def __init__(self) -> None:
        super().__init__("moved_clock", _SOURCE, "MOVED_CLOCK_FILE")
        self._file.write_bytes(_OFFSET.pack(0))
        with self._file.open("r+b") as file:
            self._ahead = mmap.mmap(file.fileno(), _OFFSET.size)

    def move(self, seconds: int) -> None:
        """Set it so much ahead of the machine's clock, or behind it; from now on every process has that time."""
        self._ahead[:] = _OFFSET.pack(seconds)

    def __exit__(self, *_: object) -> None:
        self._ahead.close()
        super().__exit__()


_SYNC_SOURCE = r"""
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails(void) {
    const char *file = getenv("FAILING_SYNC_FILE");
    return file && syscall(SYS_access, file, F_OK) == 0;
}
int fsync(int fd) {
    if (fails()) { errno = EIO; return -1; }
    return syscall(SYS_fsync, fd);
}
int fdatasync(int fd) {
    if (fails()) { errno = EIO; return -1; }
    return syscall(SYS_fdatasync, fd);
}
"""


class FailingSync(_Preloaded):
    """Makes fsync fail in processes started within `preloaded`."""

    def __init__(self) -> None:
        super().__init__("failing_sync", _SYNC_SOURCE, "FAILING_SYNC_FILE")

    def fail(self) -> None:
        self._file.touch()

    def work(self) -> None:
        self._file.unlink(missing_ok=True)
