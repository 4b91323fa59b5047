"""The table of choices: the safest comes first, each says what it changes, and its command is one that there is."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature

import pytest

from spark_2pc_sink import recover
from spark_2pc_sink.choices import (
    EFFECTS,
    TABLE,
    UNCHANGED,
    Act,
    Choice,
    Facts,
    HaltCause,
    HaltError,
    InDoubtError,
    Problem,
    Symptom,
    problem_in,
    remedies,
)
from spark_2pc_sink.choices.choice import Fact
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.monitoring.dashboard.app import choices, fingerprint
from spark_2pc_sink.options import OperatorDecision, SinkOptions
from spark_2pc_sink.recovery.report import RecoveryReport
from spark_2pc_sink.runbook.conversation import parsed
from spark_2pc_sink.runbook.sides import Picture
from tests.unit.runbook.fake_sides import ALIVE, ROW, UNSEEN, halted, in_doubt, owed, picture

SINK = "--transactional-id orders --bootstrap-server h:9092 --database postgresql://h/d"
#: What a person names, for each option.
NAMED = {"accept_loss": "8..9", "batch": 7}
FACTS = Facts(batch=7, places="orders-0 at offset 14", owners=("billing", "o'clock"))
EVERY = [(problem, choice) for problem in TABLE for choice in TABLE[problem].choices_for(FACTS)]


def names(problem: Problem, *known: Fact) -> str:
    return " ".join(choice.name for choice in TABLE[problem].choices_for(Facts(known=frozenset(known))))


def chosen(problem: Problem, name: str, facts: Facts = FACTS) -> Choice:
    (found,) = (choice for choice in TABLE[problem].choices_for(facts) if choice.name == name)
    return found


@pytest.mark.parametrize("problem", TABLE)
def test_the_safest_comes_first(problem: Problem) -> None:
    accepting = [bool(choice.accepts) for choice in TABLE[problem].choices_for(FACTS)]
    assert accepting == sorted(accepting)


@pytest.mark.parametrize(
    ("problem", "fact", "offered"),
    [
        (HaltCause.OTHER_CLUSTER, "decided", "own_cluster set_by_hand"),
        (HaltCause.OPEN_TRANSACTION, "ended", "restore compare adopt"),
        (HaltCause.COMMITS_LOST, "lost batches", "restore compare start_job accept_loss"),
        (HaltCause.OUTCOME_LOST, "readable", "compare accept_replay drop"),
        (HaltCause.GAP, "row older", "restore compare pass_over"),
        (HaltCause.GAP, "checkpoint older", "restore compare new_checkpoint"),
        (HaltCause.RESEND_DIFFERS, "service", "compare drop"),
        (HaltCause.REPLAY_DIFFERS, "called twice", "call_once two_sinks"),
        (HaltCause.REPLAY_DIFFERS, "first batch", "old_job restore two_sinks keep new_checkpoint write_again"),
    ],
)
def test_facts_choose(problem: Problem, fact: Fact, offered: str) -> None:
    """Nothing is offered that would be refused, or that this incident does not need."""
    assert names(problem, fact) == offered


@pytest.mark.parametrize(("problem", "choice"), EVERY, ids=lambda each: getattr(each, "name", str(each)))
def test_each_choice_can_be_carried_out(problem: Problem, choice: Choice) -> None:
    """By keywords that there are, or by steps; what looks alone says that nothing changes."""
    given = choice.keywords({option: NAMED[option] for option in choice.inputs})
    command, line = choice.command(SINK, given), choice.line(FACTS, SINK)
    assert "{" not in line
    if choice.act is Act.RECOVER:
        assert given.keys() <= signature(recover).parameters.keys()
        assert (choice.kafka, choice.database) != (UNCHANGED, UNCHANGED)
        assert line.startswith(command.partition(" --accept-loss ")[0].partition(" --batch ")[0])
    elif choice.act is Act.BY_HAND:
        assert bool(command) is choice.on_sink
        assert not choice.on_sink or given.keys() <= SinkOptions.__dataclass_fields__.keys()
        assert choice.todo or problem in HaltCause
    if choice.act in {Act.COMPARE, Act.RECHECK}:
        assert (choice.kafka, choice.database, choice.accepts) == (UNCHANGED, UNCHANGED, "")


@pytest.mark.parametrize(
    ("problem", "name", "command"),
    [
        (Symptom.IN_DOUBT, "settle", f"spark-2pc recover {SINK}"),
        (Symptom.OWED, "drop", f"spark-2pc recover {SINK} --batch 7 --drop"),
        (HaltCause.OPEN_TRANSACTION, "compare", f"spark-2pc verify {SINK} --open"),
        (HaltCause.OPEN_TRANSACTION, "commit", f"spark-2pc recover {SINK} --adopt --open-transaction commit --batch 7"),
        (HaltCause.DATABASE_BEHIND, "accept_loss", f"spark-2pc recover {SINK} --adopt --accept-loss 8..9"),
        (HaltCause.OUTCOME_LOST, "compare", f"spark-2pc verify {SINK} --batch 7"),
        (HaltCause.GAP, "pass_over", "DualWriteSink(…, adopt=True, accept_loss='8..9')"),
        (HaltCause.REPLAY_DIFFERS, "keep", "DualWriteSink(…, accept_replay=7)"),
    ],
)
def test_the_command_of_a_choice(problem: Problem, name: str, command: str) -> None:
    choice = chosen(problem, name)
    assert choice.command(SINK, {option: NAMED[option] for option in choice.inputs}) == command


def test_only_what_needs_no_decision_is_automatic() -> None:
    automatic = {(problem, choice.name) for problem, choice in EVERY if choice.automatic}
    assert automatic == {(Symptom.IN_DOUBT, "settle"), (Symptom.LOST_ROW, "rebuild")}
    seen = in_doubt("commit", "drop")
    assert not any(choice.automatic for choice in seen.choices)


@pytest.mark.parametrize("kind", EFFECTS)
def test_what_a_recovery_would_do_is_said_for_either_side(kind: str) -> None:
    _, settle = in_doubt(kind).choices  # type: ignore[arg-type]
    assert (settle.kafka, settle.database) == EFFECTS[kind]


def test_without_a_batch_no_batch_is_named() -> None:
    """The row of an id that no batch was written under."""
    row = replace(ROW, batch_id=None)
    assert picture(before=row, row=row).facts.batch is None
    assert chosen(HaltCause.REPLAY_DIFFERS, "keep", Facts()).options == {}
    assert chosen(Symptom.OWED, "drop", Facts()).options == {"decision": OperatorDecision.DROP}


def test_what_is_named_is_checked() -> None:
    (batches,), (batch,) = (
        chosen(HaltCause.DATABASE_BEHIND, "accept_loss").inputs,
        chosen(HaltCause.OPEN_TRANSACTION, "commit").inputs,
    )
    assert (parsed(batches, " 4..6 "), parsed(batches, "none"), parsed(batch, "41")) == ("4..6", "none", 41)
    for wanted, text in ((batches, "6..4"), (batches, "all"), (batch, "-1"), (batch, "x"), (batch, "")):
        with pytest.raises(ConfigurationError):
            parsed(wanted, text)


@pytest.mark.parametrize("text", ["", "none", "Connection refused"])
def test_other_words_name_no_problem(text: str) -> None:
    assert problem_in(text) is None


def offered(seen: Picture) -> list[str]:
    assert seen.report is not None
    return [choice.name for choice in choices(seen.report)]


@pytest.mark.parametrize(
    ("seen", "buttons"),
    [
        (picture(), []),
        (picture(settled=False, known=False, row=None, before=None), []),
        (in_doubt(), ["settle"]),
        (in_doubt(driver=ALIVE), ["take_over"]),
        (in_doubt(driver=UNSEEN), ["settle", "take_over"]),
        (owed(), ["accept_replay", "drop"]),
        (halted(HaltCause.OUTCOME_LOST), ["accept_replay", "drop"]),
        (halted(HaltCause.DATABASE_BEHIND), []),
        (halted(HaltCause.OPEN_TRANSACTION), []),
    ],
    ids=str,
)
def test_a_page_offers_what_is_safe_or_about_its_batch(seen: Picture, buttons: list[str]) -> None:
    """Adopting a row, or naming lost batches, needs more than a look at the page."""
    assert offered(seen) == buttons


def test_a_form_is_about_one_state_of_both_sides() -> None:
    """A claim, a decision, another answer of Kafka's or another cause make it another form."""
    found = in_doubt().report
    assert found is not None
    assert found.row is not None
    others: list[RecoveryReport] = [
        replace(found, row=replace(found.row, generation=8)),
        replace(found, row=replace(found.row, decision=43)),
        replace(found, cause=HaltCause.OUTCOME_LOST),
        replace(found, kafka=None),
        replace(found, row=None),
    ]
    assert len({fingerprint(each) for each in (found, *others)}) == len(others) + 1
    assert fingerprint(found) == fingerprint(replace(found, row=replace(found.row, age_s=9)))


def test_errors_without_remedies_have_those_of_the_table() -> None:
    sink = """--transactional-id 'o'"'"'clock'"""
    halt = HaltError(
        transactional_id="o'clock",
        cause=HaltCause.DATABASE_BEHIND,
        database_side="batch 7",
        kafka_side="batch 8",
        reason="Kafka has more",
    )
    assert halt.remedies == remedies(HaltCause.DATABASE_BEHIND, Facts(), sink)
    doubt = InDoubtError(transactional_id="o'clock", prepared="0:1", detail="Kafka was away")
    assert doubt.remedies == remedies(Symptom.IN_DOUBT, Facts(), sink)
    assert all(line in str(error) for error in (halt, doubt) for line in error.remedies)


@pytest.mark.parametrize("problem", TABLE)
def test_a_choice_says_what_to_do_and_what_it_changes(problem: Problem) -> None:
    for choice in TABLE[problem].choices_for(FACTS):
        assert len(choice.effects) == (1 if {choice.kafka, choice.database} == {UNCHANGED} else 2)
        assert (choice.todo != choice.steps) == choice.on_sink
        assert choice.todo[: len(choice.steps)] == choice.steps
