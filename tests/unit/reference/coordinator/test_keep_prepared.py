"""InitProducerId(keepPreparedTxn): whose timeout counts, what leaders still take, the scenarios of both pull requests.

Scenarios are crash loops and one and two epoch overflows. KIP-939 lets NextProducerEpoch reach MAX, and the client
commit with it; in apache/kafka#21735 one more keep rotates instead, so that no client sees MAX. B3, B11, B12, B28.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink.ids import TIMEOUT_NEVER_MS
from spark_2pc_sink.reference.coordinator.coordinator_state import ProducerIdBlock
from spark_2pc_sink.reference.coordinator.end_txn import due_timeouts
from spark_2pc_sink.reference.coordinator.plans import InitProducerIdReply, SendMarkers
from spark_2pc_sink.reference.coordinator.records import LogRecord
from spark_2pc_sink.reference.coordinator.states import Pair, StateId, TransactionMetadata

from .driver import KEEPING, KEEPING_UNCHANGED, RELEASED, TID, Driver, end, metadata


def ongoing(pair: tuple[int, int], client: tuple[int, int] | None = None, **changes: object) -> Driver:
    """An Ongoing transaction, kept if a client pair is given; new producer ids are 73 and up."""
    kept = {} if client is None else {"next_producer_id": client[0], "next_producer_epoch": client[1]}
    known = metadata(StateId.ONGOING, pair, **kept, **({"timeout_ms": TIMEOUT_NEVER_MS} | changes))
    return Driver.of(known, settings=KEEPING, block=ProducerIdBlock(73, 20))


def keep(driver: Driver, **fields: Any) -> InitProducerIdReply:
    return driver.init(keep_prepared=True, **fields)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("crash", [True, False])
def test_a_client_without_two_phase_commit_gets_transactions_that_expire(commit: bool, crash: bool) -> None:
    driver = ongoing((42, 100))
    assert keep(driver, timeout_ms=30_000).pair == (42, 101)
    driver = driver.crashed() if crash else driver
    assert driver.get().timeout_ms == TIMEOUT_NEVER_MS  # what another has prepared
    driver.do(end((42, 101), commit=commit))
    driver = driver.crashed() if crash else driver
    driver.drain()
    assert driver.get().timeout_ms == 30_000
    driver.add((42, 102))
    driver.now_ms += 30_001
    assert len(due_timeouts(driver.state, driver.now_ms)) == 1


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("pair", [(42, 100), (42, 32766)])
def test_leaders_take_no_more_of_it_until_its_markers_are_written(commit: bool, pair: tuple[int, int]) -> None:
    """KIP-939, Proposed Changes: 'so that we can fence requests from previous incarnations'. B5."""
    driver = ongoing(pair)
    assert not driver.state.keeps(Pair(*pair))
    client = keep(driver).pair
    assert driver.state.keeps(Pair(*pair))
    driver.do(end(client, commit=commit))
    for each in (driver, driver.crashed()):
        assert each.state.keeps(Pair(*pair))
        each.drain()
        assert not each.state.keeps(Pair(*pair))


def test_a_kept_transaction_survives_a_switch_of_the_profile() -> None:
    """The switch governs who may keep, not how what was kept is ended: no pair is ever handed out twice."""
    driver = ongoing((42, 100), (42, 101))
    driver.do(end((42, 101)))
    driver.state = replace(driver.state, settings=RELEASED)
    reloaded = driver.crashed()
    reloaded.drain()
    assert reloaded.get().pair == (42, 102)


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
            self.store(metadata(StateId.EMPTY, (STARTING_ID, int(start[2:]))))

    def store(self, known: TransactionMetadata) -> None:
        """Put an id into the state and the log."""
        self.driver.state = self.driver.state.with_metadata(TID, known)
        index = self.driver.state.partition_of(TID)
        self.driver.log.append(LogRecord(partition=index, transactional_id=TID, value=known))

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
