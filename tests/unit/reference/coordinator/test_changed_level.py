"""transaction.version goes up and down while ids are in use: none is left that can never go on. B24.

Kafka 4.4.0 leaves an id that spoke transaction.version 2 pending after a downgrade to 0, because its record has no room
for ClientTransactionVersion: UNSUPPORTED_VERSION once, CONCURRENT_TRANSACTIONS from then on (measured).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS
from spark_2pc_sink.reference.coordinator.plans import EndTxnReply
from spark_2pc_sink.reference.coordinator.states import StateId

from .driver import KEEPING, Driver, end, metadata

ONGOING = StateId.ONGOING
OVER = {True: StateId.COMPLETE_COMMIT, False: StateId.COMPLETE_ABORT}


def at_level(driver: Driver, level: int) -> Driver:
    """The same coordinator, at another level."""
    settings = replace(driver.state.settings, transaction_version=level)
    driver.state = replace(driver.state, settings=settings)
    return driver


def loaded(driver: Driver, *, crash: bool) -> Driver:
    """The same, or started again on its log."""
    if not crash:
        return driver
    again = driver.crashed()
    again.drain()
    return again


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("down", [0, 1])
def test_an_id_at_rest_goes_on(down: int, crash: bool) -> None:
    """2 -> 0 and 2 -> 1: InitProducerId and a whole transaction of an old client, and the way up again."""
    driver = at_level(Driver.of(metadata(StateId.COMPLETE_COMMIT)), down)
    assert driver.init().code == 0
    driver = loaded(driver, crash=crash)
    pair = driver.get().pair
    assert driver.add(pair, version=3) == {0}
    assert driver.end(pair, version=4).code == 0
    assert driver.get().state is StateId.COMPLETE_COMMIT
    # From here on nothing of the id is above the level.
    assert driver.log[-1].version == down
    at_level(driver, 2)
    assert driver.init().code == 0


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("down", [0, 1])
def test_an_open_transaction_ends(down: int, version: int, commit: bool, crash: bool) -> None:
    """By a client that has learnt of the level, and by one that has not."""
    driver = Driver.of(metadata(StateId.EMPTY, timeout_ms=TIMEOUT_NEVER_MS))
    assert driver.add((42, 5), version=5) == {0}
    at_level(driver, down)
    driver = loaded(driver, crash=crash)
    assert driver.end((42, 5), commit=commit, version=version).code == 0
    assert driver.get().state is OVER[commit]
    assert driver.init().code == 0


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("client", [(42, 6), (42, 9), (73, 0)])
@pytest.mark.parametrize("down", [0, 1])
def test_a_kept_transaction_stays_completable(down: int, client: tuple[int, int], commit: bool, crash: bool) -> None:
    """B24: by the pair that keeping gave, without the bump that a client below level 2 cannot learn of."""
    kept = metadata(ONGOING, next_producer_id=client[0], next_producer_epoch=client[1])
    driver = at_level(Driver.of(kept, settings=KEEPING), down)
    assert driver.refused(end((42, 5), commit=commit, version=4)).code != 0  # type: ignore[union-attr]
    assert driver.do(end(client, commit=commit, version=4)) == EndTxnReply(0)
    assert driver.refused(end(client, commit=commit, version=4)) == EndTxnReply(Code.CONCURRENT_TRANSACTIONS)
    if crash:
        driver = driver.crashed()
    (markers,) = driver.drain()
    assert (markers.producer_id, markers.producer_epoch, markers.transaction_version) == (42, 6, 2)
    assert (driver.get().state, driver.get().pair) == (OVER[commit], client)
    assert driver.end(client, commit=commit, version=4).code == 0  # a repeated request
    assert driver.add(client, version=3) == {0}  # and the client goes on with its pair
    assert driver.end(client, version=4).code == 0
