"""A standalone cluster whose executors have Pythons of their own: docs/cluster.md."""

from __future__ import annotations

import json
import os
import signal
import sys
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

if TYPE_CHECKING:
    from tests.integration.sink.one_batch import OneBatch

pytestmark = [pytest.mark.thorough, pytest.mark.spark, pytest.mark.timeout(900)]

COMMAND_DEADLINE_S = 600


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
