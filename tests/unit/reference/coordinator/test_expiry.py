"""Timeouts with the two-phase-commit exemption, and the expiry of transactional ids."""

from __future__ import annotations

import pytest

from spark_2pc_sink.ids import TIMEOUT_NEVER_MS
from spark_2pc_sink.reference.coordinator.end_txn import due_expirations, due_timeouts
from spark_2pc_sink.reference.coordinator.events import AbortTimedOut, Event, ExpireTransactionalId
from spark_2pc_sink.reference.coordinator.states import StateId, TransactionMetadata

from .driver import TID, Driver, metadata

WEEK_MS = 604_800_000
TIMEOUT = AbortTimedOut(transactional_id=TID, producer_id=42)
EXPIRY = ExpireTransactionalId(transactional_id=TID)


@pytest.mark.parametrize(
    ("known", "event", "age_ms", "due"),
    [
        (metadata(StateId.ONGOING), TIMEOUT, 60_000, False),
        (metadata(StateId.ONGOING), TIMEOUT, 60_001, True),
        (metadata(StateId.ONGOING, pending=StateId.PREPARE_COMMIT), TIMEOUT, WEEK_MS, False),
        (metadata(StateId.EMPTY), EXPIRY, WEEK_MS - 1, False),
        (metadata(StateId.EMPTY), EXPIRY, WEEK_MS, True),
        (metadata(StateId.ONGOING), EXPIRY, 2 * WEEK_MS, False),
        (metadata(StateId.EMPTY, pending=StateId.ONGOING), EXPIRY, 2 * WEEK_MS, False),
    ],
)
def test_what_is_due(known: TransactionMetadata, event: Event, age_ms: int, due: bool) -> None:
    """Ongoing: start + timeout < now. At rest: lastUpdate <= now - transactional.id.expiration.ms."""
    driver = Driver.of(known)
    driver.now_ms += age_ms
    found = (*due_timeouts(driver.state, driver.now_ms), *due_expirations(driver.state, driver.now_ms))
    assert (event in found) is due
    if not due:
        driver.refused(event)
        return
    driver.run(event)
    if event is EXPIRY:
        assert (driver.state.get(TID), driver.log[-1].value) == (None, None)
    else:
        assert driver.get().state is StateId.COMPLETE_ABORT


def test_a_participant_in_two_phase_commit_never_times_out() -> None:
    """KIP-939: 'transactions that this client starts never expire'; B1, B27."""
    driver = Driver.of(metadata(StateId.ONGOING, timeout_ms=TIMEOUT_NEVER_MS))
    driver.now_ms += 100 * WEEK_MS
    assert due_timeouts(driver.state, driver.now_ms) == ()
    driver.refused(TIMEOUT)
