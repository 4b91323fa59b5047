"""What leaders answer to markers, their codes, and InitProducerId(keepPreparedTxn): timeouts, leaders, scenarios.

Scenarios are crash loops and one and two epoch overflows. KIP-939 lets NextProducerEpoch reach MAX, and the client
commit with it; in apache/kafka#21735 one more keep rotates instead, so that no client sees MAX. B3, B11, B12, B28.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS
from spark_2pc_sink.reference.coordinator.add_partitions import offsets_code, produce_code, produce_message
from spark_2pc_sink.reference.coordinator.end_txn import due_timeouts
from spark_2pc_sink.reference.coordinator.plans import EndTxnReply, SendMarkers
from spark_2pc_sink.reference.coordinator.states import Marking, Pair, StateId

from .driver import KEEPING, KEEPING_UNCHANGED, RELEASED, T0, T1, T2, Driver, answered, end, metadata

ALL = frozenset({T0, T1, T2})


def decided() -> tuple[Driver, SendMarkers]:
    """A committed transaction of three partitions whose markers are to be sent."""
    driver = Driver.of(metadata(StateId.ONGOING, partitions=ALL))
    driver.do(end((42, 5)))
    (effect,) = driver.effects
    driver.effects.clear()
    assert isinstance(effect, SendMarkers)
    assert effect.partitions == (T0, T1, T2)
    return driver, effect


def test_the_last_marker_closes_the_transaction() -> None:
    """Kafka, TransactionState: 'received acks from all partitions => CompleteCommit'."""
    driver, effect = decided()
    for index, partition in enumerate((T1, T0)):
        plan = driver.plan(answered(effect, {partition: 0}))
        assert (plan.records, plan.effects) == ((), ())
        driver.finish(plan)
        assert len(driver.get().partitions) == 2 - index
        assert driver.refused(end((42, 5))) == EndTxnReply(Code.CONCURRENT_TRANSACTIONS)
    driver.do(answered(effect, {T2: 0}))
    assert (driver.get().state, driver.get().pending) == (StateId.COMPLETE_COMMIT, None)
    assert (driver.get().partitions, driver.get().start_ms) == (
        frozenset(),
        metadata(StateId.ONGOING).start_ms,
    )


@pytest.mark.parametrize("code", [0, 3])
def test_codes_that_finish_a_partition(code: int) -> None:
    """Written, or deleted -> partition done."""
    driver, effect = decided()
    driver.do(answered(effect, {T0: code}))
    assert driver.get().partitions == {T1, T2}


def test_a_marker_that_the_disk_refused_is_sent_again() -> None:
    """Storage error -> retry, with the same marker."""
    driver, effect = decided()
    plan = driver.plan(answered(effect, {T0: 0, T1: Code.KAFKA_STORAGE_ERROR}))
    assert plan.effects == (replace(effect, partitions=(T1,)),)
    driver.finish(plan)
    assert driver.get().partitions == {T1, T2}
    driver.do(answered(effect, {T2: 0}))
    driver.effects.clear()
    driver.do(answered(effect, {T1: 0}))
    assert driver.get().state is StateId.COMPLETE_COMMIT


@pytest.mark.parametrize("code", [47, 52])
def test_codes_that_give_up(code: int) -> None:
    """47 or 52 -> give up: Prepare* (answers 51) until the coordinator partition is reloaded."""
    driver, effect = decided()
    plan = driver.plan(answered(effect, {T0: 0, T1: code, T2: Code.KAFKA_STORAGE_ERROR}))
    assert (plan.records, plan.effects) == ((), ())
    driver.finish(plan)
    assert driver.get().marking is Marking.GIVEN_UP
    assert driver.refused(end((42, 5))) == EndTxnReply(Code.CONCURRENT_TRANSACTIONS)
    driver.refused(answered(effect, {T1: 0, T2: 0}))
    assert driver.get().state is StateId.PREPARE_COMMIT
    reloaded = driver.crashed()
    assert reloaded.drain() == [replace(effect, coordinator_epoch=1)]
    assert reloaded.get().state is StateId.COMPLETE_COMMIT


def test_the_last_answer_twice_closes_the_transaction_once() -> None:
    """B5: a late second completion must not undo what the next transaction did."""
    driver, effect = decided()
    event = answered(effect, dict.fromkeys(ALL, 0))
    first = driver.plan(event)
    driver.refused(event)
    driver.finish(first)
    assert driver.add((42, 6)) == {0}
    driver.refused(event)
    assert driver.get().state is StateId.ONGOING


def test_the_record_that_closes_a_transaction_is_tried_again() -> None:
    driver, effect = decided()
    driver.append_code = Code.KAFKA_STORAGE_ERROR
    driver.do(answered(effect, dict.fromkeys(ALL, 0)))
    assert (driver.get().state, driver.get().pending) == (StateId.PREPARE_COMMIT, StateId.COMPLETE_COMMIT)
    driver.append_code = 0
    driver.drain()
    assert (driver.get().state, driver.get().pending) == (StateId.COMPLETE_COMMIT, None)


# Coordinator says; then what Produce v>=12, v11 and v<=10 are told.
PRODUCE = """
90  47 47 47
49  49 49 49
51  51 19 19
120 120 120 48
16  19 19 19
0   0  0  0
"""
# Coordinator (or append) says; then what TxnOffsetCommit v>=5, v4, v3 are told.
OFFSETS = """
0   0   0   0
90  47  47  47
49  49  49  49
51  51  51  51
120 120 120 48
16  16  16  16
"""


def cells(table: str, versions: tuple[int, ...]) -> list[object]:
    found: list[object] = []
    for line in table.strip().split("\n"):
        code, *told = (int(word) for word in line.split())
        found += [
            pytest.param(version, code, each, id=f"{code}-v{version}")
            for version, each in zip(versions, told, strict=True)
        ]
    return found


@pytest.mark.parametrize(("version", "code", "told"), cells(PRODUCE, (12, 11, 10)))
def test_every_cell_for_producers(version: int, code: int, told: int) -> None:
    """KIP-890, Old Clients: 'we opt to use NOT_ENOUGH_REPLICAS'; a too-high epoch also ends as 47."""
    assert produce_code(version, code) == told
    assert (produce_message(told, code) is not None) is (told in {Code.INVALID_TXN_STATE, Code.NOT_ENOUGH_REPLICAS})


@pytest.mark.parametrize(("version", "code", "told"), cells(OFFSETS, (5, 4, 3)))
def test_every_cell_for_offset_commits(version: int, code: int, told: int) -> None:
    """90->47; 120 passes from v4 on."""
    assert offsets_code(version, code) == told


def ongoing(pair: tuple[int, int], client: tuple[int, int] | None = None) -> Driver:
    """An Ongoing transaction, kept if a client pair is given; new producer ids are 73 and up."""
    kept = {} if client is None else {"next_producer_id": client[0], "next_producer_epoch": client[1]}
    known = metadata(StateId.ONGOING, pair, timeout_ms=TIMEOUT_NEVER_MS, **kept)
    return Driver.of(known, settings=KEEPING, producer_ids=range(73, 93))


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("crash", [True, False])
def test_a_client_without_two_phase_commit_gets_transactions_that_expire(commit: bool, crash: bool) -> None:
    driver = ongoing((42, 100))
    assert driver.init(keep_prepared=True, timeout_ms=30_000).pair == (42, 101)
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
    client = driver.init(keep_prepared=True).pair
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
            self.driver.store(metadata(StateId.EMPTY, (STARTING_ID, int(start[2:]))))

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
            self.driver.store(replace(self.driver.get(), next_producer_epoch=int(expected[2:])))
        else:
            # Its effects are left to `drain`.
            reply: Any = self.driver.do(end(client, commit=step == "commit"))
            assert reply.code == 0
            return Pair(*reply.pair)
        return self.driver.get().client_pair

    def drain(self) -> None:
        for sent in self.driver.drain():
            pair = self.shown(Pair(sent.producer_id, sent.producer_epoch))
            self.markers.append([pair, "commit" if sent.commit else "abort"])


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(("form", "scenario"), SCENARIOS)
def test_a_scenario_of_the_pull_request(form: str, scenario: dict[str, Any], crash: bool) -> None:
    """Also where the coordinator dies after each step."""
    player = Player(form, scenario["start"], crash=crash)
    for step, expected in scenario["steps"]:
        player.play(step, expected)
    assert player.markers == scenario["markers"]
