"""Who acts: the user, the host and the program of this process, whatever the machine knows of them."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from jdbc_state import Actor
from jdbc_state.actions import ACTION_OF, ACTIONS, ROUTINE

SCRIPT = "from jdbc_state import Actor; print(Actor.of_this_process().program)\n"


def test_it_is_whoever_runs_the_process() -> None:
    actor = Actor.of_this_process("job", "a reason")
    assert actor == Actor(os_user=getpass.getuser(), host=socket.gethostname(), program="job", reason="a reason")
    assert Actor.of_this_process().reason is None


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no user")])
def test_a_number_without_a_name_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """As in a container that runs under any user id. Python 3.13 raises OSError."""

    def getuser() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", getuser)
    assert Actor.of_this_process("job").os_user == str(os.getuid())


def test_the_program_is_its_script(tmp_path: Path) -> None:
    script = tmp_path / "nightly.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "nightly.py\n"


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("spark_2pc_sink.cli.__main__", ["x"], "spark_2pc_sink.cli"),
        ("reports.nightly", ["x"], "reports.nightly"),
        (None, ["/usr/bin/spark-2pc"], "spark-2pc"),
        (None, [""], "python"),
    ],
)
def test_the_program_is_its_module_or_its_script(
    monkeypatch: pytest.MonkeyPatch, name: str | None, arguments: list[str], shown: str
) -> None:
    """An interactive session has neither."""
    main = ModuleType("__main__")
    if name is not None:
        monkeypatch.setattr(main, "__spec__", type("Spec", (), {"name": name}))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", arguments)
    assert Actor.of_this_process().program == shown


def test_what_people_decide_is_never_trimmed() -> None:
    assert ACTIONS.keys() >= {*ROUTINE, *ACTION_OF.values()}
    assert not {*ROUTINE} & {*ACTION_OF.values(), "adopt", "force_terminate"}
