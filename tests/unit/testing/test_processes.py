"""Servers as processes: signals, ports, Java, waiting, none left behind; and the proxy with its faults."""

from __future__ import annotations

import os
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from spark_2pc_sink.testing import (
    DeadlineError,
    TcpProxy,
    free_port,
    kafka_request,
    postgres_query,
    processes,
    wait_until,
)
from spark_2pc_sink.testing.processes import (
    BLOCK_PORTS,
    PORT_MAX,
    PORT_MIN,
    ServerProcess,
    find_java_home,
    java_version,
    pause_all,
    wait_for_group,
)

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


def test_a_wait_returns_what_came_and_names_what_never_did() -> None:
    answers = iter([0, "", "there"])
    assert wait_until(lambda: next(answers), deadline_s=5, what="an answer", interval_s=0) == "there"
    with pytest.raises(DeadlineError, match=r"waited 0 s for rain, in vain; the last result was \[\]"):
        wait_until(list, deadline_s=0, what="rain")


#: Draws more than a block, says so, and lives until its input ends.
OTHER_PROCESS = """\
import sys
from spark_2pc_sink.testing import free_port
print(*(free_port() for _ in range(int(sys.argv[1]))), flush=True)
sys.stdin.read()
"""


def test_can_be_bound_and_is_not_of_the_range_of_outgoing_connections() -> None:
    port = free_port()
    assert PORT_MIN <= port < PORT_MAX
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_port_is_given_once_in_all_processes() -> None:
    """A server that is down between kill and start keeps its port, whoever else starts one meanwhile."""
    count = BLOCK_PORTS + 1
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = other.stdout.readline().split()
        ours = [str(free_port()) for _ in range(count)]
    assert len({*theirs, *ours}) == 2 * count


def test_a_port_on_which_somebody_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn from one block, of which nobody else draws."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        block = {"PORT_MIN": taken, "_BLOCKS": 1, "_LEASE": f"\0spark-2pc-test-{os.getpid()}-{{}}", "_own": {}}
        for name, value in block.items():
            monkeypatch.setattr(processes, name, value)
        assert taken < free_port() < taken + BLOCK_PORTS


@pytest.fixture
def unknown_java_home() -> Iterator[None]:
    find_java_home.cache_clear()
    yield
    find_java_home.cache_clear()


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return home


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 1)])
def test_reads_the_major_version(tmp_path: Path, text: str, major: int) -> None:
    assert java_version(fake_java(tmp_path, text)) == major


@pytest.mark.usefixtures("unknown_java_home")
def test_java_home_is_asked_first_and_an_old_one_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", "21.0.1") / "bin"))
    assert find_java_home() == tmp_path / "new"


@dataclass
class Echo:
    """A server that answers what it gets, and remembers it."""

    port: int
    requests: list[bytes] = field(default_factory=list)


@pytest.fixture
def echo() -> Iterator[Echo]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while request := self.request.recv(65_536):
                running.requests.append(request)
                self.request.sendall(request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A connection that was reset is what these tests make."""

    with Server(("127.0.0.1", 0), Handler) as server:
        running = Echo(port=server.server_address[1])
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield running
        server.shutdown()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy(target_port=echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as client:
        yield client


def answer(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return client.recv(65_536)


def test_loses_requests_until_it_is_restored(echo: Echo, proxy: TcpProxy) -> None:
    proxy.lose_requests(lambda request: request == b"two")
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as client:
            assert answer(client, b"one") == b"one"
            with pytest.raises(ConnectionResetError):
                answer(client, b"two")
    assert b"two" not in echo.requests
    proxy.restore()
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as client:
        assert answer(client, b"two") == b"two"


def test_loses_the_answer_but_not_the_request(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    proxy.lose_answer(lambda request: request == b"commit")
    assert answer(client, b"begin") == b"begin"
    with pytest.raises(ConnectionResetError):
        answer(client, b"commit")
    assert proxy.wait_for_lost_answer(deadline_s=DEADLINE_S)
    assert echo.requests == [b"begin", b"commit"]
    assert proxy.answers_lost == 1
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as again:
        assert answer(again, b"commit") == b"commit"


def test_cut_resets_what_there_is_and_what_comes(proxy: TcpProxy, client: socket.socket) -> None:
    assert answer(client, b"one") == b"one"
    proxy.cut()
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        answer(client, b"two")
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as refused:
        assert refused.recv(1) == b""
    proxy.restore()
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as again:
        assert answer(again, b"three") == b"three"


def test_held_answers_come_when_restored(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    proxy.hold_answers()
    client.sendall(b"one")
    wait_until(lambda: echo.requests == [b"one"], deadline_s=DEADLINE_S, what="the request at the server")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(1)
    proxy.restore()
    client.settimeout(DEADLINE_S)
    assert client.recv(10) == b"one"


def test_a_server_that_does_not_read_does_not_stop_the_proxy() -> None:
    """A stopped server takes no bytes; commands must still be carried out, and other clients served."""
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        TcpProxy(target_port=deaf.getsockname()[1]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as client,
    ):
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.sendall(bytes(64 << 20))
        proxy.reset_connections()
        client.settimeout(DEADLINE_S)
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_the_end_of_a_connection_comes_after_the_last_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, TcpProxy(target_port=server.getsockname()[1]) as proxy:
        proxy.delay_answers(0.1)
        with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as client:
            accepted, _ = server.accept()
            accepted.sendall(b"last words")
            accepted.close()
            assert client.recv(65_536) == b"last words"
            assert client.recv(1) == b""


def test_recognises_requests() -> None:
    end_txn = struct.pack(">ihhi", 8, 26, 5, 1)
    assert kafka_request(26)(end_txn)
    assert not kafka_request(0)(end_txn)
    assert not kafka_request(26)(b"")
    assert postgres_query("COMMIT")(b"Q\x00\x00\x00\x0bCOMMIT\x00")
    assert not postgres_query("COMMIT")(b"Q\x00\x00\x00\x0aBEGIN\x00")
