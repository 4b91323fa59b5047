"""A standalone cluster of a master and two workers, whose executors have Pythons of their own: docs/cluster.md."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.testing.errors import CapabilityError
from spark_2pc_sink.testing.processes import ServerProcess
from spark_2pc_sink.testing.spark_cluster import SparkCluster
from tests.harness import ROOT
from tests.harness.late_executor_main import ROWS as LATE_ROWS
from tests.harness.late_executor_main import WRITTEN
from tests.harness.other_pythons import EXECUTOR, other_python
from tests.harness.own_python_main import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.sink.one_batch import OneBatch

pytestmark = [pytest.mark.thorough, pytest.mark.spark, pytest.mark.timeout(900)]

COMMAND_DEADLINE_S = 600


@dataclass(frozen=True)
class Brought:
    """What an author has made to bring to executors."""

    dependencies: Path
    package: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster"), cores=2) as started:
        yield started


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Brought:
    """The archive of dependencies and the zip of the page; without a second PySpark."""
    try:
        dependencies = other_python(EXECUTOR)
    except CapabilityError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("brought")
    # The build leaves files beside the sources.
    sources = folder / "sources"
    shutil.copytree(ROOT, sources, ignore=shutil.ignore_patterns(".git", ".cache", ".venv", "build", "tests"))
    wheel_command = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sources))
    run(sys.executable, "-m", "pip", *wheel_command)
    (wheel,) = folder.glob("spark_2pc_sink-*.whl")
    return Brought(
        dependencies=archive(dependencies, folder / "dependencies.tar.gz"),
        package=wheel.rename(folder / "spark_2pc_sink.zip"),
    )


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=COMMAND_DEADLINE_S)


def archive(environment: Path, path: Path) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as made:
        for entry in sorted(environment.iterdir()):
            made.add(entry, arcname=entry.name)
    return path


def drive(
    one_batch: OneBatch,
    cluster: SparkCluster,
    archived: Path,
    *,
    settings: Mapping[str, str] | None = None,
) -> str:
    """Run a driver; what it says on standard error when it fails."""
    # The executors' clocks are in another zone than the driver's.
    given = {"spark.archives": f"{archived}#environment", "spark.executorEnv.TZ": "Asia/Kolkata", **(settings or {})}
    python = "./environment/bin/python"
    arguments = [cluster.master, python, json.dumps(given), json.dumps(one_batch.options()), str(one_batch.directory)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.own_python_main", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=COMMAND_DEADLINE_S,
        check=False,
    )
    return done.stderr if done.returncode else ""


def test_the_package_as_a_file_and_its_dependencies_in_the_python(
    one_batch: OneBatch, cluster: SparkCluster, brought: Brought
) -> None:
    files = {"spark.submit.pyFiles": str(brought.package)}
    assert drive(one_batch, cluster, brought.dependencies, settings=files) == ""
    one_batch.assert_all_there(ROWS)


def test_executors_without_the_package_are_named_before_the_first_batch(
    one_batch: OneBatch, cluster: SparkCluster, brought: Brought
) -> None:
    """One sentence, in place of a batch that fails three times; nothing was claimed."""
    said = drive(one_batch, cluster, brought.dependencies)
    assert "cannot import spark_2pc_sink: No module named 'spark_2pc_sink'" in said
    assert "docs/cluster.md" in said
    assert one_batch.records_not_committed(0) == 0


def test_an_executor_that_joins_later_without_the_package_is_named_before_the_next_batch(
    one_batch: OneBatch, tmp_path: Path
) -> None:
    """One sentence, and the batch is not tried three times; nothing of it is in Kafka."""
    try:
        python = str(other_python(EXECUTOR) / "bin" / "python")
    except CapabilityError as error:
        pytest.skip(str(error))
    log = tmp_path / "driver.log"
    with SparkCluster(tmp_path / "cluster", python_path=ROOT, workers=1) as cluster:
        arguments = [cluster.master, python, json.dumps(one_batch.options()), str(one_batch.directory)]
        driver = ServerProcess(
            [sys.executable, "-m", "tests.harness.late_executor_main", *arguments],
            log=log,
            environment={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            wait_until(lambda: WRITTEN in log.read_text(), deadline_s=COMMAND_DEADLINE_S, what="the first batch")
            cluster.add_worker(python_path=None)
            assert driver.wait(deadline_s=COMMAND_DEADLINE_S) == 0, log.read_text()[-3000:]
        finally:
            driver.end(signal.SIGKILL, deadline_s=10)
    said = log.read_text()
    assert f"{python} cannot import spark_2pc_sink: No module named 'spark_2pc_sink'" in said
    assert "docs/cluster.md" in said
    assert "attempt 1 of" not in said
    one_batch.assert_all_there(LATE_ROWS)
    assert one_batch.records_not_committed(LATE_ROWS) == 0
