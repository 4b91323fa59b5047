"""Choices: the safest comes first, each says what it changes, and its command is one that there is."""

from __future__ import annotations

import shlex
from dataclasses import replace
from inspect import signature

import pytest

from spark_2pc_sink import recover
from spark_2pc_sink.errors import ConfigurationError, HaltCause
from spark_2pc_sink.options import OperatorDecision, SinkOptions
from spark_2pc_sink.runbook.choice import UNCHANGED, Act, Choice, a_batch, a_range
from spark_2pc_sink.runbook.choices import EFFECTS, choices_of
from spark_2pc_sink.runbook.picture import EVERY_SINK, Picture, Readers
from spark_2pc_sink.runbook.symptoms import Symptom
from tests.unit.runbook.pictures import HANGING, ROW, WAITING, in_doubt, picture

COMMAND = "spark-2pc recover --transactional-id orders --bootstrap-server h:9092 --database postgresql://h/d"
READERS = Readers(hanging=(HANGING,), waiting=(WAITING,))
#: What a person names, for each option.
NAMED = {"accept_loss": "8..9", "batch": 7}
#: The order of each symptom: what looks and what undoes comes before what decides.
ORDER = {
    Symptom.NOTHING_WRONG: [],
    Symptom.DRIVER_ALIVE: ["again", "stop_job", "take_over"],
    Symptom.IN_DOUBT: ["settle"],
    Symptom.OWED: ["start_job", "drop"],
    Symptom.LOST_ROW: ["rebuild"],
    Symptom.NOT_KNOWN: ["other_place", "first_start"],
    Symptom.ELSEWHERE: ["own_cluster", "adopt"],
    Symptom.KAFKA_OUT_OF_REACH: ["repair", "again"],
    Symptom.DATABASE_OUT_OF_REACH: ["repair", "again"],
    Symptom.UNREADABLE: ["newer_version", "restore"],
    Symptom.HANGING_TRANSACTION: ["owner", "abort"],
    Symptom.READERS_STAND_STILL: ["owner", "again", "force_terminate"],
    Symptom.OTHER_CLUSTER: ["own_cluster", "adopt"],
    Symptom.ID_IN_USE: ["other_id", "restore", "pass_over", "adopt"],
    Symptom.OPEN_TRANSACTION: ["restore", "compare", "commit", "abort"],
    Symptom.DATABASE_BEHIND: ["restore", "compare", "accept_loss"],
    Symptom.COMMITS_LOST: ["restore", "compare", "start_job"],
    Symptom.OUTCOME_LOST: ["make_readable", "compare", "accept_replay", "drop"],
    Symptom.TOPIC_REMADE: ["compare", "accept_replay", "drop"],
    Symptom.NOT_THE_FIRST_BATCH: ["change_back", "restore", "compare", "pass_over"],
    Symptom.GAP: ["restore", "compare", "new_checkpoint", "pass_over"],
    Symptom.BATCHES_RESTARTED: ["restore", "compare", "new_checkpoint", "write_again"],
    Symptom.OTHER_BATCH_OWED: ["restore", "drop"],
    Symptom.RESEND_DIFFERS: ["old_job", "accept_replay", "drop"],
    Symptom.REPLAY_DIFFERS: ["old_job", "restore", "keep"],
    Symptom.NOT_HANDED_OVER: ["call_the_sink", "pass_over"],
}


def every_choice() -> list[tuple[Symptom, Choice]]:
    seen = replace(in_doubt("commit"), readers=READERS)
    return [(symptom, choice) for symptom in Symptom for choice in choices_of(symptom, seen)]


def named_for(choice: Choice) -> dict[str, object]:
    return {each.option: NAMED[each.option] for each in choice.inputs}


@pytest.mark.parametrize("symptom", Symptom)
def test_the_safest_comes_first(symptom: Symptom) -> None:
    offered = choices_of(symptom, picture(readers=READERS))
    assert [choice.name for choice in offered] == ORDER[symptom]


@pytest.mark.parametrize("symptom", Symptom)
def test_what_accepts_a_difference_comes_after_what_does_not(symptom: Symptom) -> None:
    accepting = [bool(choice.accepts) for choice in choices_of(symptom, picture(readers=READERS))]
    assert accepting == sorted(accepting)


@pytest.mark.parametrize(("symptom", "choice"), every_choice(), ids=lambda each: getattr(each, "name", str(each)))
def test_each_choice_can_be_carried_out(symptom: Symptom, choice: Choice) -> None:
    """By keywords that there are, or by steps; what looks alone says that nothing changes."""
    del symptom
    given = choice.keywords(named_for(choice))
    if choice.act is Act.RECOVER:
        assert given.keys() <= signature(recover).parameters.keys()
        assert (choice.kafka, choice.database) != (UNCHANGED, UNCHANGED)
        assert choice.command(COMMAND, given).startswith(COMMAND)
    elif choice.act is Act.BY_HAND:
        assert choice.steps
        assert bool(choice.command(COMMAND, given)) is choice.on_sink
        assert not choice.on_sink or given.keys() <= SinkOptions.__dataclass_fields__.keys()
    else:
        assert choice.command(COMMAND, given) == ""
    if choice.act in {Act.COMPARE, Act.LOOK_AGAIN}:
        assert (choice.kafka, choice.database, choice.accepts) == (UNCHANGED, UNCHANGED, "")


@pytest.mark.parametrize(
    ("symptom", "name", "words"),
    [
        (Symptom.IN_DOUBT, "settle", ""),
        (Symptom.DRIVER_ALIVE, "take_over", "--take-over"),
        (Symptom.OWED, "drop", "--batch 7 --drop"),
        (Symptom.OTHER_CLUSTER, "adopt", "--adopt"),
        (Symptom.OPEN_TRANSACTION, "commit", "--adopt --open-transaction commit --batch 7"),
        (Symptom.OPEN_TRANSACTION, "abort", "--adopt --open-transaction abort"),
        (Symptom.DATABASE_BEHIND, "accept_loss", "--adopt --accept-loss 8..9"),
        (Symptom.OUTCOME_LOST, "accept_replay", "--batch 7 --accept-replay"),
        (Symptom.TOPIC_REMADE, "drop", "--batch 7 --drop"),
        (Symptom.RESEND_DIFFERS, "accept_replay", "--batch 7 --accept-replay"),
    ],
)
def test_the_command_of_a_choice(symptom: Symptom, name: str, words: str) -> None:
    """A decision is about the batch of the state row, and no other."""
    (choice,) = [one for one in choices_of(symptom, picture()) if one.name == name]
    assert choice.command(COMMAND, named_for(choice)) == f"{COMMAND} {words}".strip()


@pytest.mark.parametrize(
    ("symptom", "name", "options"),
    [
        (Symptom.GAP, "pass_over", "adopt=True, accept_loss='8..9'"),
        (Symptom.GAP, "new_checkpoint", "adopt=True"),
        (Symptom.BATCHES_RESTARTED, "write_again", "adopt=True"),
        (Symptom.NOT_HANDED_OVER, "pass_over", "adopt=True, accept_loss='8..9'"),
        (Symptom.REPLAY_DIFFERS, "keep", "accept_replay=7"),
    ],
)
def test_the_options_of_a_start(symptom: Symptom, name: str, options: str) -> None:
    """What only the job can carry out, as it knows the batch that comes."""
    (choice,) = [one for one in choices_of(symptom, picture()) if one.name == name]
    assert choice.command(COMMAND, named_for(choice)) == f"DualWriteSink(…, {options})"


def test_a_reason_is_quoted_for_the_shell() -> None:
    (_, drop) = choices_of(Symptom.OWED, picture())
    words = shlex.split(drop.command(COMMAND, {"reason": "the owner's word; $HOME"}))
    assert words[-2:] == ["--reason", "the owner's word; $HOME"]


def test_only_what_needs_no_decision_is_automatic() -> None:
    automatic = {(symptom, choice.name) for symptom, choice in every_choice() if choice.automatic}
    assert automatic == {(Symptom.IN_DOUBT, "settle"), (Symptom.LOST_ROW, "rebuild")}


def test_an_act_that_a_person_has_to_decide_is_not_automatic() -> None:
    """Should a plan ever have one."""
    (choice,) = choices_of(Symptom.IN_DOUBT, in_doubt("commit", "drop"))
    assert not choice.automatic


@pytest.mark.parametrize("kind", EFFECTS)
def test_what_a_recovery_would_do_is_said_for_either_side(kind: str) -> None:
    (choice,) = choices_of(Symptom.IN_DOUBT, in_doubt(kind))  # type: ignore[arg-type]
    assert (choice.kafka, choice.database) == EFFECTS[kind]  # type: ignore[index]


def test_two_acts_are_said_together() -> None:
    (choice,) = choices_of(Symptom.LOST_ROW, in_doubt("rebuild_row", "commit"))
    assert choice.kafka == "the decided transaction is committed: readers see its records"
    assert choice.database == "the state row is made again from its history; the state row says done"


def test_without_a_batch_no_batch_is_named() -> None:
    """The row of an id that no batch was written under."""
    row = replace(ROW, batch_id=None)
    (_, _, keep) = choices_of(Symptom.REPLAY_DIFFERS, picture(before=row, row=row))
    assert keep.options == {}
    (_, drop) = choices_of(Symptom.OWED, Picture(transactional_id="orders"))
    assert drop.options == {"decision": OperatorDecision.DROP}


def test_what_is_named_is_checked() -> None:
    assert (a_range(" 4..6 "), a_range("none"), a_batch("41")) == ("4..6", "none", 41)
    for parse, text in ((a_range, "6..4"), (a_range, "all"), (a_batch, "-1"), (a_batch, "x"), (a_batch, "")):
        with pytest.raises(ConfigurationError):
            parse(text)


def test_each_cause_has_choices() -> None:
    assert all(choices_of(Symptom(cause.value), picture()) for cause in HaltCause)


def test_where_no_sink_could_be_read_the_command_is_called_again() -> None:
    """Another look would find sinks in place of the picture that it is about."""
    seen = Picture(transactional_id=EVERY_SINK, kafka_problem="refused")
    assert [choice.name for choice in choices_of(Symptom.KAFKA_OUT_OF_REACH, seen)] == ["repair"]
