"""Tasks that run again, are lost, or lack the package: in a driver of its own, both sides equal the input, once."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

from spark_2pc_sink.testing import assert_same_multiset, read_topic, wait_until
from spark_2pc_sink.testing.processes import CapabilityError, ServerProcess
from spark_2pc_sink.testing.spark_cluster import SparkCluster
from tests.conftest import MakeTopic
from tests.harness import ROOT, late_executor_main, one_batch_main, run_program
from tests.harness.other_pythons import EXECUTOR, other_python
from tests.harness.providers import Broker
from tests.harness.streams import sink_options
from tests.integration.postgres.database_tables import rows

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

UPSERT: Final[dict[str, Any]] = {"mode": "upsert", "upsert_keys": ["id"], "upsert_order_by": "id"}
#: Of a driver, whose executors start first; of a cluster.
DEADLINE_S, CLUSTER_DEADLINE_S = 350, 600
#: Between the steps no task runs; what it has left in an executor is not needed any more.
PLACES = [("KILL", place) for place in ("reading", "streaming", "sent", "PRODUCE", "DECIDE")] + [("PWR", "streaming")]


@dataclass(frozen=True, slots=True)
class OneBatch:
    """Where a batch of numbers goes, and the directory that its driver works in."""

    kafka: Broker
    database: str
    topic: str
    transactional_id: str
    directory: Path

    def arguments(self, **options: Any) -> list[str]:
        """The last ones of a driver: the sink's options as JSON, and the directory."""
        sides = {"broker": self.kafka, "database": self.database, "topic": self.topic}
        given = sink_options(**{"transactional_id": self.transactional_id, "key": "id", **sides, **options})
        return [json.dumps(given), str(self.directory)]

    def run(self, *driver: str, own_spark: bool = False, **options: Any) -> tuple[str, str]:
        """Run a driver, a module of the harness with its first arguments, to its good end; its output and errors.

        Args:
            own_spark: Spark is in a folder of its own, in which executors leave their logs.
        """
        home = self.directory / "spark"
        if own_spark:
            home.mkdir()
            for path in Path(pyspark.__file__).parent.iterdir():
                (home / path.name).symlink_to(path)
        module, *words = driver
        command = (sys.executable, "-m", f"tests.harness.{module}", *words, *self.arguments(**options))
        env = {**os.environ, "PYTHONPATH": str(ROOT), **({"SPARK_HOME": str(home)} if own_spark else {})}
        done = run_program(*command, env=env, deadline_s=DEADLINE_S)
        return done.stdout, done.stderr

    def assert_all_there(self, count: int) -> None:
        """Every number below ``count`` is on both sides, once, and no table of the sink is left."""
        written = rows(self.database, "SELECT id FROM target")
        assert_same_multiset(written, [(number,) for number in range(count)], what="rows")
        committed = [record.value for record in read_topic(self.kafka.bootstrap, self.topic)]
        assert_same_multiset(committed, [f"value-{number}".encode() for number in range(count)], what="records")
        assert rows(self.database, "SELECT relname FROM pg_class WHERE relname ~ '^_2pc'") == []

    def records_not_committed(self, count: int) -> int:
        """How many records of aborted transactions are in the topic, with ``count`` committed ones."""
        return len(read_topic(self.kafka.bootstrap, self.topic, isolation="read_uncommitted")) - count


@pytest.fixture
def one_batch(tmp_path: Path, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str) -> OneBatch:
    return OneBatch(kafka, database, topic(partitions=8), transactional_id, tmp_path)


def test_executors_send_to_the_driver(one_batch: OneBatch) -> None:
    """By a connection that is encrypted, as Spark's own are."""
    stdout, _ = one_batch.run("one_batch_main", "encrypt", "", own_spark=True)
    (said,) = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
    assert said == {"tasks": [2], "encrypted": True}
    one_batch.assert_all_there(one_batch_main.ROWS)


def run_with_a_failure(batch: OneBatch, place: str, **options: Any) -> str:
    """Run the batch in a driver in which something fails once; what that wrote to its standard error."""
    _, stderr = batch.run("one_batch_main", "fail", place, **options)
    assert (batch.directory / "struck").exists(), stderr[-3000:]
    batch.assert_all_there(one_batch_main.ROWS)
    return stderr


@pytest.mark.parametrize(
    "options", [{}, pytest.param(UPSERT, marks=pytest.mark.thorough)], ids=["while it streams", "ordered"]
)
def test_a_second_attempt_is_refused_and_the_batch_runs_again(one_batch: OneBatch, options: dict[str, Any]) -> None:
    """A4, A5, A6, B30: what the first one has sent was being written already; both sides equal the input."""
    # Nothing waits for a full request: what the driver has of a task is on its way to the brokers.
    kafka = {"bootstrap.servers": one_batch.kafka.bootstrap, "compression.type": "none", "max.request.size": 20_000}
    stderr = run_with_a_failure(one_batch, "streaming", kafka=kafka | {"batch.size": 10_000}, **options)
    lines = [line for line in stderr.splitlines() if "attempt" in line]
    assert "had sent was already being written" in stderr, lines
    dropped = one_batch.records_not_committed(one_batch_main.ROWS)
    assert dropped > 0, "the first attempt had sent nothing that could be aborted"


@pytest.mark.thorough
@pytest.mark.parametrize(("place", "options"), [("reading", {}), ("stage", UPSERT)], ids=["task", "stage"])
def test_a_task_that_is_held_back_may_run_again(one_batch: OneBatch, place: str, options: dict[str, Any]) -> None:
    """A4: what it has sent is dropped, and the batch goes on, also where Spark runs a whole stage again."""
    stderr = run_with_a_failure(one_batch, place, **options)
    assert "attempt 1 of" not in stderr
    assert one_batch.records_not_committed(one_batch_main.ROWS) == 0


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_batch_outlives_an_executor(one_batch: OneBatch, name: str, place: str) -> None:
    """A4, A5: killed, or decommissioned. Spark runs lost tasks again; of what those had sent nothing is committed."""
    _, stderr = one_batch.run("one_batch_main", name, place, own_spark=True)
    assert (one_batch.directory / "struck").exists(), stderr[-3000:]
    one_batch.assert_all_there(one_batch_main.ROWS)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_an_executor_that_joins_later_without_the_package_is_named_before_the_next_batch(
    one_batch: OneBatch, tmp_path: Path
) -> None:
    """docs/cluster.md: one sentence, and the batch is not tried three times; nothing of it is in Kafka."""
    try:
        python = str(other_python(EXECUTOR) / "bin" / "python")
    except CapabilityError as error:
        pytest.skip(str(error))
    log = tmp_path / "driver.log"
    with SparkCluster(tmp_path / "cluster", python_path=ROOT, workers=1) as cluster:
        arguments = [cluster.master, python, *one_batch.arguments(key=None)]
        driver = ServerProcess(
            [sys.executable, "-m", "tests.harness.late_executor_main", *arguments],
            log=log,
            environment={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        written = late_executor_main.WRITTEN
        try:
            wait_until(lambda: written in log.read_text(), deadline_s=CLUSTER_DEADLINE_S, what="the first batch")
            cluster.add_worker(python_path=None)
            assert driver.wait(deadline_s=CLUSTER_DEADLINE_S) == 0, log.read_text()[-3000:]
        finally:
            driver.end(signal.SIGKILL, deadline_s=10)
    said = log.read_text()
    assert f"{python} cannot import spark_2pc_sink: No module named 'spark_2pc_sink'" in said
    assert "docs/cluster.md" in said
    assert "attempt 1 of" not in said
    one_batch.assert_all_there(late_executor_main.ROWS)
    assert one_batch.records_not_committed(late_executor_main.ROWS) == 0
