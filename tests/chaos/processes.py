"""Finding the processes of a job in ``/proc``, and killing one so that it is known to have died of that."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil

from spark_2pc_sink.testing import wait_until

GONE_DEADLINE_S = 30.0


class MissedError(Exception):
    """A fault hit nothing: what it was to hit was not there, or had ended by itself."""


def descendants(pid: int, *, command: str, parent: str = "") -> list[psutil.Process]:
    """Processes below ``pid`` whose command line contains ``command``, and that of their parents ``parent``."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return list(_with(found, command, parent))


def kill(process: psutil.Process) -> None:
    """SIGKILL one process and wait until it is gone.

    Raises:
        MissedError: it was gone before.
    """
    send(process, signal.SIGKILL)
    wait_until(lambda: _ended(process), deadline_s=GONE_DEADLINE_S, what=f"the end of the killed {process}")


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Send a signal.

    Raises:
        MissedError: the process is gone.
    """
    if _ended(process):
        raise MissedError(f"{process} had ended")
    os.kill(process.pid, number)


def _ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def _with(processes: list[psutil.Process], command: str, parent: str) -> Iterator[psutil.Process]:
    for process in processes:
        try:
            above = process.parent()
            if command in _line(process) and above is not None and parent in _line(above):
                yield process
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue


def _line(process: psutil.Process) -> str:
    return " ".join(process.cmdline())
