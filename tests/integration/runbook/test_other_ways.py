"""The other ways of RUNBOOK.md to end an incident: without a person, step by step, and by the example."""

from __future__ import annotations

import pytest

from recovery_runbook import run
from spark_2pc_sink import cli
from tests.harness.page_blocks import Way, ways
from tests.integration.incidents.conftest import MakeIncident

OTHER = [way for way in ways() if way.name]
#: Exit codes of the commands, in their order. The records of these jobs are no JSON, so `verify` reads no rows in them.
CODES = {"yes": [0], "by_hand": [3, 0, 5, 0]}


@pytest.mark.thorough
@pytest.mark.parametrize("way", OTHER, ids=lambda way: f"{way.incident}-{way.name}")
def test_another_way_ends_it_too(way: Way, make_incident: MakeIncident) -> None:
    incident = make_incident(way.incident, "reference")
    job = incident.job
    values = {
        "ID": job.transactional_id,
        "URL": job.database,
        "…": f"--bootstrap-server {job.broker.bootstrap} --database {job.database}",
    }
    assert [cli.main(way.words(command, values)) for command in way.commands] == CODES[way.name]
    incident.start_again({})
    incident.check_end()


@pytest.mark.slow
def test_one_round_settles_what_a_dead_driver_has_left(
    make_incident: MakeIncident, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example for one's own automation; the next round finds nothing to do."""
    incident = make_incident("in_doubt", "reference")
    kafka: dict[str, str | int] = {"bootstrap.servers": incident.job.broker.bootstrap}
    assert run(kafka, incident.job.database) == 0
    assert "settled now" in capsys.readouterr().out
    assert run(kafka, incident.job.database) == 0
    assert "settled now" not in capsys.readouterr().out
    incident.start_again({})
    incident.check_end()
