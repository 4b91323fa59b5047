"""The plan, the table of several outputs, the tally and the command, by themselves."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import cast

import pytest

from spark_2pc_sink import VerifyReport
from spark_2pc_sink.testing import multiset_difference
from spark_2pc_sink.verification.report import BatchResult
from tests.chaos import __main__ as command
from tests.chaos.faults import KINDS, possible
from tests.chaos.jobs import BrokenError, ChaosJob
from tests.chaos.outputs_job import WRITES, Event, expected
from tests.chaos.plan import FILLERS, Planned, plan
from tests.chaos.run import Tally
from tests.chaos.world import JOBS, Ends, Partition, wait_for_end

INPUT = [(1, "a"), (2, "b"), (2, "b"), (3, "c")]
PARTITION = ("rows", 0)


def judged(records: list[tuple[int, str]], rows: list[tuple[int, str]]) -> Tally:
    tally = Tally()
    sides = {"Kafka": records, "PostgreSQL": rows}
    tally.compared("rows", {side: multiset_difference(found, INPUT) for side, found in sides.items()})
    return tally


@pytest.mark.parametrize("side", ["Kafka", "PostgreSQL"])
def test_a_planted_loss_and_a_planted_duplicate_are_seen_on_either_side(side: str) -> None:
    wrong = [(1, "a"), (1, "a"), (2, "b"), (3, "c")]
    tally = judged(wrong, INPUT) if side == "Kafka" else judged(INPUT, wrong)
    assert (tally.lost, tally.twice) == (1, 1)
    assert [complaint.startswith(f"rows, {side}: ") for complaint in tally.complaints] == [True]


def test_an_empty_comparison_shows_nothing() -> None:
    tally = Tally()
    tally.compared("rows", {"Kafka": multiset_difference([], [])})
    assert not tally.good


def test_a_difference_that_verify_finds_and_a_comparison_of_nothing_are_seen() -> None:
    tally = Tally()
    same = VerifyReport(
        transactional_id="rows",
        verdict="same",
        records=4,
        rows=4,
        batches=(BatchResult(batch=0, decision=1, records=4),),
    )
    tally.verified("rows", same)
    assert tally.complaints == []
    for report in (
        replace(same, verdict="different"),
        replace(same, verdict="inconclusive"),
        replace(same, known=False),
        replace(same, records=0),
    ):
        tally.verified("rows", report)
    assert [complaint.startswith("rows, verify: ") for complaint in tally.complaints] == [True] * 4
    assert len(tally.verdicts) == 5


def test_an_open_transaction_and_a_state_row_in_doubt_are_seen() -> None:
    tally = Tally()
    tally.at_rest({PARTITION: Ends(7, 7)}, {"rows": "done"})
    assert tally.complaints == []
    tally.at_rest({PARTITION: Ends(7, 9)}, {"rows": "decided"})
    assert len(tally.complaints) == 2


class SlowStart:
    """A world in which nothing goes wrong, and whose jobs take all of the time to start."""

    jobs: tuple[ChaosJob, ...] = ()

    def __init__(self, folder: Path, **_: object) -> None:
        self.folder = folder

    def __enter__(self) -> SlowStart:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait_for(self, jobs: tuple[str, ...]) -> None: ...

    def finish(self) -> None: ...

    def query(self, _statement: str) -> list[tuple[str, str]]:
        return []

    def ends_at_rest(self, _deadline_s: float) -> dict[Partition, Ends]:
        return {}


def test_a_run_without_a_fault_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a busy machine even the time for a first fault may be over when the jobs have started."""
    monkeypatch.setattr(command, "World", SlowStart)
    monkeypatch.setattr(command, "FIRST_FAULT_S", 0.0)
    assert command.main(["--seed=1", "--broker=both", "--minutes=0.01"]) == 1
    told = capsys.readouterr().out
    for broker in ("kafka", "reference"):
        assert f"WRONG {broker}: no fault was made, because the time was up when all jobs had started" in told
    assert told.endswith("kills=0 faults=0 lost=0 twice=0\n")


class Moving:
    """A job, as its end is waited for, that has finished one more batch at each look until there are enough."""

    name = "rows"

    def __init__(self, last: int, end: int) -> None:
        self.last, self.end, self.looks = last, end, 0

    @property
    def batches(self) -> int:
        self.looks += 1
        return min(self.looks, self.last)

    @property
    def finished(self) -> bool:
        return self.looks >= self.end


def test_the_end_of_the_input_is_waited_for_as_long_as_batches_are_finished() -> None:
    def wait(job: Moving, *, stuck_s: float = 0.0, all_s: float = 60.0) -> None:
        wait_for_end(cast("ChaosJob", job), lambda: None, stuck_s=stuck_s, all_s=all_s)

    wait(Moving(last=9, end=8))
    with pytest.raises(BrokenError, match="rows is stuck: no batch finished for 0 s, 4 before that"):
        wait(Moving(last=4, end=99))
    with pytest.raises(BrokenError, match="rows has not reached the end of its input in 0 s"):
        wait(Moving(last=99, end=99), all_s=0.0)


SHARES = {name: kind.share for name, kind in KINDS.items()}
SEEDS = range(20)


def first(count: int, seed: int, *, rotate: int = 0) -> list[Planned]:
    return list(islice(plan(seed, SHARES, rotate=rotate), count))


def test_the_first_round_has_every_kind() -> None:
    slow = sum(share.slow for share in SHARES.values())
    for seed in SEEDS:
        assert {planned.kind for planned in first(len(KINDS) + slow * FILLERS, seed)} == set(KINDS)


@pytest.mark.parametrize("job", JOBS)
def test_a_job_alone_has_faults(job: str) -> None:
    assert possible((job,))


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


@pytest.mark.parametrize("output", expected([]))
def test_a_row_on_the_wrong_output_one_lost_and_one_twice_are_seen_on_each(output: str) -> None:
    wanted = expected([SOLD, replace(SOLD, id=5, item=8), BAD, replace(BAD, id=6)])
    found = {**wanted, output: [wanted[output][0], wanted[output][0], *wanted[output][2:], ("stranger",)]}
    tally = Tally()
    tally.compared("outputs", {name: multiset_difference(found[name], wanted[name]) for name in wanted})
    assert (tally.lost, tally.twice) == (1, 1)
    (complaint,) = tally.complaints
    assert complaint.startswith(f"outputs, {output}: ")
    assert "stranger" in complaint
