"""What several outputs must hold: each good event on the outputs that it is for, each bad one in the dead letters."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spark_2pc_sink.testing import multiset_difference
from tests.chaos.outputs_events import Event, expected, make_events
from tests.chaos.outputs_job import WRITES
from tests.chaos.verdict import Verdict

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
