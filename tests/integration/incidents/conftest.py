"""Fixtures of the incidents: the brokers that they are made on, and the job that each of them is made of."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from spark_2pc_sink import cli
from tests.conftest import or_skip
from tests.harness.driver_job import Job
from tests.harness.incidents import INCIDENTS, SIZES, Incident
from tests.harness.providers import Broker, BrokerPool
from tests.integration.faults.conftest import MakeJob, make_job, nursery
from tests.integration.incidents.command_line import Said, password_of

__all__ = ["make_job", "nursery"]


#: The types of the fixtures make_incident and ask.
MakeIncident = Callable[[str, str], Incident]
Ask = Callable[..., Said]


@pytest.fixture
def make_incident(
    request: pytest.FixtureRequest, brokers: BrokerPool, reference_brokers: BrokerPool, make_job: MakeJob
) -> MakeIncident:
    """Makes an incident by its name, on a ``reference`` coordinator or on ``kafka``; its drivers end with the test."""

    def make(name: str, kind: str) -> Incident:
        pool = {"reference": reference_brokers, "kafka": brokers}[kind]

        def broker(*, two_phase_commit: bool) -> Broker:
            return or_skip(
                request.config,
                lambda: pool.get(transaction_version=2, two_phase_commit=two_phase_commit, as_released=True),
            )

        # Without the key nothing but the product keeps rows from being there twice.
        job = make_job(broker(two_phase_commit=True), sizes=SIZES, primary_key=False)
        return INCIDENTS[name](job, lambda: broker(two_phase_commit=False))

    return make


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """What ``spark-2pc`` says to words, fed with lines; in this process, as another takes a second to begin."""

    def call(job: Job, *words: str, stdin: str = "") -> Said:
        monkeypatch.setenv("PGPASSWORD", password_of(job))
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = cli.main(words)
        return Said(code, *capsys.readouterr())

    return call
