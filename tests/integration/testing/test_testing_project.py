"""examples/testing_project, which docs/testing.md shows: its test kills its job; also from the wheel."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from spark_2pc_sink.recipe.steps import Step
from tests.harness import ROOT, run_program

PROJECT = ROOT / "examples" / "testing_project"


#: A test of somebody who has the wheel; it also sees that nothing of this repository is imported.
FIRST_TEST = """
from pathlib import Path

import spark_2pc_sink


def test_the_server_takes_a_topic(dual_write_kafka):
    assert Path(spark_2pc_sink.__file__).is_relative_to({wheel!r})
    assert dual_write_kafka.create_topic("orders") == "orders"
"""


def install(folder: Path, target: Path) -> None:
    """Install the wheel of a copy of the sources, into which a build writes; pip sees no other source."""
    folder.mkdir()
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, folder)
    for name in ("jdbc_state", "spark_2pc_sink"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--target", str(target))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", *options, str(folder))
    run_program(*command, cwd="/", env=environment)


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.slow
def test_the_project_and_the_plugin_work_from_the_wheel(tmp_path: Path) -> None:
    """Pytest finds it by its entry point, and the servers have all of their files. Killed at one step of all."""
    wheel = tmp_path / "wheel"
    install(tmp_path / "source", wheel)
    project = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    (project / "test_first.py").write_text(FIRST_TEST.format(wheel=str(wheel)))
    said = run_program(
        *(sys.executable, "-m", "pytest", "-W", "error", "-q", "-p", "no:cacheprovider", "-p", "spark-2pc-sink"),
        *("-k", f"test_first or [{Step.DECIDE.name}]"),
        cwd=project,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(wheel)},
    )
    assert "2 passed" in said.stdout
