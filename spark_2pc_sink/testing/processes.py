"""Child processes that never outlive the process that started them, regardless of how it ends.

A server's parent may be killed with SIGKILL, as in many tests here, and then none of its handlers runs.
``prctl(PR_SET_PDEATHSIG)`` does not help: it acts when the *thread* that started the child ends. So one small process
per parent, the reaper, reads the list of running servers from a pipe; when the pipe closes, because the parent has
ended, it ends those servers. Here too is what all servers need: errors, waiting for a condition, free ports, Java.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, Final, NoReturn, TypeVar

from spark_2pc_sink.testing.reaper import start_time

if TYPE_CHECKING:
    from typing_extensions import Self


class ServerError(RuntimeError):
    """A server did not start, or ended by itself. The text contains the end of its log."""


class CapabilityError(RuntimeError):
    """A server's prerequisite is missing on this machine: Java, the broker's jars, PostgreSQL's programs.

    The text names what is missing and how to get it.
    """


class DeadlineError(AssertionError):
    """A condition that was waited for did not become true in time.

    An AssertionError, so that the test counts as failed and not as broken.
    """


class JobError(Exception):
    """A job did not end as the test intended."""


T = TypeVar("T")

#: Short compared to any wait, long compared to the cost of checking.
POLL_INTERVAL_S = 0.02
#: Long enough for what takes moments, also on a busy machine.
DEADLINE_S = 60.0


def wait_until(
    condition: Callable[[], T], *, deadline_s: float = DEADLINE_S, what: str, interval_s: float = POLL_INTERVAL_S
) -> T:
    """Call ``condition`` until it returns a true value, and return that.

    The condition is called at least once, and once more after the deadline, so that a machine that was under load for
    the whole time still gets an answer.

    Args:
        condition: called without arguments; an exception it raises ends the wait.
        deadline_s: maximum seconds to wait.
        what: description of the condition, for the error's sentence.
        interval_s: seconds between two calls.

    Raises:
        DeadlineError: it was never true.
    """
    if found := poll_until(condition, deadline_s=deadline_s, interval_s=interval_s):
        return found
    raise DeadlineError(f"waited {deadline_s} s for {what}, in vain; the last result was {found!r}")


def poll_until(condition: Callable[[], T], *, deadline_s: float, interval_s: float = POLL_INTERVAL_S) -> T:
    """As `wait_until`, for callers with their own error: the last result, true unless time ran out."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(interval_s)
    return condition()


# Ports. A server that is killed and restarted keeps its port, so the port must not be taken meanwhile. Outgoing
# connections use a different range, and each port is given out once: every process draws from blocks of ports that are
# its own for as long as it runs.

#: Below Linux's range of ports for outgoing connections (32768 to 60999 unless changed).
PORT_MIN: Final = 15_000
PORT_MAX: Final = 32_000
BLOCK_PORTS: Final = 100
_BLOCKS: Final = (PORT_MAX - PORT_MIN) // BLOCK_PORTS
#: Name of the socket that reserves a block. Abstract: it belongs to the same network namespace as the ports, and is
#: free again after its process has ended, for any reason.
_LEASE: Final = "\0spark-2pc-ports-{}"
#: Far more than other programs listen on; if none of these is free, the machine has another problem.
TRIES_MAX: Final = 1_000
_drawing: Final = threading.Lock()
#: The ports of this process, by its id: after a fork the leases are the parent's, and the kernel frees them when both
#: have ended.
_own: Final[dict[int, Iterator[int]]] = {}


def free_port() -> int:
    """Return a free port of 127.0.0.1, which is not given out again while this process runs.

    Raises:
        OSError: no free port was found.
    """
    with _drawing:
        for port in islice(_own.setdefault(os.getpid(), _leased()), TRIES_MAX):
            if _is_free(port):
                return port
    raise OSError(f"no free port between {PORT_MIN} and {PORT_MAX} in {TRIES_MAX} tries")


def _leased() -> Iterator[int]:
    """The ports of blocks that no other running process has."""
    begin = secrets.randbelow(_BLOCKS)
    for number in range(begin, begin + _BLOCKS):
        first = PORT_MIN + number % _BLOCKS * BLOCK_PORTS
        lease = socket.socket(socket.AF_UNIX)
        try:
            lease.bind(_LEASE.format(first))
        except OSError:
            lease.close()
            continue
        # No object owns it from here on: the kernel closes it when the process ends.
        lease.detach()
        yield from range(first, first + BLOCK_PORTS)


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        # As servers do: a port whose last connections are in TIME_WAIT counts as free.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


#: A start takes up to four seconds; the rest is for a machine under load.
START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 20.0
#: Bytes of a server's log that an error shows.
LOG_TAIL_BYTES = 3_000
#: A thread in disk wait stops only after it. A process with a gigabyte of memory takes a tenth of a second to end; the
#: rest is for a machine under load.
_SIGNAL_DEADLINE_S = 30.0
#: Thread states, in proc(5), of ended threads: their resources, including shared memory, are released.
_ENDED = frozenset("ZX")
#: Thread states without activity: stopped, traced, or ended.
_STILL = frozenset("Tt") | _ENDED
#: Fields of a process's stat, according to proc(5), after its name: its parent, process group, and session.
_PARENT, _GROUP, _SESSION = 1, 2, 3
#: The reaper gives servers two seconds to end gracefully.
_REAPER_DEADLINE_S = 10.0


class _Reaper:
    """The other end of the reaper's pipe; started with the first server, once in each process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def tell(self, sign: str, pid: int, start: str, folder: Path | None) -> None:
        """Report that a server runs (+) or has ended (-)."""
        with self._lock:
            pipe = self._pipe()
            pipe.write(f"{sign}{pid} {start} {folder or ''}\n".encode())
            pipe.flush()

    def close(self) -> None:
        """End it, and with it every server known to it."""
        with self._lock:
            if self._process is not None and self._owner == os.getpid():
                self._process.communicate(timeout=_REAPER_DEADLINE_S)
                self._process = None

    def _pipe(self) -> IO[bytes]:
        # After a fork the pipe is the parent's, whose servers must not depend on the child's end.
        if self._process is None or self._owner != os.getpid():
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py"))],
                stdin=subprocess.PIPE,
                # Not inherited: readers of our output until its end must not wait for the reaper too.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C on the terminal is for us, not for it
                cwd="/",
            )
            self._owner = os.getpid()
        assert self._process.stdin is not None
        return self._process.stdin


_reaper = _Reaper()
atexit.register(_reaper.close)


class Lifetime(ABC):
    """A server, or several: entering starts it; leaving, or a failed start, closes it."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it can be used."""

    @abstractmethod
    def close(self) -> None:
        """End it and remove its data; also if it never started."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServerProcess:
    """A running server, its log file, and the signals that tests send it; ``folder`` is removed if the parent dies."""

    def __init__(
        self,
        command: list[str],
        *,
        log: Path,
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
        user: tuple[int, int] | None = None,
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd="/",
                start_new_session=True,  # Ctrl-C must not stop a server during the test's cleanup
                user=user[0] if user else None,
                group=user[1] if user else None,
                extra_groups=[] if user else None,
            )
        self.pid: int = self._process.pid
        self._start = start_time(self.pid)
        self._folder = folder
        _reaper.tell("+", self.pid, self._start, folder)

    @property
    def running(self) -> bool:
        """True until the process has ended; a paused one runs."""
        return self._process.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; no-op if the process has ended."""
        self._process.send_signal(number)

    def wait(self, *, deadline_s: float) -> int:
        """Wait for the end and return the exit status, negative for a signal."""
        status = self._process.wait(deadline_s)
        _reaper.tell("-", self.pid, self._start, self._folder)
        return status

    def end(self, number: signal.Signals, *, deadline_s: float) -> None:
        """Send a signal that should end the process, and SIGKILL if it has not ended by the deadline."""
        if self.running:
            self.send_signal(number)
        try:
            self.wait(deadline_s=deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.wait(deadline_s=deadline_s)

    def log_tail(self) -> str:
        """The end of the log."""
        with self.log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")


class LocalServer(Lifetime):
    """A server as a process, perhaps with children, and a directory of its own.

    Its ports and its data stay the same when it is started again.

    Args:
        name: its name in errors.
        user: numeric user and group to run as; None for the current ones.
    """

    #: The signal that ends it gracefully.
    _stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, name: str, *, prefix: str, user: tuple[int, int] | None = None) -> None:
        self._name = name
        self._user = user
        self._directory = Path(tempfile.mkdtemp(prefix=prefix))
        self._process: ServerProcess | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """Program and arguments; makes the files that it reads."""

    @abstractmethod
    def _serves(self) -> bool:
        """Whether it accepts clients."""

    @property
    def pid(self) -> int:
        """The process id of the running server, for PostgreSQL that of the postmaster."""
        return self._running().pid

    @property
    def started(self) -> bool:
        """True from its start until it is ended by one of the methods here."""
        return self._process is not None

    @property
    def running(self) -> bool:
        """True until its process has ended, including by itself; a paused one runs."""
        return self._process is not None and self._process.running

    def start(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Start it, and wait until it accepts clients.

        Raises:
            ServerError: it ended, or did not serve in time; the text contains the end of its log.
        """
        self.launch()
        self.wait_until_ready(deadline_s=deadline_s)

    def launch(self) -> None:
        """Start the process, without waiting: for clusters, where no node is ready before the others exist."""
        if self._process is not None:
            raise ServerError(f"{self._name} is running already")
        log, folder = self._directory / "server.log", self._directory
        self._process = ServerProcess(self._command(), log=log, folder=folder, user=self._user)

    def wait_until_ready(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until it accepts clients; for a broker, until every partition known to it has a leader.

        Raises:
            ServerError: it ended, or was not ready in time.
        """

        def serves() -> bool:
            self.check_alive()
            return self._serves()

        if not poll_until(serves, deadline_s=deadline_s):
            raise ServerError(f"{self._name} was not ready within {deadline_s} s. Its log ends:\n{self.log_tail()}")

    def check_alive(self) -> None:
        """Check that the started process has not ended by itself.

        Raises:
            ServerError: it has, or it was never started; the text contains the end of its log.
        """
        if not self._running().running:
            raise ServerError(f"{self._name} ended by itself. Its log ends:\n{self.log_tail()}")

    def kill(self) -> None:
        """End it, and all its children, with SIGKILL, as a crash would. :meth:`start` starts it again on the same data.

        Children are waited for, too: a backend of PostgreSQL that is left, or is still ending, holds the shared memory,
        and prevents the next postmaster from starting.
        """
        process = self._running()
        pause_all([process.pid])  # no new child while we count them
        kill_all(list(children(process.pid)))
        process.end(signal.SIGKILL, deadline_s=STOP_DEADLINE_S)
        self._process = None

    def stop(self) -> None:
        """End it gracefully (PostgreSQL by a "fast shutdown"); no-op if it is not running."""
        if self._process is not None:
            self.resume()
            self._process.end(self._stop_signal, deadline_s=STOP_DEADLINE_S)
            self._process = None

    def restart(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Stop it, if it runs, and start it again."""
        self.stop()
        self.start(deadline_s=deadline_s)

    def pause(self) -> None:
        """Suspend all its processes (SIGSTOP): connections stay open and nothing answers."""
        process = self._running()
        # First, so that it cannot fork further children after they are listed.
        pause_all([process.pid])
        pause_all(list(children(process.pid)))

    def resume(self) -> None:
        """Resume paused processes."""
        process = self._running()
        signal_all(list(children(process.pid)), signal.SIGCONT)
        process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop it and remove its data."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def log_tail(self) -> str:
        """The end of the running server's log."""
        return self._running().log_tail()

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise ServerError(f"{self._name} is not running")
        return self._process


def children(pid: int) -> Iterator[int]:
    """The pids of a process's direct children."""
    return _processes_with(_PARENT, pid)


def _processes_with(field: int, number: int) -> Iterator[int]:
    """The pids of processes with this number in a stat field; none without proc(5)."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[field]) == number:
                yield int(stat.parent.name)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to each process that is still running."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_with_children() -> NoReturn:
    """End this process with SIGKILL, and all that it has started in its session, at any depth.

    These are Spark's Java process and its Python workers. The process group would be too wide: a script, a notebook or
    a Makefile that runs this process is in it. Servers have separate sessions, and the reaper ends them.
    """
    own, mine = os.getpid(), set(_processes_with(_SESSION, os.getsid(0)))
    found = [own]
    for pid in found:
        found += mine & set(children(pid))
    signal_all(found[1:], signal.SIGKILL)
    os.kill(own, signal.SIGKILL)
    raise AssertionError("SIGKILL cannot be handled")


def pause_all(pids: list[int]) -> None:
    """Suspend processes (SIGSTOP), and wait until all their threads stop: others could still answer requests."""
    _signal_until(pids, signal.SIGSTOP, _STILL, "processes to stop")


def kill_all(pids: list[int]) -> None:
    """End processes with SIGKILL, and wait for all their threads, which still hold memory, files and ports."""
    _signal_until(pids, signal.SIGKILL, _ENDED, "killed processes to end")


def wait_for_group(group: int) -> None:
    """Wait until every process of a group that was sent SIGKILL has ended."""
    wait_until(
        lambda: all(_all_threads(pid, _ENDED) for pid in _processes_with(_GROUP, group)),
        deadline_s=_SIGNAL_DEADLINE_S,
        what=f"the killed process group {group} to end",
    )


def _signal_until(pids: list[int], number: signal.Signals, states: frozenset[str], what: str) -> None:
    signal_all(pids, number)
    wait_until(lambda: all(_all_threads(pid, states) for pid in pids), deadline_s=_SIGNAL_DEADLINE_S, what=what)


def _all_threads(pid: int, states: frozenset[str]) -> bool:
    """Whether all threads of a process are in one of these states; also true if the process has ended."""
    try:
        stats = [(thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return not Path(f"/proc/{pid}").exists()
    return all(stat.rpartition(")")[2].split()[0] in states for stat in stats)


#: Spark 4 and the Kafka 4 broker both ask for 17.
JAVA_VERSION_MIN = 17
_VERSION_DEADLINE_S = 30


@cache
def find_java_home() -> Path:
    """A Java 17 or later: ``$JAVA_HOME``, PATH's, else the oldest in /usr/lib/jvm; CapabilityError without one."""
    # The oldest that suffices, because it is the one that most Spark releases support.
    for home in _candidates():
        if (java_version(home) or 0) >= JAVA_VERSION_MIN:
            return home
    raise CapabilityError(
        f"no Java {JAVA_VERSION_MIN} or later in JAVA_HOME, on PATH or in /usr/lib/jvm: "
        f"install one (Debian: apt-get install openjdk-{JAVA_VERSION_MIN}-jre-headless)"
    )


@cache
def java_version(home: Path) -> int | None:
    """The major version of the runtime in ``home``; None if it does not run."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_VERSION_DEADLINE_S, check=False)
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found.group(1)) if found else None


def archive_options(archive: Path) -> list[str]:
    """Java options that map an archive of classes (JEP 350), ignored if it mismatches; empty without one."""
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:disable"] if archive.exists() else []


def _candidates() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parent.parent
    installed = [java.parent.parent for java in Path("/usr/lib/jvm").glob("*/bin/java")]
    yield from sorted(installed, key=lambda home: java_version(home) or 0)
