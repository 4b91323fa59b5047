"""The incidents: the brokers that they are made on, the job that each is made of, and what ``spark-2pc`` says of it."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import make_url

from spark_2pc_sink import cli
from tests.conftest import or_skip
from tests.harness.driver_job import Job
from tests.harness.incidents import INCIDENTS, SIZES, Incident
from tests.harness.json_contract import read_output
from tests.harness.providers import Broker, BrokerPool
from tests.integration.faults.conftest import MakeJob, make_job, nursery

__all__ = ["make_job", "nursery"]


@dataclass(frozen=True)
class Said:
    """What a command has said."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"

    @property
    def fields(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return read_output(self.out)


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


def place_of(job: Job) -> str:
    """The words that name both sides, as RUNBOOK.md has ``…``."""
    return shlex.join(["--bootstrap-server", job.broker.bootstrap, *database_of(job)])


def database_of(job: Job) -> list[str]:
    url = make_url(job.database)
    return ["--database", f"postgresql://{url.username}@{url.host}:{url.port}/{url.database}"]


def values_of(incident: Incident) -> Mapping[str, str]:
    """What RUNBOOK.md's placeholders stand for."""
    return {"…": place_of(incident.job), "ID": incident.job.transactional_id, **incident.words}


def password_of(job: Job) -> str:
    """Of the database; libpq takes it from PGPASSWORD."""
    return str(make_url(job.database).password)


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
