"""The scenarios of Kafka's proposed keepPreparedTxn, as vectors: every pair that a client gets, and every marker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink.reference.coordinator.plans import SendMarkers
from spark_2pc_sink.reference.coordinator.records import LogRecord, TransactionLogValue
from spark_2pc_sink.reference.coordinator.states import Pair, TransactionMetadata, TransactionState

from .driver import KEEPING, KEEPING_UNCHANGED, TID, Driver, end, metadata

_VECTORS = Path(__file__).parents[3] / "vectors" / "keep_prepared.json"
_FORMS = json.loads(_VECTORS.read_text())
SCENARIOS = [
    pytest.param(form, scenario, id=f"{form}-{scenario['name']}")
    for form, vectors in _FORMS.items()
    for scenario in vectors["scenarios"]
]
SETTINGS = {"bump": KEEPING, "unchanged": KEEPING_UNCHANGED}
#: The producer id of the scenario that starts with one; those handed out later get their letters as they come.
STARTING_ID = 42


class Player:
    """Plays one scenario.

    Args:
        form: of keeping.
        start: the pair that the id has before the first step; None for a new id.
        crash: kill the coordinator after each step, and load another one from its log.
    """

    def __init__(self, form: str, start: str | None, *, crash: bool) -> None:
        # Only apache/kafka#22704 asks for it.
        self.two_phase = form == "unchanged"
        self.names: dict[int, str] = {}
        self.crash = crash
        self.markers: list[list[str]] = []
        self.driver = Driver.of(settings=SETTINGS[form])
        if start is not None:
            self.names[STARTING_ID] = start[0]
            self.store(metadata(TransactionState.EMPTY, (STARTING_ID, int(start[2:]))))

    def store(self, known: TransactionMetadata) -> None:
        """Put an id into the state and the log."""
        self.driver.state = self.driver.state.with_metadata(TID, known)
        index = self.driver.state.partition_of(TID)
        value = TransactionLogValue.of(known, version=1)
        self.driver.log.append(LogRecord(partition=index, transactional_id=TID, value=value))

    def shown(self, pair: Pair) -> str:
        """A pair as the vectors write it: letters in the order in which the producer ids came."""
        if pair.producer_id not in self.names:
            self.names[pair.producer_id] = "ABC"[len(self.names)]
        return f"{self.names[pair.producer_id]}:{pair.epoch}"

    def play(self, step: str, expected: str) -> None:
        """One step, its pair, and its markers."""
        assert self.shown(self.do(step, expected)) == expected
        self.drain()
        if self.crash:
            self.driver = self.driver.crashed()
            self.drain()

    def do(self, step: str, expected: str) -> Pair:
        if step in {"init", "keep"}:
            return self.driver.init(keep_prepared=step == "keep", enable_2pc=self.two_phase).pair
        client = self.driver.get().client_pair
        if step == "produce":
            assert self.driver.add(client) == {0}
        elif step == "set client epoch":
            self.store(replace(self.driver.get(), next_producer_epoch=int(expected[2:])))
        else:
            return self.end(client, commit=step == "commit")
        return self.driver.get().client_pair

    def end(self, client: Pair, *, commit: bool) -> Pair:
        """EndTxn; its effects are left to `drain`."""
        reply: Any = self.driver.do(end(client, commit=commit))
        assert reply.code == 0
        return Pair(*reply.pair)

    def drain(self) -> None:
        self.markers += [self.written(each) for each in self.driver.drain()]

    def written(self, sent: SendMarkers) -> list[str]:
        pair = self.shown(Pair(sent.producer_id, sent.producer_epoch))
        return [pair, "commit" if sent.commit else "abort"]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(("form", "scenario"), SCENARIOS)
def test_a_scenario_of_the_pull_request(form: str, scenario: dict[str, Any], crash: bool) -> None:
    """Also where the coordinator dies after each step."""
    player = Player(form, scenario["start"], crash=crash)
    for step, expected in scenario["steps"]:
        player.play(step, expected)
    assert player.markers == scenario["markers"]
