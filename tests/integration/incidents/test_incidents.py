"""Incidents are what they say: the job and the command line show the cause, and what settles it ends as promised."""

from __future__ import annotations

import json

import pytest

from spark_2pc_sink.errors import HaltCause
from tests.harness.incidents import INCIDENTS
from tests.integration.faults.conftest import Run
from tests.integration.incidents.conftest import MakeIncident

#: The job is refused by name before anything halts it.
_REFUSED = ("other_cluster",)


def test_each_cause_has_an_incident() -> None:
    assert {cause.value for cause in HaltCause} <= INCIDENTS.keys()


@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_is_shown_and_settled(name: str, make_incident: MakeIncident, run: Run) -> None:
    """By its first remedy alone: what RUNBOOK.md tells is in test_operators_night.py."""
    incident = make_incident(name, "reference")
    if incident.halt is not None and name not in _REFUSED:
        assert incident.halt.cause == incident.cause
    code, text = run(incident.job, "status", "--json")
    assert code == incident.status_code, text
    assert json.loads(text)[0]["settled"] is (code == 0)
    if incident.settle is not None:
        run(incident.job, "recover", *incident.settle)
    incident.start_again(incident.options)
    incident.check_end()
