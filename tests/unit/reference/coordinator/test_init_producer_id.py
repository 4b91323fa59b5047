"""InitProducerId, case by case: the front door, the order of checks, the grid, and what comes after fences."""

from __future__ import annotations

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.coordinator_state import NO_BLOCK, ProducerIdBlock, Settings
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, FULL_ACCESS, InitProducerId, Operation, Resource
from spark_2pc_sink.reference.coordinator.plans import AllocateProducerIdBlock, InitProducerIdReply
from spark_2pc_sink.reference.coordinator.states import NO_PAIR, TransactionState

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


def test_rotation_waits_for_a_producer_id() -> None:
    driver = Driver.of(metadata(TransactionState.EMPTY, (42, 32766)), block=NO_BLOCK)
    assert driver.do(InitProducerId(transactional_id=TID)) == InitProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS)
