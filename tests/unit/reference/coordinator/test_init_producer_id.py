"""InitProducerId, case by case: the front door, the order of checks, the grid, and what comes after fences."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.coordinator_state import NO_BLOCK, ProducerIdBlock, Settings
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, FULL_ACCESS, InitProducerId, Operation, Resource
from spark_2pc_sink.reference.coordinator.init_producer_id import INIT_GRID, Claim, Standing
from spark_2pc_sink.reference.coordinator.plans import AllocateProducerIdBlock, InitProducerIdReply
from spark_2pc_sink.reference.coordinator.states import NO_PAIR, STATES_BY_LABEL, Pair, TransactionState

from .access import denied
from .driver import TID, Driver, metadata

NO_WRITE = denied((Operation.WRITE, Resource.TRANSACTIONAL_ID, TID))
NO_2PC = denied((Operation.TWO_PHASE_COMMIT, Resource.TRANSACTIONAL_ID, TID))
NO_CLUSTER = (Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME)
NO_TOPIC = (Operation.WRITE, Resource.TOPIC, "*")

REFUSALS = {
    "no WRITE on the id: 53": ({"access": NO_WRITE}, 53),
    "no WRITE comes before half a pair": ({"access": NO_WRITE, "producer_id": 1}, 53),
    "enable2Pc without TWO_PHASE_COMMIT: 53": ({"access": NO_2PC, "enable_2pc": True}, 53),
    "no id and neither IDEMPOTENT_WRITE nor WRITE on any topic: 31": (
        {"transactional_id": None, "access": denied(NO_CLUSTER, NO_TOPIC)},
        31,
    ),
    "producer id without epoch: 42": ({"producer_id": 1}, 42),
    "epoch without producer id: 42": ({"producer_epoch": 1}, 42),
    "half a pair is refused without an id too": ({"transactional_id": None, "producer_id": 1}, 42),
    "empty id: 42": ({"transactional_id": ""}, 42),
    "empty id comes before 2PC": ({"transactional_id": "", "enable_2pc": True, "keep_prepared": True}, 42),
    "keepPreparedTxn: 35 in every released broker": ({"keep_prepared": True}, 35),
    "keepPreparedTxn comes before the timeout": ({"keep_prepared": True, "timeout_ms": 0}, 35),
    "timeout 0: 50": ({"timeout_ms": 0}, 50),
    "negative timeout: 50": ({"timeout_ms": -1}, 50),
    "timeout over transaction.max.timeout.ms: 50, not clamped": ({"timeout_ms": 900_001}, 50),
}


@pytest.mark.parametrize(("fields", "code"), REFUSALS.values(), ids=REFUSALS.keys())
@pytest.mark.parametrize("known", [True, False])
def test_refusals_before_the_id_is_looked_at(fields: dict[str, object], code: int, known: bool) -> None:
    driver = Driver.of(*((metadata(TransactionState.ONGOING),) if known else ()))
    event = InitProducerId(**({"transactional_id": TID} | fields))  # type: ignore[arg-type]
    assert driver.refused(event) == InitProducerIdReply(code, NO_PAIR, NO_PAIR)


def test_two_phase_commit_needs_the_broker_property() -> None:
    """enable2Pc & transaction.two.phase.commit.enable=false: 53, before keepPrepared's 35 and the timeout's 50."""
    driver = Driver.of(settings=Settings())
    event = InitProducerId(transactional_id=TID, enable_2pc=True, keep_prepared=True, timeout_ms=0)
    assert driver.refused(event) == InitProducerIdReply(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_the_bounds_of_the_timeout_are_allowed(timeout_ms: int) -> None:
    driver = Driver.of()
    assert driver.init(timeout_ms=timeout_ms).code == 0
    assert driver.get().timeout_ms == timeout_ms


@pytest.mark.parametrize("rules", [(NO_CLUSTER,), (NO_TOPIC,)])
def test_an_idempotent_producer_needs_one_of_two_rights(rules: tuple[tuple[Operation, Resource, str], ...]) -> None:
    assert Driver.of().init(None, access=denied(*rules)).code == 0
    assert FULL_ACCESS.allows_any(Operation.WRITE, Resource.TOPIC)


@pytest.mark.parametrize("tid", [None, TID])
def test_without_a_block_of_producer_ids_it_loads(tid: str | None) -> None:
    """Block exhausted -> 14; at start-up until the first block arrives."""
    driver = Driver.of(block=NO_BLOCK)
    before = driver.state
    plan = driver.plan(InitProducerId(transactional_id=tid))
    assert driver.finish(plan) == InitProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS)
    assert (plan.effects, driver.state) == ((AllocateProducerIdBlock(),), before)
    driver.drain()
    assert driver.init(tid).code == 0


@pytest.mark.parametrize("tid", [None, TID])
def test_the_next_block_is_fetched_ahead(tid: str | None) -> None:
    driver = Driver.of(block=ProducerIdBlock(0, 1))
    plan = driver.plan(InitProducerId(transactional_id=tid))
    assert plan.effects == (AllocateProducerIdBlock(),)
    driver.finish(plan)
    driver.drain()
    assert driver.init("another").pair == (1000, 0)


# P=42, E=5, LE=4 where there is one, PP=42; columns: no pair, e=E, e=LE, another e.
GRID = """
new            0,+0  0,+0  0,+0  0,+0
Empty          +1    +1    same  90
CompleteCommit +1    +1    same  90
CompleteAbort  +1    +1    same  90
Ongoing        abort abort abort abort
PrepareCommit  51    51    51    51
PrepareAbort   51    51    51    51
"""
GIVEN = {"no-pair": {}, "e=E": {"producer_epoch": 5}, "e=LE": {"producer_epoch": 4}, "other-e": {"producer_epoch": 2}}


def grid() -> list[object]:
    cells: list[object] = []
    for line in GRID.strip().split("\n"):
        label, *words = line.split()
        for (name, given), word in zip(GIVEN.items(), words, strict=True):
            cells.append(pytest.param(label, {"producer_id": 42} | given if given else {}, word, id=f"{label}-{name}"))
    return cells


@pytest.mark.parametrize("epoch", [32766, 32767])
@pytest.mark.parametrize("label", ["Empty", "CompleteCommit", "CompleteAbort"])
@pytest.mark.parametrize(
    ("given", "last"), [(None, -1), (0, 0), (-1, Code.UNKNOWN_SERVER_ERROR), (-2, Code.UNKNOWN_SERVER_ERROR)]
)
def test_an_exhausted_epoch_rotates_the_producer_id(label: str, epoch: int, given: int | None, last: int) -> None:
    """EXH(E): no pair -> (newPid,0), LE:=-1; e=E -> (newPid,0), LE:=E; e=LE or another e -> -1 (IllegalState)."""
    known = metadata(STATES_BY_LABEL[label], (42, epoch), last_producer_epoch=epoch - 1)
    driver = Driver.of(known)
    fields: dict[str, Any] = {} if given is None else {"producer_id": 42, "producer_epoch": epoch + given}
    reply = driver.init(**fields)
    if given is not None and given < 0:
        assert reply == InitProducerIdReply(last)
        assert driver.get() == known
        return
    assert reply == InitProducerIdReply(0, Pair(1000, 0))
    assert driver.get().previous_producer_id == 42
    assert driver.get().last_producer_epoch == (-1 if given is None else epoch)


def test_rotation_waits_for_a_producer_id() -> None:
    driver = Driver.of(metadata(TransactionState.EMPTY, (42, 32766)), block=NO_BLOCK)
    assert driver.do(InitProducerId(transactional_id=TID)) == InitProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS)


@pytest.mark.parametrize(
    "given", [{}, {"producer_id": 42, "producer_epoch": 5}, {"producer_id": 1, "producer_epoch": 1}]
)
def test_a_pending_change_is_waited_for_whoever_asks(given: dict[str, Any]) -> None:
    """(7) pending -> 51, before (8)."""
    driver = Driver.of(metadata(TransactionState.EMPTY, pending=TransactionState.ONGOING))
    event = InitProducerId(transactional_id=TID, **given)
    assert driver.refused(event) == InitProducerIdReply(Code.CONCURRENT_TRANSACTIONS)


def test_after_a_commit_the_old_pair_is_a_retry_until_the_coordinator_is_reloaded() -> None:
    """After an EndTxn v5 commit LE=E_before, so InitProducerId(P,E_before) returns (P,E+1) unbumped; reloaded: 90."""
    driver = Driver.of(metadata(TransactionState.ONGOING))
    driver.end((42, 5))
    reloaded = driver.crashed()
    assert driver.init(producer_id=42, producer_epoch=5) == InitProducerIdReply(0, Pair(42, 6))
    assert reloaded.init(producer_id=42, producer_epoch=5) == InitProducerIdReply(Code.PRODUCER_FENCED)


def test_the_failure_of_the_abort_is_answered_in_place_of_51() -> None:
    """The abort's own failure code is returned instead of 51 if the append fails."""
    driver = Driver.of(metadata(TransactionState.ONGOING))
    driver.append_code = Code.NOT_ENOUGH_REPLICAS
    assert driver.init() == InitProducerIdReply(Code.COORDINATOR_NOT_AVAILABLE)
    assert driver.get() == metadata(TransactionState.ONGOING)


def test_the_grid_has_no_gaps() -> None:
    assert set(INIT_GRID) == {(standing, claim) for standing in Standing for claim in Claim}
