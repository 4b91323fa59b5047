"""The sink where tasks run in processes that share nothing with the driver but Spark and its port."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.harness import ROOT
from tests.harness.cluster_main import ROWS
from tests.harness.own_python_main import ROWS as OWN_PYTHON_ROWS

if TYPE_CHECKING:
    from tests.integration.sink.one_batch import OneBatch

#: Spark's own traffic is encrypted with a key that its processes share.
ENCRYPTED: dict[str, str] = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": "shared",
    "spark.network.crypto.enabled": "true",
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.spark]
#: Executors start first.
DEADLINE_S = 350


@pytest.mark.parametrize("key", ["id", pytest.param(None, marks=pytest.mark.thorough)], ids=["keyed", "unkeyed"])
@pytest.mark.parametrize(
    "encrypted", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["plain", "encrypted"]
)
def test_executors_send_to_the_driver(one_batch: OneBatch, key: str | None, encrypted: bool) -> None:
    """By a connection that is encrypted where Spark's own are."""
    stdout, _ = one_batch.run(
        "tests.harness.cluster_main",
        json.dumps(ENCRYPTED if encrypted else {}),
        environment={"SPARK_HOME": str(home_of_spark(one_batch.directory))},
        key=key,
        deadline_s=DEADLINE_S,
    )
    (said,) = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
    assert said == {"tasks": [2], "encrypted": encrypted}
    one_batch.assert_all_there(ROWS)


def home_of_spark(directory: Path) -> Path:
    """Spark as it is installed, in a folder of its own: executors leave their logs in it."""
    home = directory / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    return home


def test_a_local_master_without_an_activated_environment(one_batch: OneBatch) -> None:
    """The ``python3`` of PATH lacks the packages: the first attempt says so, and what it tells to set is enough."""
    other = one_batch.directory / "other"
    venv.create(other)

    def run(folder: str, python: str) -> subprocess.CompletedProcess[str]:
        directory = one_batch.directory / folder
        directory.mkdir()
        # Each run is a query of its own, and has an id of its own.
        own = one_batch.options(transactional_id=f"{one_batch.transactional_id}-{folder}")
        arguments = ["local[2]", python, "{}", json.dumps(own), str(directory)]
        path = os.pathsep.join([str(other / "bin"), os.environ["PATH"]])
        return subprocess.run(
            [sys.executable, "-m", "tests.harness.own_python_main", *arguments],
            cwd=directory,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    refused = run("refused", "")
    assert refused.returncode != 0
    assert f"PYSPARK_PYTHON='{other / 'bin' / 'python3'}'" in refused.stderr
    assert "cannot import spark_2pc_sink: No module named 'spark_2pc_sink'" in refused.stderr
    assert "attempt 1 of" not in refused.stderr
    [remedy] = set(re.findall(r"set PYSPARK_PYTHON=(\S+), ", refused.stderr))
    done = run("written", shlex.split(remedy)[0])
    assert done.returncode == 0, done.stderr[-3000:]
    one_batch.assert_all_there(OWN_PYTHON_ROWS)
