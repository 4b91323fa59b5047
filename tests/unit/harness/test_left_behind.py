"""What a file of tests leaves behind is named, whatever started it; what is ending has its time."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import ROOT, left_behind
from tests.harness.later import later
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
    start(end, "ending")
    with later(0.1, end.set):
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


CONFTEST = """
import threading
from pathlib import Path
import pytest
from tests.harness.left_behind import FilesEndWhatTheyStart

def pytest_configure(config):
    config.pluginmanager.register(FilesEndWhatTheyStart(Path(__file__).parent))

@pytest.fixture(scope="session")
def server():
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="server")
    thread.start()
    yield
    end.set()
"""
LEAVES = (
    "import threading\ndef test(): threading.Thread(target=threading.Event().wait, daemon=True, name='lost').start()"
)


@pytest.mark.slow
def test_the_file_is_named_and_a_server_of_all_files_is_none_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    # A conftest below the root, as here: its own hooks are not called for fixtures of the session.
    for name, text in {"conftest": CONFTEST, "test_a": "def test(server): pass", "test_b": LEAVES}.items():
        (tmp_path / "tests" / f"{name}.py").write_text(text)
    (tmp_path / "tests" / "test_c.py").write_text("def test(): pass")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "3 passed, 1 error" in ran.stdout
    assert "test_b.py leaves behind the thread 'lost' of threading" in ran.stdout


@pytest.mark.parametrize("error", [None, RuntimeError("what the block waited for failed")])
def test_the_act_has_returned_when_the_block_is_left(error: Exception | None) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def act(name: str) -> None:
        begun.set()
        go_on.wait(10)
        done.append(name)

    def block() -> None:
        with later(0.01, act, "an act"):
            assert begun.wait(10)
            threading.Timer(0.2, go_on.set).start()
            if error is not None:
                raise error

    if error is None:
        block()
    else:
        with pytest.raises(RuntimeError, match="waited for"):
            block()
    assert done == ["an act"]


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("node.id", "KAFKA_NODE_ID"),
        ("transaction.two.phase.commit.enable", "KAFKA_TRANSACTION_TWO_PHASE_COMMIT_ENABLE"),
        ("a-b.c", "KAFKA_A___B_C"),
        ("sasl_x.y", "KAFKA_SASL__X_Y"),
    ],
)
def test_a_property_becomes_the_variable_that_the_image_turns_back(name: str, variable: str) -> None:
    """As apache/kafka documents it: a dot is _, an underscore __, a dash ___."""
    # Its libraries take as long to import as a hundred tests of this folder.
    from tests.harness.containers import environment_name  # noqa: PLC0415

    assert environment_name(name) == variable
