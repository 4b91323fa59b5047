"""A standalone cluster of a master and two workers, whose executors have Pythons of their own: docs/cluster.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.cluster import SparkCluster
from tests.harness import ROOT
from tests.harness.own_python_main import ROWS
from tests.harness.pure_client import packages_beside_spark
from tests.harness.streams import sink_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.sink.one_batch import OneBatch

pytestmark = [pytest.mark.thorough, pytest.mark.spark, pytest.mark.timeout(900)]

COMMAND_DEADLINE_S = 600


@dataclass(frozen=True)
class Brought:
    """What an author has made to bring to executors."""

    dependencies: Path
    everything: Path
    package: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster"), bare=True) as started:
        yield started


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Brought:
    """The archives and the zip of the page; without a second PySpark."""
    folder = tmp_path_factory.mktemp("brought")
    environment = folder / "environment"
    python = str(environment / "bin" / "python")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("spark_2pc_sink-*.whl")
    run(sys.executable, "-m", "venv", "--copies", str(environment))
    run(python, "-m", "pip", "install", "--quiet", *packages_beside_spark())
    dependencies = archive(environment, folder / "dependencies.tar.gz")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel))
    everything = archive(environment, folder / "environment.tar.gz")
    return Brought(dependencies, everything, wheel.rename(folder / "spark_2pc_sink.zip"))


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=COMMAND_DEADLINE_S)


def archive(environment: Path, path: Path) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as made:
        for entry in sorted(environment.iterdir()):
            made.add(entry, arcname=entry.name)
    return path


def drive(one_batch: OneBatch, cluster: SparkCluster, archived: Path, **settings: str) -> str:
    """Run a driver; what it says on standard error when it fails."""
    options = sink_options(
        broker=one_batch.kafka,
        database=one_batch.database,
        topic=one_batch.topic,
        transactional_id=one_batch.transactional_id,
    )
    settings = {"spark.archives": f"{archived}#environment", **settings}
    python = "./environment/bin/python"
    arguments = (cluster.master, python, json.dumps(settings), json.dumps(options), str(one_batch.directory))
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.own_python_main", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=COMMAND_DEADLINE_S,
        check=False,
    )
    return done.stderr if done.returncode else ""


def test_an_environment_in_an_archive(one_batch: OneBatch, cluster: SparkCluster, brought: Brought) -> None:
    assert drive(one_batch, cluster, brought.everything) == ""
    one_batch.assert_all_there(ROWS)


def test_the_package_as_a_file_and_its_dependencies_in_the_python(
    one_batch: OneBatch, cluster: SparkCluster, brought: Brought
) -> None:
    files = {"spark.submit.pyFiles": str(brought.package)}
    assert drive(one_batch, cluster, brought.dependencies, **files) == ""
    one_batch.assert_all_there(ROWS)


def test_executors_without_the_package_are_named_before_the_first_batch(
    one_batch: OneBatch, cluster: SparkCluster, brought: Brought
) -> None:
    """One sentence, in place of a batch that fails three times; nothing was claimed."""
    said = drive(one_batch, cluster, brought.dependencies)
    assert "cannot import spark_2pc_sink: No module named 'spark_2pc_sink'" in said
    assert "docs/cluster.md" in said
    assert one_batch.records_not_committed(0) == 0
