"""The gate between two batches, and what a load answers."""

from __future__ import annotations

import io
import json
import threading
from typing import Any

import pytest

from tests.soak.child import GO_ON, HOLD, STOP, Gate, serve

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


def test_a_load_that_has_ended_is_not_waited_for() -> None:
    load = Counter()
    load.start()
    load.stop()
    load.gate.hold()


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
