"""tools/spark_bytecode.py: Python imports the modules of a zip without compiling them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from tools.spark_bytecode import add_bytecode

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("some/__init__.py", "from some.part import VALUE\n")
        made.writestr("some/part.py", "VALUE = 7\n")
        made.writestr("some/tests/test_part.py", "def broken(:\n")
        made.writestr("some/data.json", "{}")
    path.chmod(0o644)
    return path


def test_modules_are_imported_from_their_bytecode(archive: Path) -> None:
    """Data and sources stay, tests are left alone, and a second time does no harm."""
    assert add_bytecode(archive) == add_bytecode(archive) == 2
    with zipfile.ZipFile(archive) as made:
        assert sorted(made.namelist()) == [
            "some/__init__.py",
            "some/__init__.pyc",
            "some/data.json",
            "some/part.py",
            "some/part.pyc",
            "some/tests/test_part.py",
        ]
    code = "import some.part as part; print(part.__file__, part.VALUE)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [f"{archive}/some/part.pyc", "7"]
    assert archive.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in archive.parent.iterdir()] == ["some.zip"]


def test_a_file_that_is_no_zip_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.zip"
    path.write_text("no zip")
    with pytest.raises(zipfile.BadZipFile):
        add_bytecode(path)
    assert path.read_text() == "no zip"
