"""A clock that a test moves under running processes, by a library that is loaded in front of the C library.

It is the wall clock that is moved. The monotonic clock goes on as it does, and so do waits, as where somebody sets the
clock of a machine. A virtual machine of Java runs with it too, at its usual speed: a look at the clock costs one
addition more.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.harness.c_library import compile_library
from tests.harness.environment import environment

if TYPE_CHECKING:
    from typing_extensions import Self

#: How many seconds the clock is ahead, in a file that all processes have mapped: they see a move at once.
_OFFSET: Final = struct.Struct("@q")
_FILE: Final = "MOVED_CLOCK_FILE"
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


class MovedClock:
    """The clock of processes that were started within `preloaded`; leaving the ``with`` block removes its files.

    Raises:
        CapabilityError: there is no C compiler.
        ServerError: it refused the source.
    """

    def __init__(self) -> None:
        # Servers under another user read it.
        self._folder = Path(tempfile.mkdtemp(prefix="spark-2pc-clock-"))
        self._folder.chmod(0o755)
        self._library = compile_library(self._folder, "moved_clock", _SOURCE)
        self._file = self._folder / "ahead_s"
        self._file.write_bytes(_OFFSET.pack(0))
        with self._file.open("r+b") as file:
            self._ahead = mmap.mmap(file.fileno(), _OFFSET.size)

    def move(self, seconds: int) -> None:
        """Set it so much ahead of the machine's clock, or behind it; from now on every process has that time."""
        self._ahead[:] = _OFFSET.pack(seconds)

    @contextmanager
    def preloaded(self) -> Iterator[None]:
        """Processes that begin in the block have this clock, and their children."""
        with environment({"LD_PRELOAD": str(self._library), _FILE: str(self._file)}):
            yield

    def close(self) -> None:
        """Remove its files."""
        self._ahead.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
