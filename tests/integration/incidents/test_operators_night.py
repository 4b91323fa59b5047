"""An operator's night: for each incident the runbook, fed with RUNBOOK.md's answers, and nothing else.

Each incident is made on real servers. Then the command line shows it, ``spark-2pc runbook`` gets the page's answers,
and the job starts again as the page says. In the end both sides are equal, or ``spark-2pc history`` names who has
accepted what, and why.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink.cli.exits import EXIT_IN_DOUBT, EXIT_INCONCLUSIVE, EXIT_SETTLED
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.testing import read_topic
from tests.harness import ROOT, run_program
from tests.harness.incidents import INCIDENTS, Incident
from tests.harness.page_blocks import Way, ways
from tests.integration.incidents.conftest import (
    Ask,
    MakeIncident,
    Said,
    database_of,
    password_of,
    place_of,
    values_of,
)

#: On Apache Kafka: of what a driver leaves, of what the database lost, and of what Kafka lost.
ON_KAFKA = ("in_doubt", "database_behind", "topic_remade")
#: One for each side that lost something, and one for each kind of way on; the others are for `--thorough`, for the
#: whole night takes continuous integration two minutes.
SHORT_NIGHT = (*ON_KAFKA, "open_transaction")
#: The claim refuses the job by the name of the cluster, before anything halts it.
REFUSED_BY_NAME = ("other_cluster",)
#: Begins a remedy that can be pasted.
COMMAND = "spark-2pc "
#: Flags by which a person accepts a difference.
DECIDING = frozenset({"--drop", "--accept-replay", "--accept-loss", "--open-transaction"})
WAYS = {(way.incident, way.name): way for way in ways()}


def cases() -> Iterator[Any]:
    """A short night on one kind of broker; thoroughly, each incident on both."""
    for name in INCIDENTS:
        for kind in ("reference", "kafka"):
            chosen = name in SHORT_NIGHT and (kind == "kafka") == (name in ON_KAFKA)
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
    check_remedies(incident, remedies)
    paste_the_first(incident, remedies, ask)
    way = WAYS[incident.section, ""]
    values = values_of(incident)
    said = ask(incident.job, *way.words(way.commands[0], values), stdin=way.stdin(values))
    assert said.code == incident.runbook_code, said
    check_questions(way, said)
    incident.start_again(way.sink_options(values))
    incident.check_end()
    check_verified(incident, ask)
    if incident.accepted is not None:
        check_accepted(incident, ask, incident.accepted)


@pytest.mark.parametrize(
    "name", ["in_doubt", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("lost_row", "prepared"))]
)
def test_the_first_command_that_status_prints_settles_it(name: str, make_incident: MakeIncident, ask: Ask) -> None:
    """D9: pasted into a shell as it stands, where no person has to decide anything."""
    incident = make_incident(name, "reference")
    command, *others = (remedy for remedy in see(incident, ask) if remedy.startswith(COMMAND))
    assert others == []
    # The command is where this interpreter is, and its package is the one under test. No password is in it.
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    own = {"PATH": programs, "PYTHONPATH": str(ROOT), "PGPASSWORD": password_of(incident.job)}
    run_program("bash", "-c", command, env={**os.environ, **own}, code=EXIT_SETTLED)
    assert ask(incident.job, *shlex.split(command, comments=True)[1:]).code == EXIT_SETTLED
    incident.start_again({})
    incident.check_end()


def see(incident: Incident, ask: Ask) -> list[str]:
    """The job has stopped for this cause, and ``status`` says whether something is in doubt; what is printed to do."""
    sink = status_of(incident, ask)
    assert sink["settled"] is (incident.status_code == 0)
    remedies: list[str] = sink["remedies"]
    if incident.halt is None or incident.name in REFUSED_BY_NAME:
        return remedies
    assert incident.halt.cause == incident.cause
    return [line.strip() for line in incident.halt.text.partition("What to do:\n")[2].splitlines()]


def status_of(incident: Incident, ask: Ask) -> dict[str, Any]:
    """What ``status`` shows of the sink."""
    words = ["status", *place_of(incident.job).split(), "--transactional-id", incident.job.transactional_id, "--json"]
    said = ask(incident.job, *words)
    assert said.code == incident.status_code, said
    (sink,) = said.fields["sinks"]
    found: dict[str, Any] = sink
    return found


def check_remedies(incident: Incident, remedies: list[str]) -> None:
    """The first decides nothing, and all name the same sink, batch, or range."""
    assert not DECIDING.intersection(remedies[0].split()), remedies
    for command in (shlex.split(remedy, comments=True) for remedy in remedies if remedy.startswith(COMMAND)):
        given = dict(itertools.pairwise(command))
        assert given["--transactional-id"] == incident.job.transactional_id
        assert given.get("--batch", "N") in ("N", incident.words.get("N"))
        assert given.get("--accept-loss", "none") in ("none", incident.words.get("FIRST..LAST"))


def paste_the_first(incident: Incident, remedies: list[str], ask: Ask) -> None:
    """What is printed first is the safest: where it is a command, it changes neither side, and what was said holds."""
    if not remedies[0].startswith(COMMAND):
        return
    before, shown = contents(incident), status_of(incident, ask)["remedies"]
    said = ask(incident.job, *shlex.split(remedies[0], comments=True)[1:])
    assert said.code in (EXIT_SETTLED, EXIT_IN_DOUBT, EXIT_INCONCLUSIVE), said
    assert contents(incident) == before, said
    assert status_of(incident, ask)["remedies"] == shown


def contents(incident: Incident) -> Any:
    """All that a command could change: rows, committed records, the transaction, and the state rows."""
    job = incident.job
    rows = sorted(job.sql(f"SELECT id, payload FROM {job.table}"))
    records = [(found.partition, found.offset, found.key) for found in read_topic(job.broker.bootstrap, job.topic)]
    state = job.sql("SELECT transactional_id, status, batch_id, generation FROM kafka_transaction_state")
    return rows, sorted(records), job.describe(), sorted(state)


def check_questions(way: Way, said: Said) -> None:
    """The runbook has asked what the page answers, in that order."""
    asked = 0
    for question, _ in way.answers:
        asked = said.out.find(question, asked)
        assert asked >= 0, f"{question!r} was not asked\n{said}"
        asked += len(question)


def check_verified(incident: Incident, ask: Ask) -> None:
    """``verify`` finds what an independent reader has found: the sides are the same, or differ as was accepted."""
    job = incident.starts or incident.job
    words = ["verify", *place_of(job).split(), "--transactional-id", job.transactional_id, "--table-only"]
    said = ask(job, *words, "--record-columns", "id = key::bigint, payload = value_text")
    assert said.code == (EXIT_SETTLED if incident.kafka == incident.table else EXIT_IN_DOUBT), said


def check_accepted(incident: Incident, ask: Ask, action: str) -> None:
    """History names the action, who did it, and why."""
    only = ("--transactional-id", incident.job.transactional_id, "--actions-only", "--json")
    said = ask(incident.job, "history", *database_of(incident.job), *only)
    done = [entry for entry in said.fields["entries"] if entry["action"] == action]
    assert done, said
    assert all(entry["reason"] and entry["os_user"] for entry in done), said
