"""The plan, the table of several outputs, the verdict and the command, by themselves."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaException

from spark_2pc_sink import VerifyReport
from spark_2pc_sink.testing import multiset_difference
from spark_2pc_sink.verification.report import BatchResult
from tests.chaos import command
from tests.chaos.command import main
from tests.chaos.faults import KINDS, possible
from tests.chaos.jobs import ChaosJob
from tests.chaos.outputs_job import WRITES, Event, expected, make_events
from tests.chaos.plan import FILLERS, Planned, plan
from tests.chaos.run import Run, Tally, Verdict
from tests.chaos.watch import (
    Ends,
    Partition,
    Restart,
    Standstill,
    Watch,
    blocked_s,
    blocked_without_death_s,
    restart,
    summary,
)
from tests.chaos.world import JOBS

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


class SlowStart:
    """A world in which nothing goes wrong, and whose jobs take all of the time to start."""

    jobs: tuple[ChaosJob, ...] = ()
    watch = SimpleNamespace(standstills=[])

    def __init__(self, folder: Path, **_: object) -> None:
        self.folder = folder

    def __enter__(self) -> SlowStart:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait_for(self, jobs: tuple[str, ...]) -> None: ...

    def finish(self) -> None: ...

    def query(self, _statement: str) -> list[tuple[str, str]]:
        return []

    def watched(self) -> SimpleNamespace:
        return SimpleNamespace(ends_at_rest=lambda _deadline_s: {})


def test_a_run_without_a_fault_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a busy machine even the time for a first fault may be over when the jobs have started."""
    monkeypatch.setattr(command, "World", SlowStart)
    monkeypatch.setattr(command, "FIRST_FAULT_S", 0.0)
    assert main(["--seed=1", "--broker=both", "--minutes=0.01"]) == 1
    told = capsys.readouterr().out
    for broker in ("kafka", "reference"):
        assert f"WRONG {broker}: no fault was made, because the time was up when all jobs had started" in told
    assert told.endswith("kills=0 faults=0 lost=0 twice=0\n")


def test_a_start_that_took_all_of_the_time_leaves_some_for_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[str] = []

    def strike(_run: object, planned: Planned) -> None:
        struck.append(planned.kind)
        monkeypatch.setattr(command, "FIRST_FAULT_S", 0.0)

    monkeypatch.setattr(command, "World", SlowStart)
    monkeypatch.setattr(Run, "_strike", strike)
    main(["--seed=1", "--broker=kafka", "--minutes=0.01"])
    assert len(struck) == 1


def test_a_standstill_lasts_while_the_last_stable_offset_stays_where_it_is() -> None:
    watch = Watch("127.0.0.1:1", [PARTITION])
    for begun_s, ends in ((1, Ends(5, 5)), (2, Ends(5, 9)), (3, Ends(5, 12)), (4, Ends(13, 20)), (5, Ends(21, 21))):
        watch.observe(begun_s, begun_s + 0.5, {PARTITION: ends})
    # In the look that saw one first, records may have come after its first question: it has begun when the look ends.
    assert watch.standstills == [Standstill("rows", 2.5, 3), Standstill("rows", 4.5, 4)]


class ScriptedWatch(Watch):
    """Answers with these, one after the other; the last one is repeated."""

    def __init__(self, *answers: Ends | Exception) -> None:
        super().__init__("127.0.0.1:1", [PARTITION])
        self._answers = list(answers)

    def ends(self) -> dict[Partition, Ends]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {PARTITION: answer}


def test_at_rest_a_broker_that_does_not_answer_at_once_is_asked_again() -> None:
    watch = ScriptedWatch(KafkaException("a stall"), Ends(5, 9), TimeoutError("another"), Ends(9, 9))
    assert watch.ends_at_rest(30.0) == {PARTITION: Ends(9, 9)}


def test_at_rest_an_open_transaction_is_waited_for_until_the_deadline() -> None:
    assert ScriptedWatch(Ends(5, 9)).ends_at_rest(0.0) == {PARTITION: Ends(5, 9)}
    with pytest.raises(KafkaException, match="gone"):
        ScriptedWatch(KafkaException("gone")).ends_at_rest(0.0)


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--jobs=rows,order"], "unknown job: order; must be one of rows, orders, outputs"),
        (["--jobs=orders,outputs"], "orders and outputs cannot run together"),
        (["--jobs=outputs", "--faults=driver-kill"], "unknown fault: driver-kill; must be one of spark-driver-kill"),
    ],
)
def test_what_cannot_run_is_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        main(arguments)


SHARES = {name: kind.share for name, kind in KINDS.items()}
SEEDS = range(20)


def first(count: int, seed: int, *, rotate: int = 0) -> list[Planned]:
    return list(islice(plan(seed, SHARES, rotate=rotate), count))


def test_a_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert first(300, 7) == first(300, 7)
    assert first(300, 7) != first(300, 8)


def test_the_first_round_has_every_kind() -> None:
    slow = sum(share.slow for share in SHARES.values())
    for seed in SEEDS:
        assert {planned.kind for planned in first(len(KINDS) + slow * FILLERS, seed)} == set(KINDS)


def test_two_halves_of_the_first_round_have_every_kind() -> None:
    """`--broker both` begins the second part where half of the round is over."""
    half, slow = len(KINDS) // 2, sum(share.slow for share in SHARES.values())
    for seed in SEEDS:
        parts = [first(half + slow * FILLERS, seed, rotate=rotate) for rotate in (0, half)]
        assert {planned.kind for part in parts for planned in part} == set(KINDS)


def test_while_a_driver_starts_spark_the_other_job_is_killed() -> None:
    planned = first(500, 3)
    fillers = {name for name, share in SHARES.items() if share.filler}
    for at, one in enumerate(planned[:-FILLERS]):
        if SHARES[one.kind].slow:
            assert {other.kind for other in planned[at + 1 : at + 1 + FILLERS]} <= fillers


def test_every_kind_says_whom_it_harms_and_a_job_alone_has_faults() -> None:
    for kind in KINDS.values():
        assert set(kind.jobs) <= set(JOBS)
        assert kind.share.weight > 0
    for job in JOBS:
        assert possible((job,)) == {name: kind for name, kind in KINDS.items() if job in kind.jobs} != {}
    assert possible(tuple(JOBS)) == KINDS


SOLD = Event(1, item=7, note="sold", paid=True, gone=False, lines=[{"sku": "a", "n": 2}, {"sku": "b", "n": 3}])
GONE = Event(2, item=7, note="gone", paid=False, gone=True)
BAD = Event(3, item=7, note="refused", paid=True, gone=False, lines=[{"sku": "c", "n": 1}])


def test_each_output_has_its_part_of_the_events() -> None:
    assert expected([SOLD, GONE, BAD]) == {
        "topic outputs": [("7", (1, "sold")), ("7", None)],
        "topic outputs.lines": [("a", 1, 2), ("b", 1, 3)],
        "topic outputs.paid": [("1", "sold")],
        "table outputs_log": [(1, 7, "sold"), (2, 7, "gone")],
        "table outputs_state": [],
        "table outputs_lines": [(1, "a", 2), (1, "b", 3)],
        "topic of dead letters": [(3,)],
        "table of dead letters": [(3,)],
    }
    assert expected([GONE, replace(SOLD, id=4)])["table outputs_state"] == [(7, 4, "sold")]


def test_every_output_of_the_sink_is_compared() -> None:
    named = [f"topic {output['topic']}" if "topic" in output else f"table {output['table']}" for output in WRITES]
    assert list(expected([])) == [*named, "topic of dead letters", "table of dead letters"]


def test_all_kinds_of_bad_events_are_drawn() -> None:
    drawn = [make_events(random.Random(seed), 0, 5, bad=True) for seed in range(30)]
    assert {sum(event.bad for event in events) for events in drawn} == {1}
    bad = [event for events in drawn for event in events if event.bad]
    kinds = {("refused" in event.note, "\x00" in event.note) for event in bad}
    assert kinds == {(True, False), (False, True), (False, False)}
    assert not any(event.bad for event in make_events(random.Random(1), 0, 50, bad=False))


@pytest.mark.parametrize("output", expected([]))
def test_a_row_on_the_wrong_output_one_lost_and_one_twice_are_seen_on_each(output: str) -> None:
    wanted = expected([SOLD, replace(SOLD, id=5, item=8), BAD, replace(BAD, id=6)])
    found = {**wanted, output: [wanted[output][0], wanted[output][0], *wanted[output][2:], ("stranger",)]}
    verdict = Verdict()
    verdict.compared("outputs", {name: multiset_difference(found[name], wanted[name]) for name in wanted})
    assert (verdict.lost, verdict.twice) == (1, 1)
    (complaint,) = verdict.complaints
    assert complaint.startswith(f"outputs, {output}: ")
    assert "stranger" in complaint
