"""docs/tutorial.md, as somebody types it: its programs, its commands in their order, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_2pc_sink.testing import wait_until

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
START_DEADLINE_S = 60
COMMAND_DEADLINE_S = 300
#: With the PATH of an environment that is activated.
ENVIRONMENT = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


def programs() -> dict[str, str]:
    """What the reader saves, by the name under which: the one that is named last before the block."""
    found = {}
    before = ""
    for part in re.split(r"(```python\n.*?```)", PAGE, flags=re.DOTALL):
        if part.startswith("```python\n"):
            name = re.findall(r"`(\w+\.py)`", before)[-1]
            found[name] = part.removeprefix("```python\n").removesuffix("```")
        before = part
    return found


def commands() -> Iterator[tuple[str, str]]:
    """Each command of the second terminal, and what the page says that it prints."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for part in block.split("$ ")[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed.strip()


def pattern(printed: str) -> str:
    """A regular expression of what a page shows, where "…" is anything."""
    return ".*".join(re.escape(part.strip()) for part in printed.split("…"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The reader's directory, while the servers of the first terminal run."""
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    with (tmp_path / "servers.out").open("wb") as out:
        servers = subprocess.Popen(
            [sys.executable, "servers.py"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    wait_until(
        lambda: b"Both servers run" in (tmp_path / "servers.out").read_bytes(),
        deadline_s=START_DEADLINE_S,
        what="the servers of the tutorial",
    )
    yield tmp_path
    servers.communicate(b"\n", timeout=START_DEADLINE_S)
    assert servers.returncode == 0


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.java
@pytest.mark.timeout(900)
def test_the_tutorial_does_what_it_says(folder: Path) -> None:
    for command, printed in commands():
        done = subprocess.run(
            command.split(),
            cwd=folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=COMMAND_DEADLINE_S,
            check=False,
        )
        assert re.match(pattern(printed), done.stdout.strip(), re.DOTALL), f"{command}\n{done.stdout}\n{done.stderr}"
