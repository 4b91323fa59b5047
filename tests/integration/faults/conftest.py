"""Fixtures of the fault tests: a nursery of drivers, jobs, and the command beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink import cli
from tests.harness.driver_job import SMALL_INPUT, Job
from tests.harness.driver_process import Nursery
from tests.harness.providers import Broker

#: The types of the fixtures run and make_job.
Run = Callable[..., str]
MakeJob = Callable[..., Job]


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery


@pytest.fixture
def make_job(
    request: pytest.FixtureRequest, tmp_path: Path, nursery: Nursery, transactional_id: str, topic: Any
) -> Iterator[MakeJob]:
    """Makes jobs on a broker, on a fresh database unless another is given; their drivers end with the test.

    How long the recoveries of restarted drivers took is noted as ``recovery_ms`` among the test's properties, which
    ``--junitxml`` writes.
    """
    jobs: list[Job] = []

    def make(
        broker: Broker,
        *,
        sizes: Sequence[int] = SMALL_INPUT,
        primary_key: bool = True,
        database: str | None = None,
        spark: bool = False,
    ) -> Job:
        folder = tmp_path / f"job-{len(jobs)}"
        folder.mkdir()
        job = Job(
            broker=broker,
            database=database or request.getfixturevalue("database"),
            topic=topic(partitions=3, broker=broker),
            transactional_id=transactional_id,
            folder=folder,
            nursery=nursery,
            spark=spark,
        )
        jobs.append(job)
        return job.create(sizes, primary_key=primary_key)

    yield make
    for job in jobs:
        job.close()
        for recovered in (recovered for driver in job.drivers[1:] for recovered in driver.recoveries[:1]):
            request.node.user_properties.append(("recovery_ms", round(recovered["took_ms"], 1)))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `spark-2pc` against a job's sides, perhaps by another URL, with this exit code; all that it printed.

    The URL, which has a password, is in the environment.
    """

    def call(job: Job, code: int, command: str, *options: str, database: str = "") -> str:
        capsys.readouterr()
        monkeypatch.setenv("SPARK_2PC_DATABASE", database or job.database)
        # A history is that of the database alone.
        kafka = () if command == "history" else ("--bootstrap-server", job.broker.bootstrap)
        found = cli.main([command, *kafka, "--transactional-id", job.transactional_id, *options])
        out, err = capsys.readouterr()
        assert found == code, out + err
        return out + err

    return call
