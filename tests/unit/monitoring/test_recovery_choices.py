"""Recovery choices: what is safe is suggested, taking over never, and a word is about one batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.monitoring.dashboard.recovery_choices import choices, fingerprint
from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.recovery.report import RecoveryReport
from tests.unit.monitoring.samples import ALIVE, UNKNOWN, halted, in_doubt, owed, row, sink


def offered(found: RecoveryReport) -> list[str]:
    return [choice.value for choice in choices(found)]


@pytest.mark.parametrize(
    "found",
    [sink(), sink(settled=False, elsewhere=True), sink(settled=False, known=False, row=None, before=None)],
    ids=["settled", "elsewhere", "unknown"],
)
def test_where_there_is_nothing_to_choose_nothing_is_offered(found: RecoveryReport) -> None:
    assert offered(found) == []


def test_a_sink_whose_driver_is_dead_is_settled_as_recovery_does_by_itself() -> None:
    (settle,) = choices(in_doubt())
    assert (settle.value, settle.keywords, settle.suggested, settle.reason_needed) == ("settle", {}, True, False)
    assert "would commit the transaction 5:1" in settle.consequence


def test_a_driver_that_lives_is_stopped_only_by_who_chooses_that() -> None:
    (take_over,) = choices(in_doubt(driver=ALIVE))
    assert (take_over.value, take_over.keywords) == ("take-over", {"take_over": True})
    assert not take_over.suggested


def test_a_driver_that_may_live_can_be_left_to_recovery_or_stopped() -> None:
    """Recovery then goes by the age of the row, and refuses where it is young."""
    assert offered(in_doubt(driver=UNKNOWN)) == ["settle", "take-over"]


@pytest.mark.parametrize("found", [owed(), halted(HaltCause.OUTCOME_LOST), halted(HaltCause.TOPIC_REMADE)])
def test_a_word_about_a_batch_names_it_and_needs_a_reason(found: RecoveryReport) -> None:
    again, drop = choices(found)
    assert again.keywords == {"decision": OperatorDecision.ACCEPT_REPLAY, "batch": 41}
    assert drop.keywords == {"decision": OperatorDecision.DROP, "batch": 41}
    assert all(choice.reason_needed and not choice.suggested for choice in (again, drop))


@pytest.mark.parametrize("cause", sorted(set(HaltCause) - {HaltCause.OUTCOME_LOST, HaltCause.TOPIC_REMADE}))
def test_what_needs_more_than_a_look_is_left_to_the_runbook(cause: HaltCause) -> None:
    assert offered(halted(cause)) == []


def test_nobody_decides_beside_another_state_of_both_sides() -> None:
    """A claim, a decision, another answer of Kafka's or another cause make it another form."""
    found = in_doubt()
    assert found.row is not None
    assert found.kafka is not None
    others = [
        sink(),
        replace(found, row=replace(found.row, generation=8)),
        replace(found, row=replace(found.row, decision=43)),
        replace(found, cause=HaltCause.OUTCOME_LOST),
        replace(found, kafka=None),
        replace(found, row=None),
    ]
    assert len({fingerprint(each) for each in (found, *others)}) == len(others) + 1
    assert fingerprint(found) == fingerprint(in_doubt()) == fingerprint(replace(found, row=replace(found.row, age_s=9)))
    assert row().batch_id == found.row.batch_id
