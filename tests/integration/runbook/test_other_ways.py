"""The other ways of RUNBOOK.md to end an incident: without a person, and step by step without the runbook."""

from __future__ import annotations

import pytest

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
