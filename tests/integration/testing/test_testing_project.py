"""examples/testing_project, which docs/testing.md shows: its test kills its job; also from the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_2pc_sink.recipe.steps import Step

ROOT = Path(__file__).parents[3]
PROJECT = ROOT / "examples" / "testing_project"


#: A test of somebody who has the wheel; it also sees that nothing of this repository is imported.
FIRST_TEST = """
from pathlib import Path

import spark_2pc_sink


def test_the_server_takes_a_topic(dual_write_kafka):
    assert Path(spark_2pc_sink.__file__).is_relative_to({wheel!r})
    assert dual_write_kafka.create_topic("orders") == "orders"
"""
FIXTURES = ("crash_at", "dual_write_kafka", "dual_write_postgres", "dual_write_stack")


def run(*command: str, folder: Path, environment: Mapping[str, str]) -> str:
    """What a program prints that succeeds."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run_pytest(folder: Path, path: Path, *words: str, plugin: bool = True) -> str:
    """Pytest with every warning an error, in a process that imports from ``path`` first."""
    return run(
        *(sys.executable, "-m", "pytest", "-W", "error", "-q", "-p", "no:cacheprovider", *words),
        folder=folder,
        environment={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(path)}
        | ({"PYTEST_PLUGINS": "spark_2pc_sink.testing.pytest_plugin"} if plugin else {}),
    )


def pip(*words: str, python: str = sys.executable) -> None:
    """Run pip where no source is seen but that which is named."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = (python, "-m", "pip", "--disable-pip-version-check", "-q", *words)
    run(*command, folder=Path("/"), environment=environment)


def source_in(folder: Path) -> Path:
    """A copy of that which a wheel is made of; a build writes into it."""
    source = folder / "source"
    source.mkdir()
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, source)
    for name in ("jdbc_state", "spark_2pc_sink"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    return source


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROJECT, tmp_path / "project"))


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.slow
def test_the_project_and_the_plugin_work_from_the_wheel(project: Path, tmp_path: Path) -> None:
    """Pytest finds it by its entry point, and the servers have all of their files. Killed at one step of all."""
    wheel = tmp_path / "wheel"
    pip(
        "install",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--no-compile",
        "--target",
        str(wheel),
        str(source_in(tmp_path)),
    )
    (project / "test_first.py").write_text(FIRST_TEST.format(wheel=str(wheel)))
    listed = run_pytest(project, wheel, "-p", "spark-2pc-sink", "--fixtures", plugin=False)
    assert not [name for name in FIXTURES if f"\n{name} " not in listed]
    killed = f"[{Step.DECIDE.name}]"
    said = run_pytest(project, wheel, "-p", "spark-2pc-sink", "-k", f"test_first or {killed}", plugin=False)
    assert "2 passed" in said
