"""A clock that a test moves under running processes, and an fsync that fails, by libraries in front of the C library.

They are loaded by LD_PRELOAD (ld.so(8)), and compiled when a test needs them. It is the wall clock that is moved. The
monotonic clock goes on as it does, and so do waits, as where somebody sets the clock of a machine. A virtual machine of
Java runs with it too, at its usual speed: a look at the clock costs one addition more.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from spark_2pc_sink.testing.errors import CapabilityError, ServerError

if TYPE_CHECKING:
    from typing_extensions import Self


_DEADLINE_S = 60.0


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
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
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
