"""An operator's night: incidents, the runbook fed with RUNBOOK.md's answers, and each choice as it is printed.

Each incident is made on real servers. Then the command line shows it, ``spark-2pc runbook`` gets the page's answers,
and the job starts again as the page says. In the end both sides are equal, or ``spark-2pc history`` names who has
accepted what, and why.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from spark_2pc_sink.choices import TABLE, Act
from spark_2pc_sink.cli.output import EXIT_IN_DOUBT, EXIT_INCONCLUSIVE, EXIT_SETTLED
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.testing import read_topic
from tests.harness import ROOT, run_program
from tests.harness.damage import remake_topic
from tests.harness.driver_config import Row
from tests.harness.driver_job import Job, make_rows
from tests.harness.incidents import BATCH, INCIDENTS, SIZES, Incident
from tests.harness.page_blocks import Way, ways
from tests.integration.incidents.conftest import Ask, MakeIncident, Said, database_of, password_of, place_of, values_of

REASON: Final = "tested"
WAYS: Final = {way.incident: way for way in ways() if not way.name}
#: A job after what a person has done, and the rows that both sides have of another input.
Prepared = tuple[Job, list[Row]]


def as_it_is(job: Job) -> Prepared:
    return job, []


def emptied(job: Job) -> Prepared:
    """Topic, table and checkpoint are empty."""
    job.sql(f"TRUNCATE {job.table}")
    remake_topic(job)
    for finished in job.checkpoint.iterdir():
        finished.unlink()
    return job, []


def emptied_for_another_query(job: Job) -> Prepared:
    return replace(emptied(job)[0], query_id="query-2"), []


def source_after_both(job: Job) -> Prepared:
    """A new checkpoint, whose source begins after what both sides have."""
    for finished in job.checkpoint.iterdir():
        finished.unlink()
    for batch, size in enumerate(SIZES):
        job.write_batch(batch, make_rows(len(SIZES) + batch, size))
    return replace(job, query_id="query-2"), job.sql(f"SELECT id, payload FROM {job.table}")


@dataclass(frozen=True)
class Case:
    """A choice, and what a person does and finds with it.

    Attributes:
        symptom: that the runbook names.
        choice: its name.
        before: what its title and its steps tell to do by hand.
        words: placeholders that have other values than in the answers of RUNBOOK.md.
        start: options of the start after a command, where the choice says that it asks for them.
        lacks: batches that the topic lacks in the end; the table has them.
        incident: its name, where it is not that of the symptom.
        noted: a recovery has noted what became of the batch.
    """

    symptom: str
    choice: str
    before: Callable[[Job], Prepared] = as_it_is
    words: Mapping[str, str] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
    lacks: Sequence[int] = ()
    incident: str = ""
    noted: bool = False

    def __str__(self) -> str:
        return f"{self.symptom}-{self.choice}"


CASES: Final = (
    Case("in_doubt", "settle"),
    Case("lost_row", "rebuild"),
    Case("driver_alive", "take_over"),
    Case("owed", "accept_replay", noted=True),
    Case("owed", "drop", lacks=(BATCH,), noted=True),
    Case("other_cluster", "adopt"),
    Case("elsewhere", "adopt", incident="other_cluster"),
    Case("id_in_use", "pass_over"),
    Case("id_in_use", "adopt", before=emptied),
    Case("open_transaction", "commit"),
    Case("open_transaction", "abort", start={"adopt": True, "accept_loss": "0..1", "reason": REASON}, lacks=(BATCH,)),
    Case("database_behind", "accept_loss"),
    Case("outcome_lost", "accept_replay"),
    Case("outcome_lost", "drop", lacks=(0,)),
    Case("topic_remade", "accept_replay"),
    Case("topic_remade", "drop", lacks=(0,)),
    Case("not_the_first_batch", "pass_over", words={"FIRST..LAST": "0..1"}),
    Case("gap", "new_checkpoint", before=source_after_both),
    Case("gap", "pass_over"),
    Case("batches_restarted", "new_checkpoint", before=source_after_both),
    Case("batches_restarted", "write_again", before=emptied_for_another_query),
    Case("other_batch_owed", "drop"),
    Case("resend_differs", "accept_replay"),
    Case("resend_differs", "drop", lacks=(BATCH,)),
    Case("replay_differs", "keep"),
    Case("not_handed_over", "pass_over"),
)


#: Choices that are printed only where a fact is known that no incident has, and the tests that do what they say.
OTHERWISE: Final = {
    ("open_transaction", "adopt"): "faults/test_refusals.py",
    ("commits_lost", "accept_loss"): "faults/test_standby.py",
    ("replay_differs", "new_checkpoint"): "sink/test_job_functions.py",
    ("replay_differs", "write_again"): "faults/test_refusals.py",
    ("other_query", "adopt"): "faults/test_refusals.py",
}


def test_each_choice_that_prints_something_to_paste_has_a_case() -> None:
    """Comparisons are pasted wherever they are printed; tests/integration/runbook takes the one step with a command."""
    every = {(problem.value, choice.name): choice for problem, entry in TABLE.items() for choice in entry.choices}
    printing = {place for place, choice in every.items() if choice.command("", {}) and choice.act is not Act.COMPARE}
    assert printing == {(case.symptom, case.choice) for case in CASES} | OTHERWISE.keys()
    for file in OTHERWISE.values():
        assert "adopt=True" in (ROOT / "tests/integration" / file).read_text()
    stepping = {place for place, choice in every.items() if any(map(re.compile("spark-2pc ").match, choice.steps))}
    assert stepping == {("readers_blocked", "force_terminate")}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_printed_for_a_choice_ends_the_incident(case: Case, make_incident: MakeIncident, ask: Ask) -> None:
    """C5, D9: then the job comes to its end, and both sides differ only by what the choice says."""
    incident = make_incident(case.incident or case.symptom, "reference")
    way = WAYS[incident.section]
    values = {**values_of(incident), **case.words}
    words = way.words(way.commands[0], values)
    if case.symptom == "elsewhere":
        words = words[: words.index("--cause")]
    if case.noted:
        noted = ask(incident.job, "recover", *words[1:])
        assert noted.code == EXIT_IN_DOUBT, noted
    said = ask(incident.job, *words)
    assert f"({case.symptom})" in said.out, said
    for comparison in re.findall(r"command:  spark-2pc (verify .*)", said.out):
        compared = ask(incident.job, *shlex.split(comparison, comments=True))
        assert compared.code in {EXIT_SETTLED, EXIT_IN_DOUBT, EXIT_INCONCLUSIVE}, f"{comparison}\n{compared}"
    found = re.search(rf"^  {case.choice}: .*\n(?:      .*\n)*?      command:  (.*)$", said.out, re.MULTILINE)
    assert found is not None, said
    printed = re.sub(r"FIRST\.\.LAST|\bN\b|\bTEXT\b", lambda place: {**values, "TEXT": REASON}[place[0]], found[1])
    job, kept = case.before(incident.job)
    options = dict(case.start)
    if printed.startswith("spark-2pc "):
        done = ask(job, *shlex.split(printed, comments=True)[1:])
        assert done.code in {EXIT_SETTLED, EXIT_IN_DOUBT}, f"{printed}\n{done}"
    else:
        options |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords_of(printed)}
    if incident.driver is not None:
        job.superseded(incident.driver)
    job.run(**options)
    in_table: dict[int, Sequence[Row]] = {**job.input(), **({} if kept else incident.table)}
    in_topic = {**job.input(), **({} if kept else incident.kafka), **dict.fromkeys(case.lacks, ())}
    in_topic[0] = [*kept, *in_topic[0]]
    job.check(in_topic, table=[*kept, *(row for batch in sorted(in_table) for row in in_table[batch])])


def keywords_of(call_: str) -> list[ast.keyword]:
    """The keywords of ``DualWriteSink(…, name=value)``."""
    parsed = ast.parse(call_.replace("…, ", ""), mode="eval").body
    assert isinstance(parsed, ast.Call), call_
    return parsed.keywords


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
NIGHT_WAYS = {(way.incident, way.name): way for way in ways()}


def cases() -> Iterator[Any]:
    """A short night on one kind of broker; thoroughly, each incident on both."""
    for name in INCIDENTS:
        for kind in ("reference", "kafka"):
            chosen = name in SHORT_NIGHT and (kind == "kafka") == (name in ON_KAFKA)
            yield pytest.param(name, kind, id=f"{name}-{kind}", marks=() if chosen else pytest.mark.thorough)


def test_each_cause_has_an_incident_and_each_incident_a_section() -> None:
    causes = {cause.value for cause in HaltCause}
    assert causes <= INCIDENTS.keys()
    assert causes <= {incident for incident, _ in NIGHT_WAYS}


@pytest.mark.parametrize(("name", "kind"), list(cases()))
def test_the_runbook_alone_ends_it(name: str, kind: str, make_incident: MakeIncident, ask: Ask) -> None:
    """C5, D9: the answers that RUNBOOK.md tells, and one start of the job."""
    incident = make_incident(name, kind)
    remedies = see(incident, ask)
    check_remedies(incident, remedies)
    paste_the_first(incident, remedies, ask)
    way = NIGHT_WAYS[incident.section, ""]
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
