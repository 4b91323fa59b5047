"""The verdict, the gate between two batches, and what a load answers."""

from __future__ import annotations

import io
import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.soak.child import GO_ON, HOLD, STOP, Gate, serve
from tests.soak.verdict import JUDGED_SAMPLES_MIN, Measure, Sample, judge

HANDLES = Measure("handles", growth_max=3)
SAMPLES = 40


def series(value: Callable[[int], float], *, samples: int = SAMPLES) -> list[Sample]:
    """Samples ten seconds apart, of a load that writes a hundred batches in each ten seconds."""
    return [Sample(10.0 * at, {"bare": 100 * at}, {"handles": value(at)}) for at in range(samples)]


@pytest.mark.parametrize("step", [0.2, 1, 50])
def test_what_grows_with_every_sample_fails(step: float) -> None:
    verdict = judge(HANDLES, series(lambda at: 17 + step * at))
    assert verdict.growth == pytest.approx(step * (SAMPLES / 2 - 1))
    assert verdict.reason == "grows by more than 3"


def test_a_leak_that_begins_in_the_judged_half_is_seen() -> None:
    assert not judge(HANDLES, series(lambda at: max(0, at - SAMPLES // 2))).passed


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_hide_a_leak(seed: int) -> None:
    """Nor does a last sample that is low by chance."""
    chance = random.Random(seed)
    assert not judge(HANDLES, series(lambda at: at + chance.uniform(-2, 2) - 30 * (at == SAMPLES - 1))).passed


def test_a_saw_is_not_growth_and_a_stair_is() -> None:
    assert judge(HANDLES, series(lambda at: at % 5)).passed
    assert not judge(HANDLES, series(lambda at: at // 5 * 2)).passed


def test_a_level_holds_for_every_sample() -> None:
    """Also in the half that is not judged for growth, and for a single one."""
    rows = Measure("handles", growth_max=0, level_max=2)
    assert judge(rows, series(lambda _: 2)).passed
    assert judge(rows, series(lambda at: 3 if at == 1 else 2)).reason == "above 2"


@pytest.mark.parametrize("samples", [0, 1, JUDGED_SAMPLES_MIN, 2 * JUDGED_SAMPLES_MIN - 2])
def test_few_samples_prove_nothing(samples: int) -> None:
    assert "are needed" in judge(HANDLES, series(lambda _: 1, samples=samples)).reason


#: Long for a thread that does nothing but count.
MOMENT_S = 0.05


class Counter(threading.Thread):
    """A load whose batches are numbers."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.gate = Gate(lambda: not self.is_alive())
        self.batches = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            self.batches += 1
            self.gate.after_batch()

    def stop(self) -> None:
        self.stopping.set()
        self.join()

    def sample(self, used: bool) -> dict[str, Any]:
        return {"batches": self.batches, "used": used}


def test_a_load_stands_still_while_it_is_held() -> None:
    load = Counter()
    load.start()
    load.gate.hold()
    held_at = load.batches
    load.join(MOMENT_S)
    assert load.batches == held_at
    load.gate.release()
    load.gate.hold()
    assert load.batches > held_at
    load.gate.release()
    load.stop()


@pytest.mark.parametrize("last", [[STOP], []], ids=["told to stop", "input ends"])
def test_every_order_is_answered(
    last: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the load ends with its input, so that it does not outlive who started it."""
    load = Counter()
    load.start()
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{order}\n" for order in (HOLD, GO_ON, HOLD, *last))))
    serve(load.gate, load.sample, load.stop)
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["used"] for answer in answers] == [True, False, True, False]
    assert answers[0]["batches"] < answers[2]["batches"] <= answers[3]["batches"] == load.batches
    assert not load.is_alive()
