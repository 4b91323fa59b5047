"""What a file of tests leaves behind is named, whatever started it; what is ending has its time."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.harness import left_behind
from tests.harness.left_behind import LeftBehind


@pytest.fixture
def end() -> Iterator[threading.Event]:
    ended = threading.Event()
    yield ended
    ended.set()


def start(end: threading.Event, name: str) -> threading.Thread:
    thread = threading.Thread(target=end.wait, name=name)
    thread.start()
    return thread


def test_a_thread_that_is_left_is_named(end: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_behind, "_END_S", 0.0)
    before = LeftBehind()
    thread = start(end, "forgotten")
    assert before.found() == ["the thread 'forgotten' of threading"]
    before.begin()
    assert before.found() == []
    end.set()
    thread.join()


def test_a_process_that_is_left_is_named_until_somebody_has_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_behind, "_END_S", 0.0)
    before = LeftBehind()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"it runs\n")
        process.stdout.readline()
        (found,) = before.found()
        process.stdin.close()
    assert found == f"the process {process.pid} 'cat '"
    assert before.found() == []


def test_a_thread_that_is_ending_is_waited_for(end: threading.Event) -> None:
    before = LeftBehind()
    ending = threading.Timer(0.1, end.set)
    ending.start()
    start(end, "ending")
    assert before.found() == []


def test_a_fixture_of_the_session_and_what_is_allowed_are_of_no_file(
    end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_behind, "_END_S", 0.0)
    before = LeftBehind()
    with before.for_all_files():
        start(end, "of the session")
    start(end, "decode_0")
    assert before.found() == []
