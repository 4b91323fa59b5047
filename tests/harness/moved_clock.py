"""A clock that a test moves under running processes, by libfaketime, which answers for the kernel's wall clock.

The monotonic clock goes on as it does, as where somebody sets the clock of a machine.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.testing.errors import CapabilityError
from tests.harness.environment import environment

if TYPE_CHECKING:
    from typing_extensions import Self

#: Where Debian has it. The other one of that package is for programs without threads.
_LIBRARY = "*/faketime/libfaketimeMT.so.1"
#: A process looks at the file when it asks for the time and its last look is this old, in whole seconds.
_CACHE_S = 1
_LATE_S, _DEADLINE_S = 0.2, 30.0
#: What the library makes for each family of processes, by the number of the first. Killed ones leave it there.
_SHARED = Path("/dev/shm")  # noqa: S108 - the library has chosen it
_SHARED_NAMES = ("faketime_shm_", "sem.faketime_sem_")


class MovedClock:
    """The clock of processes that were started within `preloaded`; leaving the ``with`` block removes its files.

    Raises:
        CapabilityError: there is no libfaketime.
    """

    def __init__(self) -> None:
        found = sorted(Path("/usr/lib").glob(_LIBRARY))
        if not found:
            raise CapabilityError("no libfaketime: apt-get install faketime")
        self._library = found[0]
        # Servers under another user read it.
        self._folder = Path(tempfile.mkdtemp(prefix="spark-2pc-clock-"))
        self._folder.chmod(0o755)
        self._offset.write_text("+0\n")

    def move(self, seconds: int) -> None:
        """Set it so much ahead of the machine's clock, or behind it; returns when every process has that time."""
        written = self._folder / "new"
        written.write_text(f"{seconds:+d}\n")
        # Never half of it: a process may read it now.
        written.rename(self._offset)
        seen_s = time.monotonic() + 2 * _CACHE_S + _LATE_S
        wait_until(
            lambda: time.monotonic() > seen_s, deadline_s=_DEADLINE_S, what="the look of each process at its clock"
        )

    @contextmanager
    def preloaded(self) -> Iterator[None]:
        """Processes that begin in the block have this clock, and their children."""
        names = {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_CACHE_DURATION": str(_CACHE_S),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Files keep the times that they have when somebody sets a clock.
            "NO_FAKE_STAT": "1",
        }
        with environment(names):
            yield

    def close(self) -> None:
        """Remove its files, and what killed processes have left."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in _SHARED_NAMES:
            for path in _SHARED.glob(f"{name}*"):
                if not Path(f"/proc/{path.name.removeprefix(name)}").exists():
                    with contextlib.suppress(OSError):  # another one was faster, or it is another user's
                        path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _offset(self) -> Path:
        return self._folder / "offset"
