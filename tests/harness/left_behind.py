"""What a file of tests leaves behind in the process that runs it: threads, and processes below it.

A thread that is left works on beside the tests of other files, fails where nobody looks, and holds what it uses.
Fixtures of the session are no file's: what they start is noted while they start it. A socket without a thread needs no
look: when it is collected, Python warns, and warnings are errors here.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from spark_2pc_sink.testing import DeadlineError, wait_until

#: For what is ending already.
_END_S: Final = 5.0
#: Threads, by the module whose code they run or by their name, and why nobody has to end them.
_THREADS_ALLOWED: Final = {
    "py4j": "the session of Spark is there for all files, and its connections have threads of their own",
    "pyspark": "its server for accumulators lives as long as its Java process",
    "execnet": "pytest-xdist talks to its workers in these",
    "jdbc_state watchdog": "one for all connections of the process; it ends ten seconds behind the last",
    "kafka-io": "kafka-python leaves the thread of a client whose login is refused",
    "decode": "the reference coordinator's two decoders are those of the process",
    "tqdm": "one for all progress bars of the process",
}
#: Processes, by a part of their command line.
_PROCESSES_ALLOWED: Final = {
    "spark_2pc_sink/testing/reaper.py": "ends what is left where the tests are killed, so it has to outlive them"
}


class LeftBehind:
    """Notes what there was before a file, and says what there is more behind it."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._processes = _children()

    @contextmanager
    def for_all_files(self) -> Iterator[None]:
        """What is started inside the block is of no file."""
        threads, processes = set(threading.enumerate()), _children()
        yield
        self._threads |= set(threading.enumerate()) - threads
        self._processes |= _children() - processes

    def begin(self) -> None:
        """A file begins; what is there has been reported."""
        self._threads |= set(threading.enumerate())
        self._processes |= _children()

    def found(self) -> list[str]:
        """What is left, once what is ending has had its time; in words."""
        try:
            wait_until(lambda: not self._left(), deadline_s=_END_S, what="the end of what a file of tests has started")
        except DeadlineError:
            return self._left()
        return []

    def _left(self) -> list[str]:
        threads = [thread for thread in threading.enumerate() if thread not in self._threads and not _allowed(thread)]
        processes = {pid: _command(pid) for pid in _children() - self._processes}
        return [_thread_in_words(each) for each in threads] + [
            f"the process {pid} {command[:120]!r}"
            for pid, command in processes.items()
            if not any(part in command for part in _PROCESSES_ALLOWED)
        ]


class FilesEndWhatTheyStart:
    """A plugin of pytest: fails the last test of a file that leaves something behind."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._left = LeftBehind()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """What a fixture of the session starts is left behind by no file."""
        if fixturedef.scope != "session":
            return (yield)
        with self._left.for_all_files():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
        """Behind the last test of a file, and its fixtures: what it has started has ended."""
        yield
        if nextitem is None or nextitem.path != item.path:
            found = self._left.found()
            self._left.begin()
            if found:
                name = item.path.relative_to(self._root)
                pytest.fail(f"{name} leaves behind {', '.join(found)}", pytrace=False)


def _children() -> set[int]:
    """The processes below this one; of a kernel that does not list them, none."""
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in _read(path).split()}


def _read(path: Path) -> str:
    """Of a thread or a process that may have ended."""
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _module_of(thread: threading.Thread) -> str:
    """Where the code of a thread is from: its target's module, else that of its class."""
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", None) or type(thread).__module__)


def _allowed(thread: threading.Thread) -> bool:
    return thread is threading.current_thread() or any(
        _module_of(thread).startswith(name) or thread.name.startswith(name) for name in _THREADS_ALLOWED
    )


def _thread_in_words(thread: threading.Thread) -> str:
    return f"the thread {thread.name!r} of {_module_of(thread)}"


def _command(pid: int) -> str:
    """Of a process; a note where it has ended, and nobody has waited for it."""
    return _read(Path(f"/proc/{pid}/cmdline")) or "(ended)"
