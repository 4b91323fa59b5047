"""A program, not a module: ends servers after the process that started them has ended. See ``processes.py``.

Run by its path, without site-packages and without this package, so that it starts in milliseconds and has no
dependencies. It reads lines from standard input, ``+pid start folder`` for a running server and ``-pid start folder``
for one that has ended; ``start`` is the start time of the process (proc(5), field 22 of stat), so that a different
process with a reused pid is not ended. The parent has ended when the input ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable

#: Time for servers to end gracefully.
ORDERLY_END_S = 2.0


def start_time(pid: int) -> str:
    """A process's start time, in clock ticks since boot; unique together with the pid. '' if the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - pathlib takes long to load
        return stat.read().rpartition(")")[2].split()[19]
    return ""


def read_servers(lines: Iterable[str]) -> set[tuple[int, str, str]]:
    """Read until the input ends, and return the servers still running: (pid, start, folder)."""
    running = set()
    for line in lines:
        pid, start, folder = line[1:].rstrip("\n").split(" ", 2)
        if line[0] == "+":
            running.add((int(pid), start, folder))
        else:
            running.discard((int(pid), start, folder))
    return running


def end(servers: set[tuple[int, str, str]]) -> None:
    """End servers, gracefully first, and remove their folders.

    SIGQUIT is PostgreSQL's "immediate shutdown", in which the postmaster also ends its children. A stopped process
    handles no signal but SIGKILL until it is continued, hence SIGCONT.
    """
    for number in (signal.SIGQUIT, signal.SIGCONT, signal.SIGKILL):
        if number == signal.SIGKILL:
            deadline = time.monotonic() + ORDERLY_END_S
            while time.monotonic() < deadline and any(start_time(pid) == start for pid, start, _ in servers):
                time.sleep(0.02)
        for pid, start, _ in servers:
            if start_time(pid) == start:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
    for _, _, folder in servers:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    end(read_servers(sys.stdin))
