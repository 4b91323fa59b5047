"""Drivers as processes of their own, from the side of the test that kills, stops and continues them.

A driver tells what happens in its journal (`tests.harness.driver_config`), which outlives it; whether it runs is seen
by its process. Nothing here waits without a deadline, and nothing is left running: see `DriverProcess.close`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from spark_2pc_sink.testing import DeadlineError, wait_until
from spark_2pc_sink.testing.processes import pause_all, wait_for_group
from spark_2pc_sink.testing.spark import spark_environment
from tests.harness import ROOT
from tests.harness.driver_config import KILL, DriverConfig

#: For anything that a driver does: seconds at most, on a machine that is busy with ten other things.
DRIVER_DEADLINE_S = 90.0
#: The same for one with Spark, whose start alone takes six seconds on an idle machine.
SPARK_DEADLINE_S = 180.0
_GONE_DEADLINE_S = 30.0
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD, "")
_LOG_TAIL_CHARACTERS = 4_000
#: How faulthandler begins; for this it is waited, and then for the rest, which comes in one go.
_THREADS = "(most recent call first)"
_ACCOUNT_DEADLINE_S, _ACCOUNT_S = 5.0, 0.2
_PROGRAM = [sys.executable, "-m", "tests.harness.driver_main"]


@dataclass(frozen=True)
class Outcome:
    """How a driver ended.

    Attributes:
        event: ``finished``, ``error`` for an error of the package, ``crash`` for any other.
        error: name of the error's class, '' for none.
        cause: of a halt, as `HaltCause` has it, '' for another end.
    """

    event: str
    error: str = ""
    text: str = ""
    cause: str = ""


class DriverProcess:
    """One driver that was started. ``pid``: its process, which leads a session and a process group of its own."""

    def __init__(self, pid: int, config: DriverConfig, log: Path) -> None:
        self.pid = pid
        self._process = psutil.Process(pid)
        self._journal = Path(config.journal)
        self._log = log
        self._faults = config.faults
        self._orders = config.orders
        self._events: list[dict[str, Any]] = []
        self._journal_bytes = 0
        self._deadline_s = SPARK_DEADLINE_S if config.spark else DRIVER_DEADLINE_S

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What its journal says until now: all events, or those of one name."""
        if self._journal.exists():
            with self._journal.open("rb") as journal:
                journal.seek(self._journal_bytes)
                appended = journal.read()
            appended = appended[: appended.rfind(b"\n") + 1]
            self._journal_bytes += len(appended)
            self._events += map(json.loads, appended.splitlines())
        return [event for event in self._events if name in (None, event["event"])]

    @property
    def recoveries(self) -> list[dict[str, Any]]:
        return self.events("recovered")

    @property
    def placements(self) -> list[tuple[int, str]]:
        """The batches that it has finished, and what each of them was: RUN, SKIP or RESEND. Not told by Spark."""
        return [(event["batch"], event["placement"]) for event in self.events("batch")]

    def attempts(self, batch: int) -> int:
        """How many transactions a batch took that it has finished."""
        found: int = {event["batch"]: event["attempts"] for event in self.events("batch")}[batch]
        return found

    @property
    def actions(self) -> str:
        """What its recoveries did, as one text."""
        return "; ".join(action for recovered in self.recoveries for action in recovered["actions"])

    @property
    def running(self) -> bool:
        """True until the process is gone; a stopped one runs."""
        return self._state() not in _GONE

    @property
    def stopped(self) -> bool:
        return self._state() in _STOPPED

    def wait_for_fault(self) -> None:
        """Wait until its one fault has happened: it is gone, or stopped."""
        (fault,) = self._faults

        def happened() -> bool:
            running = self.running  # first: it may write its last event and die between the two looks
            reached = bool(self.events("fault"))
            if running:
                return reached and self.stopped
            assert reached, f"the driver never came to {fault}: it ended with {self.end()}\n{self.log_tail()}"
            return True

        wait_until(happened, deadline_s=self._deadline_s, what=f"{fault}; the log ends:\n{self.log_tail()}")
        assert self.running == (fault.do != KILL)
        if not self.running:
            # Its virtual machine takes a moment to give its memory back; until then it may still act.
            wait_for_group(self.pid)

    def order_stop(self, place: str) -> None:
        """Tell it to stop itself when it comes to ``place`` next; see `DriverConfig.orders`."""
        orders = Path(self._orders)
        written = orders.with_suffix(".new")
        written.write_text(place)
        written.rename(orders)

    def go_on(self) -> None:
        """Continue it after SIGSTOP, its whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Stop it with SIGSTOP, wherever it is, and wait until it stands still."""
        pause_all([self.pid])
        assert self.stopped, f"the driver had ended:\n{self.log_tail()}"

    def outcome(self, *, deadline_s: float | None = None) -> Outcome:
        wait_until(
            lambda: not self.running,
            deadline_s=self._deadline_s if deadline_s is None else deadline_s,
            what=f"the driver to end; its log ends:\n{self.log_tail()}",
        )
        end = self.end()
        assert end is not None, f"the driver ended without a word:\n{self.log_tail()}"
        return end

    def log_tail(self, *, upto: int | None = None) -> str:
        """The end of its journal and of its log; of the log perhaps only up to a byte."""
        journal = "\n".join(str(event) for event in self.events()[-5:])
        return f"{journal}\n{self.log(upto)[-_LOG_TAIL_CHARACTERS:]}"

    def log(self, upto: int | None = None) -> str:
        """The whole of it: at its end, Spark may print some stacks of Java."""
        return self._log.read_bytes()[:upto].decode(errors="replace") if self._log.exists() else ""

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: text in self.log(), deadline_s=DRIVER_DEADLINE_S, what=f"{text!r} in its log")

    def account(self) -> str:
        """The same, and what each of its threads does now; of a stopped one nobody tells. For a driver that runs."""
        before = self._log.stat().st_size
        with contextlib.suppress(ProcessLookupError, DeadlineError):
            os.kill(self.pid, signal.SIGUSR1)
            wait_until(lambda: _THREADS in self._log_from(before), deadline_s=_ACCOUNT_DEADLINE_S, what="its threads")
            time.sleep(_ACCOUNT_S)
        now = time.strftime("%H:%M:%S")
        return f"{self.log_tail(upto=before)}\nat {now} its threads do:\n{self._log_from(before)}"

    def close(self) -> None:
        """Kill it and everything it started, if anything is left."""
        own = self.running
        for pid in self.session():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if own:
            wait_until(lambda: not self.running, what="the killed driver to be gone")

    def end(self) -> Outcome | None:
        ends = [event for event in self.events() if event["event"] in ("finished", "error", "crash")]
        if not ends:
            return None
        last = ends[-1]
        return Outcome(last["event"], last.get("type", ""), last.get("text", ""), last.get("cause", ""))

    def _log_from(self, byte: int) -> str:
        with self._log.open("rb") as log:
            log.seek(byte)
            return log.read().decode(errors="replace")

    def _state(self) -> str:
        """As psutil names it, '' when it is gone."""
        try:
            return self._process.status() if self._process.is_running() else ""
        except psutil.NoSuchProcess:
            return ""

    def session(self) -> list[int]:
        """Processes of its session that run: also those that Spark's workers have made groups of their own."""
        if psutil.pid_exists(self.pid) and not self._process.is_running():
            return []  # the number is somebody else's now
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self.pid and process.status() not in _GONE:
                    found.append(process.pid)
        return found


@dataclass
class Nursery:
    """Starts drivers within milliseconds, by forking a process that has imported everything. A context manager."""

    folder: Path
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def __enter__(self) -> Nursery:
        with (self.folder / "nursery.log").open("ab") as log:
            self._process = subprocess.Popen(
                _PROGRAM,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                # A fork takes over one thread only: the libraries' pools of threads must not exist before it.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate(timeout=_GONE_DEADLINE_S)

    def start(self, config: DriverConfig, folder: Path) -> DriverProcess:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        path, log = folder / "config.json", folder / "driver.log"
        config.write(path)
        request = {
            "config": str(path),
            "log": str(log),
            "environment": self._spark_environment(folder) if config.spark else None,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the nursery has ended: {(self.folder / 'nursery.log').read_text()}"
        return DriverProcess(int(answer), config, log)

    def _spark_environment(self, folder: Path) -> dict[str, str]:
        """The environment of a driver with Spark, which begins as a program of its own: Java reads it at its start."""
        environment = {**os.environ, **spark_environment(folder, python_path=ROOT)}
        if sys.dont_write_bytecode:
            # Each driver, and each of its workers, would compile every library again.
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            environment["PYTHONPYCACHEPREFIX"] = str(self.folder / "bytecode")
        return environment
