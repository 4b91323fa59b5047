"""A trace of calls: which functions of this project a thread enters, in the order of its first entry into each.

Python tells a profile function of every call. What runs while a module is loaded is left out: it says nothing of the
way that data takes.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = (f"{ROOT}/spark_2pc_sink/", f"{ROOT}/jdbc_state/")
#: Names the folder where Python workers of Spark write their traces, one file for each process.
FOLDER_VARIABLE: Final = "SPARK_2PC_CALL_TRACES"


def module_name(path: str) -> str:
    """``spark_2pc_sink/sink/job/spark_batch.py`` as ``sink/job/spark_batch``; '' for a file of others."""
    if not path.startswith(_PACKAGES):
        return ""
    return path[len(f"{ROOT}/") :].removeprefix("spark_2pc_sink/").removesuffix(".py")


class Lane(NamedTuple):
    """What one thread has called.

    Args:
        entries: ``module:function``, each once, in the order of its first call.
        calls: modules that called each other, caller first.
    """

    entries: list[str]
    calls: list[tuple[str, str]]

    @property
    def start(self) -> str:
        """The module of the first call."""
        return self.entries[0].split(":")[0] if self.entries else ""


class CallTrace:
    """Records calls in every thread that is started after `start`, and in the one that calls it.

    Args:
        folder: where each entry is written at its first call, to a file named after the process; None: nowhere.
    """

    def __init__(self, folder: Path | None = None) -> None:
        #: By thread: ``module:function``, each once, in the order of its first call.
        self.entries: dict[int, dict[str, None]] = {}
        #: By thread: modules that called each other, caller first, in the order of their first such call.
        self.calls: dict[int, dict[tuple[str, str], None]] = {}
        self._folder = folder
        self._loading: dict[int, int] = {}
        self._names: dict[CodeType, str] = {}

    def start(self) -> None:
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def stop(self) -> None:
        """Record no more, in this thread and in new ones."""
        sys.setprofile(None)
        threading.setprofile(None)

    def clear(self) -> None:
        self.entries.clear()
        self.calls.clear()

    def lane(self, thread: int) -> Lane:
        """What a thread has called so far."""
        return Lane(list(self.entries.get(thread, ())), list(self.calls.get(thread, ())))

    def lanes(self) -> list[Lane]:
        """What each thread has called so far."""
        return [self.lane(thread) for thread in list(self.entries)]

    def _name(self, code: CodeType) -> str:
        if code not in self._names:
            is_function = code.co_flags & inspect.CO_OPTIMIZED or code.co_name == "<module>"
            self._names[code] = module_name(code.co_filename) if is_function else ""
        return self._names[code]

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event not in {"call", "return"}:
            return
        module = self._name(frame.f_code)
        if not module:
            return
        thread = threading.get_ident()
        if frame.f_code.co_name == "<module>":
            self._loading[thread] = self._loading.get(thread, 0) + (1 if event == "call" else -1)
        elif event == "call" and not self._loading.get(thread):
            self._entered(thread, module, frame)

    def _entered(self, thread: int, module: str, frame: FrameType) -> None:
        caller = frame.f_back
        while caller is not None and not self._name(caller.f_code):
            caller = caller.f_back
        if caller is not None:
            self.calls.setdefault(thread, {})[self._name(caller.f_code), module] = None
        entry = f"{module}:{frame.f_code.co_name}"
        known = self.entries.setdefault(thread, {})
        if entry not in known:
            known[entry] = None
            if self._folder is not None:
                with (self._folder / str(os.getpid())).open("a") as file:
                    file.write(f"{entry}\n")


def trace_worker() -> None:
    """Begin a trace in a Python process of Spark, where the driver has said so in its environment."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is not None:
        CallTrace(Path(folder)).start()
