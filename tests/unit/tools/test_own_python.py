"""tools/own_python.py: an environment of another Python is made anew, one of this Python stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.own_python import main, python_in

ROOT = Path(__file__).resolve().parents[3]
OWN = f"cpython {sys.version_info[0]}.{sys.version_info[1]}"


def environment(folder: Path, program: str | None) -> Path:
    """What `venv` leaves, with a program in place of its Python, and a package in it; without a program a dead link."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /opt/python/bin\nversion = 3.9.18\n")
    (folder / "lib").mkdir()
    (folder / "lib" / "installed.py").touch()
    python = folder / "bin" / "python"
    if program is None:
        python.symlink_to("/opt/python/bin/python3.9")
    else:
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("echo cpython 3.9", "cpython 3.9"),
        (f'exec {sys.executable} "$@"', OWN),
        (None, "a Python 3.9 that is gone"),
        ("exit 127", "a Python 3.9 that is gone"),
    ],
    ids=["another", "this", "a dead link", "no longer runs"],
)
def test_an_environment_says_of_which_python_it_is(tmp_path: Path, program: str | None, found: str) -> None:
    assert python_in(environment(tmp_path / "python", program)) == found


def test_what_is_no_environment_is_of_no_python(tmp_path: Path) -> None:
    assert python_in(tmp_path / "nothing") is None
    (tmp_path / "file").touch()
    assert python_in(tmp_path) is None


def test_one_of_another_python_is_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With pip, which `venv` alone cannot bring into it; a second time it is kept."""
    folder = environment(tmp_path / "python", "echo cpython 3.9")
    assert main([str(folder)]) == 0
    assert f"{folder} is of cpython 3.9, and this is {OWN}: it is made anew" in capsys.readouterr().err
    assert not (folder / "lib" / "installed.py").exists()
    subprocess.run([folder / "bin" / "python", "-m", "pip", "--version"], check=True, capture_output=True)
    (folder / "lib" / "installed.py").touch()
    assert main([str(folder)]) == 0
    assert capsys.readouterr().err == ""
    assert (folder / "lib" / "installed.py").exists()


def test_setup_makes_its_environment_so() -> None:
    """Looked at in a dry run: .venv/ of whoever runs this stays as it is."""
    command = ["make", "--no-print-directory", "--dry-run", "--what-if=pyproject.toml", ".venv/stamp"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "\npython3 tools/own_python.py .venv\n" in said


def test_without_a_folder_it_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "make setup" in capsys.readouterr().err
