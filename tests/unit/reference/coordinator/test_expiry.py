"""Timeouts with the two-phase-commit exemption, and the expiry of transactional ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS
from spark_2pc_sink.reference.coordinator.end_txn import due_expirations, due_timeouts
from spark_2pc_sink.reference.coordinator.events import AbortTimedOut, DescribeTransactions, ExpireTransactionalId
from spark_2pc_sink.reference.coordinator.machine import resign, start_loading
from spark_2pc_sink.reference.coordinator.plans import DescribeTransactionsReply
from spark_2pc_sink.reference.coordinator.states import STATES_BY_LABEL, TransactionState

from .driver import START_MS, T1, TID, Driver, end, metadata

WEEK_MS = 604_800_000
TIMEOUT = AbortTimedOut(transactional_id=TID, producer_id=42)
EXPIRY = ExpireTransactionalId(transactional_id=TID)


@pytest.mark.parametrize(("elapsed_ms", "due"), [(59_999, False), (60_000, False), (60_001, True)])
def test_a_transaction_times_out_after_its_timeout(elapsed_ms: int, due: bool) -> None:
    """Ongoing, no pending, start + timeout < now."""
    driver = Driver.of(metadata(TransactionState.ONGOING))
    driver.now_ms += elapsed_ms
    assert due_timeouts(driver.state, driver.now_ms) == ((TIMEOUT,) if due else ())
    driver.run(TIMEOUT)
    assert (driver.get().state is TransactionState.COMPLETE_ABORT) is due


def test_later_adds_do_not_extend_the_timeout() -> None:
    driver = Driver.of(metadata(TransactionState.ONGOING))
    driver.now_ms += 50_000
    driver.add((42, 5), T1)
    driver.now_ms += 10_001
    assert due_timeouts(driver.state, driver.now_ms) == (TIMEOUT,)


def test_a_participant_in_two_phase_commit_never_times_out() -> None:
    """KIP-939: 'transactions that this client starts never expire'; B1, B27."""
    driver = Driver.of(metadata(TransactionState.ONGOING, timeout_ms=TIMEOUT_NEVER_MS))
    driver.now_ms += 100 * WEEK_MS
    assert due_timeouts(driver.state, driver.now_ms) == ()
    driver.refused(TIMEOUT)


@pytest.mark.parametrize("label", ["Empty", "CompleteCommit", "CompleteAbort", "PrepareCommit", "PrepareAbort"])
def test_only_an_open_transaction_times_out(label: str) -> None:
    driver = Driver.of(metadata(STATES_BY_LABEL[label]))
    driver.now_ms += WEEK_MS
    assert due_timeouts(driver.state, driver.now_ms) == ()
    driver.refused(TIMEOUT)


@pytest.mark.parametrize(
    "known",
    [
        metadata(TransactionState.ONGOING, pending=TransactionState.PREPARE_COMMIT),
        metadata(TransactionState.ONGOING, (43, 0)),
    ],
    ids=["being ended", "another producer id"],
)
def test_a_transaction_that_moved_on_is_left_alone(known: object) -> None:
    driver = Driver.of(known)  # type: ignore[arg-type]
    driver.now_ms += WEEK_MS
    driver.refused(TIMEOUT)
    Driver.of().refused(TIMEOUT)


@pytest.mark.parametrize("label", ["Empty", "CompleteCommit", "CompleteAbort"])
@pytest.mark.parametrize(("elapsed_ms", "due"), [(WEEK_MS - 1, False), (WEEK_MS, True)])
def test_an_unused_id_expires(label: str, elapsed_ms: int, due: bool) -> None:
    """Ids in Empty/CompleteX with lastUpdate <= now - transactional.id.expiration.ms get a tombstone and vanish."""
    driver = Driver.of(metadata(STATES_BY_LABEL[label]))
    driver.now_ms += elapsed_ms
    assert due_expirations(driver.state, driver.now_ms) == ((EXPIRY,) if due else ())
    plan = driver.plan(EXPIRY)
    assert [record.value for record in plan.records] == ([None] if due else [])
    assert (driver.get().pending is TransactionState.DEAD) is due
    driver.finish(plan)
    assert (driver.state.get(TID) is None) is due


@pytest.mark.parametrize(
    "known",
    [
        metadata(TransactionState.ONGOING),
        metadata(TransactionState.PREPARE_ABORT),
        metadata(TransactionState.EMPTY, pending=TransactionState.ONGOING),
    ],
    ids=["Ongoing", "PrepareAbort", "pending"],
)
def test_an_id_in_use_does_not_expire(known: object) -> None:
    driver = Driver.of(known)  # type: ignore[arg-type]
    driver.now_ms += 2 * WEEK_MS
    assert due_expirations(driver.state, driver.now_ms) == ()
    driver.refused(EXPIRY)


def test_after_expiry_the_id_is_unknown_and_starts_afresh() -> None:
    """Later: AddPartitions/EndTxn -> 49; Describe -> 105; InitProducerId -> fresh pid, epoch 0 (even with (p,e))."""
    driver = Driver.of(metadata(TransactionState.EMPTY))
    driver.now_ms += WEEK_MS
    driver.run(EXPIRY)
    driver.refused(EXPIRY)
    assert driver.add((42, 5)) == {Code.INVALID_PRODUCER_ID_MAPPING}
    assert driver.end((42, 5)).code == Code.INVALID_PRODUCER_ID_MAPPING
    reply = driver.refused(DescribeTransactions(transactional_ids=(TID,)))
    assert isinstance(reply, DescribeTransactionsReply)
    assert reply.transactions[0].code == Code.TRANSACTIONAL_ID_NOT_FOUND
    assert driver.crashed().state.get(TID) is None
    assert driver.init(producer_id=42, producer_epoch=5).pair == (1000, 0)


def test_a_tombstone_that_failed_leaves_the_id_as_it_was() -> None:
    driver = Driver.of(metadata(TransactionState.EMPTY))
    driver.now_ms += WEEK_MS
    driver.append_code = Code.NOT_ENOUGH_REPLICAS
    driver.run(EXPIRY)
    assert driver.get() == metadata(TransactionState.EMPTY)


def test_partitions_of_other_coordinators_are_not_kept_tidy() -> None:
    """What is loading or elsewhere is not this coordinator's to end."""
    driver = Driver.of(
        metadata(TransactionState.ONGOING), replace(metadata(TransactionState.EMPTY), transactional_id="b")
    )
    driver.now_ms = START_MS + 2 * WEEK_MS
    assert due_timeouts(driver.state, driver.now_ms)
    for index in range(3):
        driver.state = (start_loading if index else resign)(driver.state, index)
    assert due_timeouts(driver.state, driver.now_ms) == ()
    assert due_expirations(driver.state, driver.now_ms) == ()
    driver.refused(TIMEOUT)
    driver.refused(EXPIRY)
    assert driver.end((42, 5)).code in {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR}
    assert driver.refused(end((42, 5))) is not None
