"""What the runbook prints for a choice ("the same: …") is called as it stands, in an incident that offers the choice.

`test_operators_night` answers the runbook's questions instead.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from spark_2pc_sink.choices import TABLE, Act
from spark_2pc_sink.cli.exits import EXIT_IN_DOUBT, EXIT_INCONCLUSIVE, EXIT_SETTLED
from tests.harness import ROOT
from tests.harness.damage import remake_topic
from tests.harness.driver_config import Row
from tests.harness.driver_job import Job, make_rows
from tests.harness.incidents import BATCH, SIZES
from tests.harness.page_blocks import ways
from tests.integration.incidents.conftest import Ask, MakeIncident, values_of

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
