"""The comparison and the measurement see what they are there for: a loss, a duplicate, an open transaction, a wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import KafkaException

from spark_2pc_sink import VerifyReport
from spark_2pc_sink.testing import multiset_difference
from spark_2pc_sink.verification.report import BatchResult
from tests.chaos.run import Tally
from tests.chaos.times import Restart, blocked_s, blocked_without_death_s, restart, summary
from tests.chaos.verdict import Verdict
from tests.chaos.watch import Ends, Partition, Standstill, Watch

INPUT = [(1, "a"), (2, "b"), (2, "b"), (3, "c")]
PARTITION = ("rows", 0)


def judged(records: list[tuple[int, str]], rows: list[tuple[int, str]]) -> Verdict:
    verdict = Verdict()
    sides = {"Kafka": records, "PostgreSQL": rows}
    verdict.compared("rows", {side: multiset_difference(found, INPUT) for side, found in sides.items()})
    return verdict


def test_equal_sides_are_good() -> None:
    verdict = judged(INPUT[::-1], INPUT)
    assert (verdict.lost, verdict.twice, verdict.complaints) == (0, 0, [])


@pytest.mark.parametrize("side", ["Kafka", "PostgreSQL"])
def test_a_planted_loss_and_a_planted_duplicate_are_seen_on_either_side(side: str) -> None:
    wrong = [(1, "a"), (1, "a"), (2, "b"), (3, "c")]
    verdict = judged(wrong, INPUT) if side == "Kafka" else judged(INPUT, wrong)
    assert (verdict.lost, verdict.twice) == (1, 1)
    assert [complaint.startswith(f"rows, {side}: ") for complaint in verdict.complaints] == [True]


def test_something_that_was_never_in_the_input_is_seen() -> None:
    verdict = judged([*INPUT, (9, "z")], INPUT)
    assert (verdict.lost, verdict.twice) == (0, 0)
    assert "foreign" in verdict.complaints[0]


def test_an_empty_comparison_shows_nothing() -> None:
    verdict = Verdict()
    verdict.compared("rows", {"Kafka": multiset_difference([], [])})
    assert not Tally(verdict=verdict).good


def test_a_difference_that_verify_finds_and_a_comparison_of_nothing_are_seen() -> None:
    verdict = Verdict()
    same = VerifyReport(
        transactional_id="rows",
        verdict="same",
        records=4,
        rows=4,
        batches=(BatchResult(batch=0, decision=1, records=4),),
    )
    verdict.verified("rows", same)
    assert verdict.complaints == []
    for report in (
        replace(same, verdict="different"),
        replace(same, verdict="inconclusive"),
        replace(same, known=False),
        replace(same, records=0),
    ):
        verdict.verified("rows", report)
    assert [complaint.startswith("rows, verify: ") for complaint in verdict.complaints] == [True] * 4
    assert len(verdict.verdicts) == 5


def test_of_topics_alone_verify_must_find_no_difference() -> None:
    topics = VerifyReport(
        transactional_id="outputs",
        verdict="inconclusive",
        records=4,
        batches=(BatchResult(batch=0, decision=1, records=4),),
    )
    verdict = Verdict()
    verdict.verified("outputs", topics, says="inconclusive")
    assert verdict.complaints == []
    for report in (replace(topics, verdict="different"), replace(topics, records=0), replace(topics, batches=())):
        verdict.verified("outputs", report, says="inconclusive")
    assert len(verdict.complaints) == 3


def test_an_open_transaction_and_a_state_row_in_doubt_are_seen() -> None:
    verdict = Verdict()
    verdict.at_rest({PARTITION: Ends(7, 7)}, {"rows": "done"})
    assert verdict.complaints == []
    verdict.at_rest({PARTITION: Ends(7, 9)}, {"rows": "decided"})
    assert len(verdict.complaints) == 2


def test_a_fault_that_hit_nothing_is_not_good() -> None:
    assert Tally().good
    assert not Tally(missed=["driver-kill"]).good


def test_a_standstill_lasts_while_the_last_stable_offset_stays_where_it_is() -> None:
    watch = Watch("127.0.0.1:1", [PARTITION])
    for begun_s, ends in ((1, Ends(5, 5)), (2, Ends(5, 9)), (3, Ends(5, 12)), (4, Ends(13, 20)), (5, Ends(21, 21))):
        watch.look(begun_s, begun_s + 0.5, {PARTITION: ends})
    # In the look that saw one first, records may have come after its first question: it has begun when the look ends.
    assert watch.standstills == [Standstill("rows", 2.5, 3), Standstill("rows", 4.5, 4)]


class Looks(Watch):
    """What the broker answers to one look after another, or does not; the last answer stays."""

    def __init__(self, *answers: Ends | Exception) -> None:
        super().__init__("127.0.0.1:1", [PARTITION])
        self._answers = list(answers)

    def ends(self) -> dict[Partition, Ends]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {PARTITION: answer}


def test_at_rest_a_broker_that_does_not_answer_at_once_is_asked_again() -> None:
    looks = Looks(KafkaException("a stall"), Ends(5, 9), TimeoutError("another"), Ends(9, 9))
    assert looks.ends_at_rest(30.0) == {PARTITION: Ends(9, 9)}


def test_at_rest_an_open_transaction_is_waited_for_until_the_deadline() -> None:
    assert Looks(Ends(5, 9)).ends_at_rest(0.0) == {PARTITION: Ends(5, 9)}
    with pytest.raises(KafkaException, match="gone"):
        Looks(KafkaException("gone")).ends_at_rest(0.0)


def test_a_restart_is_measured_from_the_first_call_of_recovery_to_settled() -> None:
    events = [
        {"event": "started", "at_s": 10.0},
        {"event": "recovering", "at_s": 11.0},
        {"event": "recovered", "at_s": 11.5, "actions": ["committed 1:2 in Kafka"]},
        {"event": "step", "step": "NOTE", "at_s": 12.0},
    ]
    assert restart("rows", 9.0, events) == Restart("rows", 9.0, 11.0, 11.5)
    events[2]["actions"] = ["noted that Kafka is owed batch 3: aborted there"]
    assert restart("rows", 9.0, events) == Restart("rows", 9.0, 11.0, 12.0)
    assert restart("rows", 9.0, events[:2]) is None


def test_readers_wait_from_the_first_call_until_the_offset_moves() -> None:
    one = Restart("rows", 9.0, 11.0, 11.5)
    stills = [Standstill("rows", 8.5, 11.3), Standstill("rows", 11.4, 11.6), Standstill("orders", 8.0, 15.0)]
    assert blocked_s(one, stills) == pytest.approx(0.3)
    assert blocked_s(one, stills[1:]) is None


def test_without_a_death_readers_wait_from_the_end_of_the_fault() -> None:
    stills = [Standstill("rows", 8.5, 11.3)]
    assert list(blocked_without_death_s([(9.0, 11.0), (20.0, 21.0)], stills, [])) == pytest.approx([0.3])
    assert list(blocked_without_death_s([(9.0, 11.0)], stills, [("rows", 10.0)])) == []
    assert list(blocked_without_death_s([(9.0, 11.0)], stills, [("orders", 10.0)])) == pytest.approx([0.3])


def test_a_summary_has_median_and_maximum() -> None:
    assert summary("x", [0.1, 0.2, 0.9]) == "x: n=3 p50=200 ms max=900 ms"
    assert summary("x", []) == "x: none"
