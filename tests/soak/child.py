"""A load as a process of its own: it is asked by a line on its standard input, and answers by a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Final

from spark_2pc_sink.testing import wait_until
from tests.harness import ROOT

#: For an answer: a load answers between two batches, and Spark takes its time to start where the machine is busy.
ANSWER_DEADLINE_S: Final = 300.0
#: A load ends what it is doing first.
END_DEADLINE_S: Final = 300.0
#: Stand still after the batch in hand and say what is used; go on; end.
HOLD: Final = "hold"
GO_ON: Final = "go on"
STOP: Final = "stop"
_LOG_TAIL_CHARACTERS: Final = 4_000


class Child(AbstractContextManager["Child"]):
    """A load that was started, of which nothing is left running. ``folder``: for its files, also the temporary ones."""

    def __init__(self, module: str, config: Mapping[str, Any], folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self._log = folder / "log"
        self.module = module
        path = folder / "config.json"
        path.write_text(json.dumps(config))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(self.temporary)},
                text=True,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._answers: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            # Also Spark's virtual machine and workers.
            os.killpg(self._process.pid, 9)
        self._process.wait(END_DEADLINE_S)

    def ask(self, what: str) -> dict[str, Any]:
        """Tell it to hold, to go on or to stop; what it says of itself then."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{what}\n")
            self._process.stdin.flush()
            answer = json.loads(self._answers.get(timeout=ANSWER_DEADLINE_S))
        except (OSError, Empty, json.JSONDecodeError) as error:
            message = f"{self.module} did not answer ({error!r}); the end of its log:\n{self._tail()}"
            raise RuntimeError(message) from error
        if answer.get("error"):
            message = f"{self.module} failed: {answer['error']}\nthe end of its log:\n{self._tail()}"
            raise RuntimeError(message)
        return dict(answer)

    def end(self) -> dict[str, Any]:
        """Let it end what it is doing; how many batches it has written."""
        last = self.ask(STOP)
        self._process.wait(END_DEADLINE_S)
        return last

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]


class Gate:
    """Where a load stands still between two batches, so that samples are taken at rest, always at the same place.

    Args:
        ended: True when no further batch will come.
    """

    def __init__(self, ended: Callable[[], bool]) -> None:
        self._ended = ended
        self._wanted = threading.Event()
        self._held = threading.Event()
        self._free = threading.Event()

    def after_batch(self) -> None:
        """In the load's thread: wait here while a sample is taken."""
        if self._wanted.is_set():
            self._held.set()
            self._free.wait(ANSWER_DEADLINE_S)

    def hold(self) -> None:
        """Wait until the load stands still, or has ended."""
        self._free.clear()
        self._held.clear()
        self._wanted.set()
        wait_until(
            lambda: self._held.is_set() or self._ended(), deadline_s=ANSWER_DEADLINE_S, what="the current batch to end"
        )

    def release(self) -> None:
        self._wanted.clear()
        self._free.set()


def serve(gate: Gate, sample: Callable[[bool], dict[str, Any]], stop: Callable[[], None]) -> None:
    """The load's side: do what each line says and answer it, until ``stop`` or the end of the input.

    Args:
        sample: the batches that were written; if its argument is true, also what is used.
    """
    for line in sys.stdin:
        order = line.strip()
        if order == HOLD:
            gate.hold()
        else:
            gate.release()
        if order == STOP:
            break
        print(json.dumps(sample(order == HOLD)), flush=True)
    gate.release()
    stop()
    print(json.dumps(sample(False)), flush=True)
