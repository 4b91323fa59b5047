"""The conversation, for each way that it can go; both sides as it sees them; and the one name of each picture."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any
from unittest import mock

import pytest

from jdbc_state import Actor
from spark_2pc_sink.choices import TABLE, HaltCause, Symptom
from spark_2pc_sink.choices.symptoms import FORCE_TERMINATE
from spark_2pc_sink.errors import ConfigurationError, TakeOverRefusedError
from spark_2pc_sink.extras import MissingExtraError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.recovery.report import StatusReport
from spark_2pc_sink.runbook import sides as sides_module
from spark_2pc_sink.runbook.conversation import ANSWERS_MAX, Conversation, IncidentLog, RunbookEnd, needs_care
from spark_2pc_sink.runbook.sides import (
    OPEN_MS_MIN,
    BothSides,
    Compared,
    Picture,
    Readers,
    find_blocking_transactions,
    pictures_of,
)
from spark_2pc_sink.transactions import TransactionDetails, TransactionListing
from tests.harness.halts import halt
from tests.unit.runbook.fake_sides import (
    ALIVE,
    BLOCKED,
    COMMAND,
    DEAD,
    HANGING,
    ROW,
    UNSEEN,
    FakeSides,
    Script,
    halted,
    in_doubt,
    owed,
    picture,
    report,
)

ME = Actor(os_user="me", host="here", program="spark-2pc")
REFUSED = TakeOverRefusedError(transactional_id="orders", driver="its driver lives", remedies=(), report=None)


class Walk:
    """One conversation that has ended."""

    def __init__(self, sides: FakeSides, *answers: str, transactional_id: str | None = "orders", **how: Any) -> None:
        self.sides = sides
        self.script = Script(answers)
        self.protocol = IncidentLog(who=ME, now=lambda: datetime(2026, 11, 24, tzinfo=timezone.utc))
        self.ending = Conversation(sides, self.script, self.protocol, **how).run(transactional_id)
        self.said = "\n".join(self.script.said)

    def noted(self, kind: str) -> list[dict[str, Any]]:
        return [step.fields for step in self.protocol.steps if step.kind == kind]


@pytest.mark.parametrize(
    "seen",
    [
        *(halted(cause) for cause in HaltCause),
        in_doubt(),
        in_doubt(driver=ALIVE),
        owed(),
        in_doubt("rebuild_row", before=None),
        picture(readers=Readers(hanging=(HANGING,))),
        picture(readers=BLOCKED),
        Picture(transactional_id="orders", kafka_problem="refused"),
    ],
    ids=str,
)
def test_every_symptom_is_shown_with_its_choices_and_can_be_left(seen: Picture) -> None:
    walk = Walk(FakeSides(seen), "stop")
    symptom = seen.problem
    assert walk.noted("saw")[0]["symptom"] == symptom.value
    assert TABLE[symptom].title in walk.said
    for choice in seen.choices:
        assert f"  {choice.name}: {choice.title}\n      {choice.effects[0]}" in walk.said
    assert f"More: RUNBOOK.md#{symptom.value}" in walk.said
    assert walk.sides.calls == []
    assert walk.ending is (RunbookEnd.OUT_OF_REACH if symptom is Symptom.KAFKA_OUT_OF_REACH else RunbookEnd.LEFT)


def test_what_is_confirmed_is_done_and_verified() -> None:
    walk = Walk(FakeSides(in_doubt(), picture()), "settle", "yes")
    assert walk.sides.calls == [{}]
    assert walk.sides.comparisons == [False]
    assert walk.ending is RunbookEnd.SETTLED
    assert "  - would commit 5:1" in walk.said
    assert "  In the history:\n  commit of orders by me on here" in walk.said
    assert "the same: 9 records" in walk.said
    assert [step.kind for step in walk.protocol.steps] == [
        "saw",
        "answered",
        "answered",
        "did",
        "saw",
        "verified",
        "ended",
    ]
    assert walk.noted("did")[0]["command"] == COMMAND


def test_the_protocol_is_saved_after_each_step() -> None:
    saved: list[list[str]] = []
    protocol = IncidentLog(who=ME, save=lambda given: saved.append([step.kind for step in given.steps]))
    protocol.note("saw", "in doubt")
    protocol.note("did", "committed")
    assert saved == [["saw"], ["saw", "did"]]


@pytest.mark.parametrize("answers", [("settle", "no"), ("settle", ""), ("settle",), (), ("stop",)])
def test_without_a_yes_nothing_is_done(answers: tuple[str, ...]) -> None:
    """A no goes back to the choices, and the end of the answers changes nothing and says so."""
    walk = Walk(FakeSides(in_doubt()), *answers)
    assert walk.sides.calls == []
    assert walk.ending is RunbookEnd.LEFT
    assert walk.said.count("nothing was changed") == (answers != ("stop",))


def test_a_question_is_not_asked_for_ever() -> None:
    walk = Walk(FakeSides(in_doubt()), *["what?"] * 100)
    assert len(walk.script.questions) == ANSWERS_MAX


def test_an_accepted_difference_needs_its_reason() -> None:
    """The reason goes into the table of actions with the decision; an empty one is asked for again."""
    walk = Walk(FakeSides(owed(), picture()), "drop", "", "the consumer has it from the old topic", "yes")
    reason = "the consumer has it from the old topic"
    assert walk.sides.calls == [{"batch": 7, "decision": OperatorDecision.DROP, "reason": reason}]
    assert walk.noted("did")[0]["keywords"] == {"batch": 7, "decision": "drop", "reason": reason}
    assert walk.noted("did")[0]["command"] == f"{COMMAND} --batch 7 --drop --reason '{reason}'"


def test_what_recovery_refuses_is_said_and_chosen_anew() -> None:
    sides = FakeSides(halted(HaltCause.DATABASE_BEHIND))
    sides.raises = [ConfigurationError(option="accept_loss", value="8", rule="it names two", remedy="name '8..9'")]
    walk = Walk(sides, "accept_loss", "8", "given up", "yes", "stop")
    assert "it names two; name '8..9'" in walk.said
    assert walk.ending is RunbookEnd.LEFT
    assert walk.noted("failed")[0]["error"] == "ConfigurationError"


def test_a_halt_of_the_recovery_is_the_next_symptom() -> None:
    sides = FakeSides(in_doubt(), halted(HaltCause.ID_IN_USE))
    sides.raises = [halt(HaltCause.OPEN_TRANSACTION)]
    walk = Walk(sides, "settle", "yes", "stop")
    assert [seen["symptom"] for seen in walk.noted("saw")] == ["in_doubt", "open_transaction"]


def test_an_id_with_an_open_transaction_is_not_taken_over_before_somebody_says_how_that_ends() -> None:
    sides = FakeSides(halted(HaltCause.ID_IN_USE))
    sides.planned = report(cause=HaltCause.OPEN_TRANSACTION, settled=False)
    walk = Walk(sides, "adopt", "commit", "7", "its rows are there", "yes", "stop")
    assert [seen["symptom"] for seen in walk.noted("saw")][:2] == ["id_in_use", "open_transaction"]
    assert walk.sides.calls == [
        {"adopt": True, "open_transaction": "commit", "batch": 7, "reason": "its rows are there"}
    ]


def test_a_living_driver_is_taken_over_only_by_a_word_of_its_own() -> None:
    for answer, calls in (("take over", [{}, {"take_over": True}]), ("yes", [{}]), ("no", [{}])):
        sides = FakeSides(in_doubt(), picture())
        sides.raises = [REFUSED]
        walk = Walk(sides, "settle", "yes", answer)
        assert "its driver lives" in walk.said
        assert walk.sides.calls == calls
        assert [did["command"] for did in walk.noted("did")] == [f"{COMMAND} --take-over"] * (len(calls) - 1)


def test_a_healthy_sink_is_said_to_be_that_without_a_question() -> None:
    """And how the error of its job is told, which neither side shows."""
    walk = Walk(FakeSides(picture()))
    assert walk.script.questions == []
    assert "orders: nothing is wrong (nothing_wrong)" in walk.said
    assert "spark-2pc runbook --transactional-id orders --cause 'THE LINE OF THE ERROR'" in walk.said
    assert (walk.ending, walk.sides.calls, walk.sides.comparisons) == (RunbookEnd.SETTLED, [], [])


def test_a_transaction_that_hangs_is_aborted_when_that_is_confirmed() -> None:
    ill = picture(readers=Readers(hanging=(HANGING,)))
    assert Walk(FakeSides(ill), "abort", "no", "stop").sides.aborted == 0
    walk = Walk(FakeSides(ill, picture()), "abort", "yes")
    assert (walk.sides.aborted, walk.ending) == (1, RunbookEnd.SETTLED)
    assert "aborted orders-0" in walk.said


@pytest.mark.parametrize(
    ("seen", "answers", "ending"),
    [
        (in_doubt(), ("settle", "yes"), RunbookEnd.LEFT),
        (owed(), ("drop", "given up", "yes"), RunbookEnd.SETTLED),
    ],
    ids=str,
)
def test_a_difference_that_nobody_has_accepted_is_left_to_a_person(
    seen: Picture, answers: tuple[str, ...], ending: RunbookEnd
) -> None:
    sides = FakeSides(seen, picture())
    sides.compared = Compared("different", "2 rows without a record in Kafka")
    walk = Walk(sides, *answers)
    assert walk.ending is ending
    assert walk.noted("verified")[0]["verdict"] == "different"


# --- without a person --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "looks",
    [(in_doubt(), picture()), (in_doubt("rebuild_row", "abort", before=None), picture())],
    ids=["in_doubt", "lost_row"],
)
def test_what_is_always_safe_is_done_without_a_question(looks: tuple[Picture, ...]) -> None:
    walk = Walk(FakeSides(*looks), automatic=True)
    assert (walk.script.questions, walk.sides.calls, walk.ending) == ([], [{}], RunbookEnd.SETTLED)
    assert walk.sides.comparisons == [False]


@pytest.mark.parametrize("seen", [owed(), in_doubt(driver=ALIVE), *(halted(cause) for cause in HaltCause)], ids=str)
def test_without_a_person_nothing_is_decided(seen: Picture) -> None:
    walk = Walk(FakeSides(seen), automatic=True)
    assert (walk.script.questions, walk.sides.calls, walk.ending) == ([], [], RunbookEnd.LEFT)
    assert "call spark-2pc runbook without --yes" in walk.said


# --- many sinks --------------------------------------------------------------------------------------------------


def test_of_many_sinks_those_are_seen_through_that_need_somebody() -> None:
    well = replace(picture(), transactional_id="well")
    walk = Walk(FakeSides((well, in_doubt()), picture()), transactional_id=None, automatic=True)
    assert "2 sinks, 1 in need of attention" in walk.said
    assert walk.sides.calls == [{}]
    assert walk.ending is RunbookEnd.SETTLED


@pytest.mark.parametrize(("there", "ending"), [((), RunbookEnd.NOT_KNOWN), ((picture(),), RunbookEnd.SETTLED)])
def test_a_database_without_any_sink_is_not_called_well(there: tuple[Picture, ...], ending: RunbookEnd) -> None:
    """It may be another one than that of the jobs."""
    walk = Walk(FakeSides(there), transactional_id=None, automatic=True)
    assert walk.ending is ending
    assert ("No sink has a state row here. Compare" in walk.said) == (not there)


def test_what_is_accepted_for_one_sink_is_not_for_the_next() -> None:
    well, other = picture(), replace(in_doubt(), transactional_id="other")
    sides = FakeSides((owed(), other), well, replace(well, transactional_id="other"))
    sides.compared = Compared("different", "2 rows without a record in Kafka")
    walk = Walk(sides, "drop", "given up", "yes", "settle", "yes", transactional_id=None)
    assert [bool(verified["accepted"]) for verified in walk.noted("verified")] == [True, False]
    assert walk.ending is RunbookEnd.LEFT


CONNECTIONS: dict[str, Any] = {
    "kafka": {"bootstrap.servers": "h:9092"},
    "database": "postgresql://me:secret@h/d",
    "state_schema": "ours",
}


def listed(transactional_id: str) -> TransactionListing:
    return TransactionListing(transactional_id, coordinator=0, producer_id=8, state="Ongoing")


def details(transactional_id: str, *topics: str) -> TransactionDetails:
    return TransactionDetails(
        coordinator=0,
        transactional_id=transactional_id,
        producer_id=8,
        producer_epoch=0,
        state="Ongoing",
        timeout_ms=2**31 - 1,
        start_time_ms=0,
        duration_ms=100_000,
        partitions=tuple(TopicPartition(topic, 0) for topic in topics),
    )


def tool(**answers: Any) -> mock.Mock:
    """A transaction tool that finds nothing but what is given."""
    usual = {"find_hanging": (), "list_transactions": (), "describe": None}
    made = mock.Mock(**{f"{name}.return_value": value for name, value in {**usual, **answers}.items()})
    made.__enter__ = mock.Mock(return_value=made)
    made.__exit__ = mock.Mock(return_value=None)
    return made


@pytest.mark.parametrize("asked", [None, "orders"])
def test_a_side_out_of_reach_is_a_picture_too(asked: str | None) -> None:
    """Where no sink was found because nothing could be read."""
    (found,) = pictures_of(StatusReport(database_problem="refused"), asked)
    assert (found.transactional_id, found.problem) == (asked or "every sink", Symptom.DATABASE_OUT_OF_REACH)
    (found,) = pictures_of(StatusReport(sinks=(report(),), kafka_problem="refused"), asked)
    assert found.problem is Symptom.KAFKA_OUT_OF_REACH


def test_open_transactions_of_others_are_shown_that_reach_into_the_topics() -> None:
    """The sink's own is no news, and one in another topic holds up nobody here."""
    asked = tool(list_transactions=(listed("orders"), listed("billing"), listed("elsewhere")))
    asked.describe.side_effect = lambda each: details(each, "orders" if each == "billing" else "invoices")
    found = find_blocking_transactions(asked, {"orders"}, transactional_id="orders")
    assert found.owners == ("billing",)
    assert asked.describe.call_count == 2
    (wanted,) = asked.list_transactions.call_args.args
    assert (wanted.states, wanted.running_longer_than_ms) == (("Ongoing",), OPEN_MS_MIN)


def test_readers_are_looked_at_for_one_sink_that_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """For many sinks that would take too long, and for one in doubt its own transaction comes first."""
    asked = tool(find_hanging=(HANGING,))
    monkeypatch.setattr(sides_module, "TransactionTool", mock.Mock(return_value=asked))
    looked_at = mock.Mock(return_value=StatusReport(sinks=(report(),)))
    monkeypatch.setattr(sides_module, "status", looked_at)
    sides = BothSides(CONNECTIONS)
    (found,) = sides.look("orders")
    assert found.problem is Symptom.HANGING_TRANSACTION
    assert looked_at.call_args.kwargs["state_schema"] == "ours"
    assert [one.readers for one in sides.look(None)] == [Readers()]
    looked_at.return_value = StatusReport(sinks=(report(settled=False),))
    assert [one.readers for one in sides.look("orders")] == [Readers()]


def test_a_step_that_is_a_command_names_the_cluster() -> None:
    """Pasted without it, it would ask for --bootstrap-server, or end a transaction of another cluster."""
    servers = CONNECTIONS["kafka"]["bootstrap.servers"]
    bare = f"{FORCE_TERMINATE} --transactional-id 'of a shop'"
    sides = BothSides(CONNECTIONS)
    assert sides.with_cluster(bare) == f"{FORCE_TERMINATE} --bootstrap-server {servers} --transactional-id 'of a shop'"
    assert sides.with_cluster("restart the application") == "restart the application"


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError(option="table", value=None, rule="nobody has noted it", remedy="pass it"),
        MissingExtraError("confluent-kafka", "verify"),
    ],
)
def test_what_cannot_be_compared_is_a_result_too(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The recovery before it stands."""
    monkeypatch.setattr(sides_module, "verify", mock.Mock(side_effect=error))
    found = BothSides(CONNECTIONS).compare("orders", open_transaction=False)
    assert found.verdict == "inconclusive"
    assert str(error) in found.text


@pytest.mark.parametrize("cause", HaltCause)
def test_each_cause_is_a_problem_of_its_name(cause: HaltCause) -> None:
    """What status shows, and what only the job meets and a person tells."""
    told = cause if TABLE[cause].job_only else None
    shown = owed if TABLE[cause].about_owed else picture
    assert (shown(told=told) if told else halted(cause)).problem is cause


@pytest.mark.parametrize(
    ("seen", "symptom"),
    [
        (picture(), Symptom.NOTHING_WRONG),
        (picture(driver=ALIVE), Symptom.NOTHING_WRONG),
        (in_doubt(driver=ALIVE), Symptom.DRIVER_ALIVE),
        (in_doubt(driver=UNSEEN, row=replace(ROW, age_s=10.0)), Symptom.DRIVER_ALIVE),
        (in_doubt(driver=UNSEEN), Symptom.IN_DOUBT),
        (in_doubt(driver=DEAD), Symptom.IN_DOUBT),
        (in_doubt(driver=None), Symptom.IN_DOUBT),
        (in_doubt("abort", status="done"), Symptom.IN_DOUBT),
        (in_doubt("abort", status="owed"), Symptom.IN_DOUBT),
        (in_doubt("rebuild_row", before=None), Symptom.LOST_ROW),
        (owed(), Symptom.OWED),
        (owed(driver=ALIVE), Symptom.DRIVER_ALIVE),
        (picture(known=False, before=None, row=None), Symptom.NOT_KNOWN),
        (Picture(transactional_id="orders"), Symptom.NOT_KNOWN),
        (picture(elsewhere=True, settled=False, cause=HaltCause.OTHER_CLUSTER), Symptom.ELSEWHERE),
        (picture(HaltCause.OTHER_CLUSTER, elsewhere=True, cause=HaltCause.OTHER_CLUSTER), HaltCause.OTHER_CLUSTER),
        (replace(picture(), kafka_problem="refused"), Symptom.KAFKA_OUT_OF_REACH),
        (replace(picture(), kafka_problem="refused", database_problem="too"), Symptom.DATABASE_OUT_OF_REACH),
        (Picture(transactional_id="orders", unreadable="database: status 'new'"), Symptom.UNREADABLE),
        (picture(readers=replace(BLOCKED, hanging=(HANGING,))), Symptom.HANGING_TRANSACTION),
        (picture(readers=BLOCKED), Symptom.READERS_BLOCKED),
        # What is shown comes before what is told: a cause of another night, or one that is settled, chooses nothing.
        (in_doubt(told=HaltCause.GAP), Symptom.IN_DOUBT),
        (halted(HaltCause.DATABASE_BEHIND, told=HaltCause.COMMITS_LOST), HaltCause.DATABASE_BEHIND),
        (owed(told=HaltCause.GAP), Symptom.OWED),
        (picture(told=HaltCause.RESEND_DIFFERS), Symptom.NOTHING_WRONG),
        (picture(told=HaltCause.DATABASE_BEHIND), Symptom.NOTHING_WRONG),
    ],
    ids=str,
)
def test_a_picture_has_one_name(seen: Picture, symptom: Symptom) -> None:
    assert seen.problem is symptom


@pytest.mark.parametrize(
    ("seen", "cared_for"),
    [
        (picture(), False),
        (in_doubt("abort", status="done", driver=ALIVE), False),
        (picture(elsewhere=True, cause=HaltCause.OTHER_CLUSTER), False),
        (in_doubt(driver=ALIVE), True),
        (in_doubt(), True),
        (Picture(transactional_id="every sink", database_problem="refused"), True),
    ],
    ids=str,
)
def test_a_sink_at_work_or_of_another_cluster_needs_nobody(seen: Picture, cared_for: bool) -> None:
    assert needs_care(seen) is cared_for
