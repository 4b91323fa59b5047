"""examples/testing_project: a job with a test of its own, which kills it; also from the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_2pc_sink.recipe.steps import Step

ROOT = Path(__file__).parents[3]
PROJECT = ROOT / "examples" / "testing_project"


def run_pytest(folder: Path, path: Path, *words: str, plugin: bool = True) -> None:
    """The project's own tests, with every warning an error."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-q", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(path)}
        | ({"PYTEST_PLUGINS": "spark_2pc_sink.testing.pytest_plugin"} if plugin else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROJECT, tmp_path / "project"))


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [step.name for step in Step])
def test_its_test_kills_the_job_and_finds_both_sides_the_same(project: Path, step: str) -> None:
    run_pytest(project, ROOT, "-k", f"[{step}]")


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_it_works_from_the_wheel(project: Path, tmp_path: Path) -> None:
    """Pytest finds the plugin by its entry point, and nothing of this repository is imported."""
    source, wheel = tmp_path / "source", tmp_path / "wheel"
    ignored = shutil.ignore_patterns(".git", ".cache", ".venv", "tests", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(wheel), str(source)],
        check=True,
        capture_output=True,
    )
    (entry_points,) = wheel.glob("*.dist-info/entry_points.txt")
    assert "[pytest11]\nspark-2pc-sink = spark_2pc_sink.testing.pytest_plugin" in entry_points.read_text()
    run_pytest(project, wheel, "-p", "spark-2pc-sink", "-k", "[PREPARE]", plugin=False)
