"""Timeouts with the two-phase-commit exemption, and the expiry of transactional ids."""

from __future__ import annotations

import pytest

from spark_2pc_sink.ids import TIMEOUT_NEVER_MS
from spark_2pc_sink.reference.coordinator.end_txn import due_expirations, due_timeouts
from spark_2pc_sink.reference.coordinator.events import AbortTimedOut, ExpireTransactionalId
from spark_2pc_sink.reference.coordinator.states import STATES_BY_LABEL, StateId

from .driver import TID, Driver, metadata

WEEK_MS = 604_800_000
TIMEOUT = AbortTimedOut(transactional_id=TID, producer_id=42)
EXPIRY = ExpireTransactionalId(transactional_id=TID)


@pytest.mark.parametrize(("elapsed_ms", "due"), [(59_999, False), (60_000, False), (60_001, True)])
def test_a_transaction_times_out_after_its_timeout(elapsed_ms: int, due: bool) -> None:
    """Ongoing, no pending, start + timeout < now."""
    driver = Driver.of(metadata(StateId.ONGOING))
    driver.now_ms += elapsed_ms
    assert due_timeouts(driver.state, driver.now_ms) == ((TIMEOUT,) if due else ())
    driver.run(TIMEOUT)
    assert (driver.get().state is StateId.COMPLETE_ABORT) is due


def test_a_participant_in_two_phase_commit_never_times_out() -> None:
    """KIP-939: 'transactions that this client starts never expire'; B1, B27."""
    driver = Driver.of(metadata(StateId.ONGOING, timeout_ms=TIMEOUT_NEVER_MS))
    driver.now_ms += 100 * WEEK_MS
    assert due_timeouts(driver.state, driver.now_ms) == ()
    driver.refused(TIMEOUT)


@pytest.mark.parametrize(
    "known",
    [
        metadata(StateId.ONGOING, pending=StateId.PREPARE_COMMIT),
        metadata(StateId.ONGOING, (43, 0)),
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
    assert (driver.get().pending is StateId.DEAD) is due
    driver.finish(plan)
    assert (driver.state.get(TID) is None) is due


@pytest.mark.parametrize(
    "known",
    [
        metadata(StateId.ONGOING),
        metadata(StateId.PREPARE_ABORT),
        metadata(StateId.EMPTY, pending=StateId.ONGOING),
    ],
    ids=["Ongoing", "PrepareAbort", "pending"],
)
def test_an_id_in_use_does_not_expire(known: object) -> None:
    driver = Driver.of(known)  # type: ignore[arg-type]
    driver.now_ms += 2 * WEEK_MS
    assert due_expirations(driver.state, driver.now_ms) == ()
    driver.refused(EXPIRY)
