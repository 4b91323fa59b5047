"""An operator's night: for each incident the runbook, fed with RUNBOOK.md's answers, and nothing else.

Each incident is made on real servers. Then the command line shows it, ``spark-2pc runbook`` runs as a process of its
own, and the job starts again as the page says. In the end both sides are equal, or ``spark-2pc history`` names who has
accepted what, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.testing import read_topic
from tests.harness.incidents import INCIDENTS, Incident
from tests.harness.runbook_page import Way, ways
from tests.integration.incidents.command_line import Said, call, database_of, paste, place_of, values_of
from tests.integration.incidents.conftest import Ask, MakeIncident

#: On Apache Kafka: of what a driver leaves, of what the database lost, and of what Kafka lost.
ON_KAFKA = ("in_doubt", "database_behind", "topic_remade")
#: The claim refuses the job by the name of the cluster, before anything halts it.
REFUSED_BY_NAME = ("other_cluster",)
WAYS = {(way.incident, way.name): way for way in ways()}


def cases() -> Iterator[Any]:
    """Each incident on one kind of broker; thoroughly, on both."""
    for name in INCIDENTS:
        for kind in ("reference", "kafka"):
            chosen = (kind == "kafka") == (name in ON_KAFKA)
            yield pytest.param(name, kind, id=f"{name}-{kind}", marks=() if chosen else pytest.mark.thorough)


def test_each_cause_has_an_incident_and_each_incident_a_section() -> None:
    causes = {cause.value for cause in HaltCause}
    assert causes <= INCIDENTS.keys()
    assert causes <= {incident for incident, _ in WAYS}


@pytest.mark.parametrize(("name", "kind"), list(cases()))
def test_the_runbook_alone_ends_it(name: str, kind: str, make_incident: MakeIncident, ask: Ask) -> None:
    """C5, D9: the answers that RUNBOOK.md tells, and one start of the job."""
    incident = make_incident(name, kind)
    remedies = see(incident, ask)
    paste_the_first(incident, remedies, ask)
    way = WAYS[incident.section, ""]
    values = values_of(incident)
    said = call(incident.job, way.words(way.commands[0], values), way.stdin(values))
    assert said.code == incident.runbook_code, said
    check_questions(way, said)
    incident.start_again(way.sink_options(values))
    incident.check_end()
    if incident.accepted is not None:
        check_accepted(incident, ask, incident.accepted)


def see(incident: Incident, ask: Ask) -> list[str]:
    """The job has stopped for this cause, and ``status`` says whether something is in doubt; what both print to do."""
    if incident.halt is not None and incident.name not in REFUSED_BY_NAME:
        assert incident.halt.cause == incident.cause
    sink = status_of(incident, ask)
    assert sink["settled"] is (incident.status_code == 0)
    printed = "" if incident.halt is None else incident.halt.text.partition("What settles it:\n")[2]
    return sink["remedies"] or [line.strip() for line in printed.splitlines()]


def status_of(incident: Incident, ask: Ask) -> dict[str, Any]:
    """What ``status`` shows of the sink."""
    words = ["status", *place_of(incident.job).split(), "--transactional-id", incident.job.transactional_id, "--json"]
    said = ask(incident.job, *words)
    assert said.code == incident.status_code, said
    (sink,) = said.fields["sinks"]
    found: dict[str, Any] = sink
    return found


def paste_the_first(incident: Incident, remedies: list[str], ask: Ask) -> None:
    """What is printed first is the safest: where it is a command, it changes neither side, and what remains holds."""
    if not remedies or not remedies[0].startswith("spark-2pc "):
        return
    before = contents(incident)
    said = paste(incident.job, remedies[0])
    assert "usage:" not in said.err, said
    assert contents(incident) == before, said
    shown = status_of(incident, ask)["remedies"]
    assert not shown or shown == remedies


def contents(incident: Incident) -> Any:
    """All that a command could change: rows, committed records, the transaction, and the state row."""
    job = incident.job
    rows = sorted(job.sql(f"SELECT id, payload FROM {job.table}"))
    records = sorted(
        (record.partition, record.offset, record.key) for record in read_topic(job.broker.bootstrap, job.topic)
    )
    state = job.sql("SELECT transactional_id, status, batch_id, generation FROM kafka_transaction_state")
    return rows, records, job.describe(), sorted(state)


def check_questions(way: Way, said: Said) -> None:
    """The runbook has asked what the page answers, in that order."""
    asked = 0
    for question, _ in way.answers:
        asked = said.out.find(question, asked)
        assert asked >= 0, f"{question!r} was not asked\n{said}"
        asked += len(question)


def check_accepted(incident: Incident, ask: Ask, action: str) -> None:
    """History names the action, who did it, and why."""
    only = ("--transactional-id", incident.job.transactional_id, "--actions-only", "--json")
    said = ask(incident.job, "history", *database_of(incident.job), *only)
    done = [entry for entry in said.fields["entries"] if entry["action"] == action]
    assert done, said
    assert all(entry["reason"] and entry["os_user"] for entry in done), said
