"""A disk that cannot make data durable: fsync of chosen processes fails with EIO while a file exists.

By a library that is loaded in front of the C library (ld.so(8), LD_PRELOAD), which the compiler makes: no device of a
test's own is needed, and the page cache keeps what was written, as it does on Linux after a failed write-back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_2pc_sink.testing.errors import CapabilityError, ServerError
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
_DEADLINE_S = 60.0


class FailingSync:
    """Makes fsync of processes fail that were started within `preloaded`; leaving the ``with`` block removes its files.

    Raises:
        CapabilityError: there is no C compiler.
        ServerError: it refused the source.
    """

    def __init__(self) -> None:
        compiler = shutil.which("cc")
        if compiler is None or os.uname().sysname != "Linux":
            raise CapabilityError("no C compiler for Linux: apt-get install gcc libc6-dev")
        # Servers under another user read it.
        self._folder = Path(tempfile.mkdtemp(prefix="spark-2pc-sync-"))
        self._folder.chmod(0o755)
        self._switch, self._library = self._folder / "failing", self._folder / "failing_sync.so"
        source = self._folder / "failing_sync.c"
        source.write_text(_SOURCE)
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
        if done.returncode != 0:
            raise ServerError(f"the compiler refused the library: {done.stderr}")

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
