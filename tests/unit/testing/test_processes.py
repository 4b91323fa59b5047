"""Server processes: their signals, and that none is left when its parent dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path

import psutil
import pytest

from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.testing.processes import (
    ServerProcess,
    pause_all,
    wait_for_group,
)
from spark_2pc_sink.testing.reaper import read_servers

DEADLINE_S = 10.0
SLEEP = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_end_kills_what_does_not_listen(log: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    process = ServerProcess([sys.executable, "-c", deaf + SLEEP[-1]], log=log)
    wait_until(lambda: "ready" in process.log_tail(), deadline_s=DEADLINE_S, what="the program")
    process.end(signal.SIGTERM, deadline_s=0.2)
    assert not process.running


def test_a_paused_process_stands_still(log: Path) -> None:
    """Every thread of it, also on a machine that is busy: a broker that answers once more is not paused."""
    threads = (
        "import threading\n"
        "def count():\n"
        "    while True: print('.', end='', flush=True)\n"
        "for _ in range(20): threading.Thread(target=count).start()\n"
    )
    processes = [ServerProcess([sys.executable, "-c", threads], log=log.with_suffix(f".{n}")) for n in range(3)]
    for process in processes:
        wait_until(lambda: process.log.stat().st_size, deadline_s=DEADLINE_S, what="the threads")  # noqa: B023
    pause_all([process.pid for process in processes])
    sizes = [process.log.stat().st_size for process in processes]
    assert {psutil.Process(process.pid).status() for process in processes} == {psutil.STATUS_STOPPED}
    for process in processes:
        process.end(signal.SIGKILL, deadline_s=DEADLINE_S)
    assert [process.log.stat().st_size for process in processes] == sizes
    pause_all([processes[0].pid])


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_servers_die_with_a_parent_that_was_killed(log: Path, tmp_path: Path, stopped: bool) -> None:
    """SIGKILL lets no handler of the parent run, and a stopped server takes no other signal."""
    folder = tmp_path / "with a space"
    folder.mkdir()
    parent = (
        "import signal, sys, threading; from pathlib import Path\n"
        "from spark_2pc_sink.testing.processes import ServerProcess\n"
        # Started by a thread that ends: the server must live on until the process ends.
        f"log, folder = Path({str(log)!r}), Path({str(folder)!r})\n"
        f"start = lambda: servers.append(ServerProcess({SLEEP!r}, log=log, folder=folder))\n"
        "servers = []; thread = threading.Thread(target=start); thread.start(); thread.join()\n"
        f"servers[0].send_signal(signal.SIGSTOP) if {stopped} else None\n"
        "print(servers[0].pid, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        server = psutil.Process(int(process.stdout.readline()))
        assert server.is_running()
        os.kill(process.pid, signal.SIGKILL)
        wait_until(
            lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE,
            deadline_s=DEADLINE_S,
            what="the server's end",
        )
        wait_until(lambda: not folder.exists(), deadline_s=DEADLINE_S, what="the removal of its data")


def test_the_reaper_forgets_servers_that_have_ended() -> None:
    assert read_servers(["+7 100 /tmp/a b\n", "+8 200 \n", "-7 100 /tmp/a b\n"]) == {(8, "200", "")}


def test_a_group_has_ended_with_the_last_of_its_processes(log: Path) -> None:
    """Also when the one that it has its name from is gone and reaped."""
    spawn = f"import subprocess; subprocess.Popen({SLEEP!r}).wait()"
    parent = subprocess.Popen([sys.executable, "-c", spawn], stdout=log.open("wb"), start_new_session=True)
    wait_until(lambda: b"ready" in log.read_bytes(), deadline_s=DEADLINE_S, what="the program")
    parent.kill()
    parent.wait()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_for_group, parent.pid)
        assert not wait_for([waiting], timeout=0.2).done
        os.killpg(parent.pid, signal.SIGKILL)
        waiting.result(DEADLINE_S)
