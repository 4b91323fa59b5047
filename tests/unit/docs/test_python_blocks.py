"""Every Python block of every page: mypy reads it with the real package. Other tests run those that can run here.

A fragment leaves out what its reader has: ``...`` in a call stands for other options, and names that it does not make
are the reader's.
"""

from __future__ import annotations

import ast
import builtins
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import spark_2pc_sink
from tests.harness.page_blocks import ROOT, blocks, without_dots

_SETTINGS: Final = """\
[mypy]
check_untyped_defs = True
# A reader knows which values are there.
strict_optional = False
ignore_missing_imports = True
[mypy-pyspark.*,sqlalchemy.*,numpy.*,pyarrow.*,kafka.*,psycopg2.*,pandas.*,py4j.*,boto3.*,google.*,azure.*,prometheus_client.*]
follow_imports = skip
"""

#: Kept from run to run: mypy reads again what has changed.
CACHE: Final = ROOT / ".cache" / "mypy-of-pages"
#: Each has a mistake that mypy has to tell.
WRONG: Final = {
    "option": 'sink = DualWriteSink(..., bad_row="dead_letter")',
    "type": "sink = DualWriteSink(..., batch_attempts_max='many')",
    "import": "from spark_2pc_sink import Record",
    "attribute": "report = status(database='x', kafka={})\nprint(report.sink)",
    "missing": 'sink = DualWriteSink(transactional_id="orders")',
}


def program(text: str) -> str:
    """A block as a whole program for mypy, with what is imported and what is the reader's before it."""
    tree = without_dots(text)
    made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    made |= {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    head = ["from typing import Any", "_given: dict[str, Any] = {}"]
    head += [
        f"from spark_2pc_sink import {name}" if name in spark_2pc_sink.__all__ else f"{name}: Any = None"
        for name in sorted(used - made - set(dir(builtins)) - {"_given"})
    ]
    body = ast.unparse(tree)
    if any(isinstance(each, ast.AsyncWith) for each in tree.body):
        body = "async def page() -> None:\n" + "\n".join(f"    {line}" for line in body.splitlines())
    return "\n".join([*head, body, ""])


def mypy(folder: Path, texts: dict[str, str]) -> list[str]:
    """What mypy says of programs, with their names in place of their files."""
    (folder / "mypy.ini").write_text(_SETTINGS)
    files = {f"block_{number}": name for number, name in enumerate(texts)}
    for file, name in files.items():
        (folder / f"{file}.py").write_text(texts[name])
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file=mypy.ini",
        f"--cache-dir={CACHE}",
        *(f"{file}.py" for file in files),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    said = [line.partition(".py:") for line in done.stdout.splitlines() if ": error: " in line]
    return [f"{files[file]}: {error}" for file, _, error in said]


@pytest.mark.slow
def test_every_block_fits_the_package(tmp_path: Path) -> None:
    """Names, options, their types, attributes of results. One run of mypy, which gets wrong programs too."""
    right = {str(block): program(block.text) for block in blocks("python")}
    said = mypy(tmp_path, right | {name: program(text) for name, text in WRONG.items()})
    assert [line for line in said if line.partition(": ")[0] in right] == []
    assert {line.partition(": ")[0] for line in said} == set(WRONG)
