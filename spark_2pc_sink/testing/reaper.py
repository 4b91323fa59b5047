"""A program, not a module: ends servers when the process that started them is gone. See ``processes.py``.

Run by its path, without site-packages and without this package, so that it starts in milliseconds and depends on
nothing. It reads lines from standard input, ``+pid start folder`` for a server that runs and ``-pid start folder`` for
one that has ended; ``start`` is when the process started (proc(5), field 22 of stat), which keeps it from ending
another process that has got the same pid. When the input ends, the parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable

#: How long servers have to end in an orderly way.
ORDERLY_END_S = 2.0


def start_time(pid: int) -> str:
    """When a process started, in clock ticks since boot; with the pid it names a process for ever. '' if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - pathlib takes long to load
        return stat.read().rpartition(")")[2].split()[19]
    return ""


def read_servers(lines: Iterable[str]) -> set[tuple[int, str, str]]:
    """Read until the input ends, and return who runs then: (pid, start, folder)."""
    running = set()
    for line in lines:
        pid, start, folder = line[1:].rstrip("\n").split(" ", 2)
        if line[0] == "+":
            running.add((int(pid), start, folder))
        else:
            running.discard((int(pid), start, folder))
    return running


def end(servers: set[tuple[int, str, str]]) -> None:
    """End servers, orderly first, and remove their folders.

    SIGQUIT is PostgreSQL's "immediate shutdown", by which the postmaster takes its children along. A stopped process
    takes no signal but SIGKILL until it is continued, hence SIGCONT.
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
