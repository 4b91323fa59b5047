"""The example for one's own automation, on real servers: one round settles what a dead driver has left."""

from __future__ import annotations

import pytest

from recovery_runbook import run
from tests.integration.incidents.conftest import MakeIncident


@pytest.mark.slow
def test_one_round_settles_what_a_dead_driver_has_left(
    make_incident: MakeIncident, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the next one finds nothing to do."""
    incident = make_incident("in_doubt", "reference")
    kafka: dict[str, str | int] = {"bootstrap.servers": incident.job.broker.bootstrap}
    assert run(kafka, incident.job.database) == 0
    assert "settled now" in capsys.readouterr().out
    assert run(kafka, incident.job.database) == 0
    assert "settled now" not in capsys.readouterr().out
    incident.start_again({})
    incident.check_end()
