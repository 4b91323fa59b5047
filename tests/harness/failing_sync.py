"""A disk that cannot make data durable: fsync of chosen processes fails with EIO while a file exists.

By a library that is loaded in front of the C library (ld.so(8), LD_PRELOAD), which the compiler makes: no device of a
test's own is needed, and the page cache keeps what was written, as it does on Linux after a failed write-back.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.c_library import compile_library
from tests.harness.environment import environment

_SOURCE = r"""
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


class FailingSync:
    """Makes fsync of processes fail that were started within `preloaded`; leaving the ``with`` block removes its files.

    Raises:
        CapabilityError: there is no C compiler.
        ServerError: it refused the source.
    """

    def __init__(self) -> None:
        # Servers under another user read it.
        self._folder = Path(tempfile.mkdtemp(prefix="spark-2pc-sync-"))
        self._folder.chmod(0o755)
        self._switch = self._folder / "failing"
        self._library = compile_library(self._folder, "failing_sync", _SOURCE)

    @contextmanager
    def preloaded(self) -> Iterator[None]:
        """Processes that begin in the block are those whose fsync can fail."""
        names = {"LD_PRELOAD": str(self._library), "FAILING_SYNC_FILE": str(self._switch)}
        with environment(names):
            yield

    def fail(self) -> None:
        """From now on fsync fails."""
        self._switch.touch()

    def work(self) -> None:
        """From now on fsync works."""
        self._switch.unlink(missing_ok=True)

    def __enter__(self) -> FailingSync:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
