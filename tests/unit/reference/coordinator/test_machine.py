"""The pure coordinator: two steps of every change, rare requests, timeouts and expiry, levels that change. B24.

Kafka 4.4.0 leaves an id that spoke transaction.version 2 pending after a downgrade to 0, because its record has no room
for ClientTransactionVersion: UNSUPPORTED_VERSION once, CONCURRENT_TRANSACTIONS from then on (measured).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS
from spark_2pc_sink.reference.coordinator import events
from spark_2pc_sink.reference.coordinator.end_txn import due_expirations, due_timeouts
from spark_2pc_sink.reference.coordinator.events import (
    AbortTimedOut,
    AddPartitionsToTxn,
    Event,
    ExpireTransactionalId,
    InitProducerId,
)
from spark_2pc_sink.reference.coordinator.plans import (
    AddPartitionsReply,
    EndTxnReply,
    InitProducerIdReply,
    Reply,
    change,
)
from spark_2pc_sink.reference.coordinator.states import (
    NO_PAIR,
    NO_PRODUCER_IDS,
    StateId,
    TransactionMetadata,
    partition_for,
)

from .driver import KEEPING, START_MS, T0, TID, Driver, end, metadata

ADD = AddPartitionsToTxn(transactional_id=TID, producer_id=42, producer_epoch=5, partitions=(T0,))
#: A change from each kind of request: event, state before, what it is pending as.
CHANGES = {
    "InitProducerId": (InitProducerId(transactional_id=TID), StateId.EMPTY, StateId.EMPTY),
    "fence": (InitProducerId(transactional_id=TID), StateId.ONGOING, StateId.PREPARE_ABORT),
    "AddPartitionsToTxn": (ADD, StateId.COMPLETE_ABORT, StateId.ONGOING),
    "EndTxn": (end((42, 5)), StateId.ONGOING, StateId.PREPARE_COMMIT),
    "EndTxn v4": (end((42, 5), version=4), StateId.ONGOING, StateId.PREPARE_COMMIT),
    "empty abort": (end((42, 5), commit=False), StateId.EMPTY, StateId.PREPARE_ABORT),
}


@pytest.mark.parametrize(("event", "before", "pending"), CHANGES.values(), ids=CHANGES.keys())
class TestEveryChange:
    def test_is_pending_until_it_is_durable(self, event: events.Event, before: StateId, pending: StateId) -> None:
        """`prepare` sets pendingState; everything else waits meanwhile."""
        known = metadata(before)
        driver = Driver.of(known)
        plan = driver.plan(event)
        assert driver.get() == replace(known, pending=pending)
        for other in (InitProducerId(transactional_id=TID), ADD, end((42, 5)), end((42, 5), version=4)):
            reply = driver.refused(other)
            code = reply.codes[T0] if isinstance(reply, AddPartitionsReply) else reply.code  # type: ignore[union-attr]
            assert code == Code.CONCURRENT_TRANSACTIONS
        driver.finish(plan)
        assert driver.get().state is pending

    @pytest.mark.parametrize(
        ("append_code", "code"),
        [(56, 16), (10, -1)],
    )
    def test_that_fails_leaves_nothing_behind(
        self, event: events.Event, before: StateId, pending: StateId, append_code: int, code: int
    ) -> None:
        """On append failure pending is cleared, nothing changes; 56 -> 16; too large -> -1."""
        driver = Driver.of(metadata(before))
        driver.append_code = append_code
        reply = driver.do(event)
        assert driver.get() == metadata(before)
        assert list(driver.effects) == []
        assert driver.log == []
        expected = {
            InitProducerIdReply: InitProducerIdReply(code),
            AddPartitionsReply: AddPartitionsReply(TID, ((T0, code),)),
            EndTxnReply: EndTxnReply(code),
        }
        assert reply == expected[type(reply)]


def test_an_id_whose_first_record_failed_stays_and_starts_at_epoch_0() -> None:
    """Unknown id: created in memory {newPid, E=-1}; the grid's row 'created now' serves the next attempt."""
    driver = Driver.of()
    driver.append_code = Code.KAFKA_STORAGE_ERROR
    assert driver.init() == InitProducerIdReply(Code.NOT_COORDINATOR, NO_PAIR)
    assert (driver.get().pair, driver.get().pending) == ((1000, -1), None)
    driver.append_code = 0
    assert driver.init(producer_id=3, producer_epoch=3).pair == (1000, 0)


def test_a_transition_that_the_table_does_not_have_is_a_bug() -> None:
    """As Kafka's IllegalStateException in prepareTransitionTo."""
    before = metadata(StateId.EMPTY)
    with pytest.raises(AssertionError, match="Empty -> CompleteCommit"):
        change(Driver.of().state, before, before.moved_to(StateId.COMPLETE_COMMIT, START_MS))


LOADING = Code.COORDINATOR_LOAD_IN_PROGRESS
FULL = {state: metadata(state, (42, 32766)) for state in (StateId.EMPTY, StateId.ONGOING)}


@pytest.mark.parametrize(
    ("known", "event", "reply"),
    [
        (None, InitProducerId(transactional_id=None), InitProducerIdReply(LOADING)),
        (None, InitProducerId(transactional_id=TID), InitProducerIdReply(LOADING)),
        (FULL[StateId.EMPTY], InitProducerId(transactional_id=TID), InitProducerIdReply(LOADING)),
        (
            FULL[StateId.ONGOING],
            InitProducerId(transactional_id=TID, keep_prepared=True),
            InitProducerIdReply(LOADING),
        ),
        (FULL[StateId.ONGOING], end((42, 32766)), EndTxnReply(LOADING)),
        (FULL[StateId.ONGOING], AbortTimedOut(transactional_id=TID, producer_id=42), None),
    ],
    ids=["no id", "new id", "rotation", "kept", "end", "timeout"],
)
def test_without_a_producer_id_nothing_changes_until_the_next_block_is_there(
    known: TransactionMetadata | None, event: Event, reply: Reply | None
) -> None:
    """Block exhausted, and the disk refuses the next one: 14."""
    driver = Driver.of(*([] if known is None else [known]), settings=KEEPING, producer_ids=NO_PRODUCER_IDS)
    driver.now_ms += 60_001
    assert driver.refused(event) == reply
    driver.state = replace(driver.state, producer_ids=range(7, 9))
    again = driver.run(event)
    assert getattr(again, "code", 0) == 0
    assert driver.state.producer_ids == range(8, 9)


def test_an_id_that_never_got_an_epoch_takes_nothing() -> None:
    """Left by a first InitProducerId whose append failed."""
    event = AddPartitionsToTxn(transactional_id=TID, producer_id=42, producer_epoch=-1, partitions=(T0,))
    driver = Driver.of(metadata(StateId.EMPTY, (42, -1)))
    assert driver.refused(event) == AddPartitionsReply(TID, ((T0, Code.UNKNOWN_SERVER_ERROR),))


@pytest.mark.parametrize(
    ("name", "expected"),
    # String.hashCode of Java 17: orders -1008770331, '' 0, "polygenelubricants" Integer.MIN_VALUE, a😀 1866116.
    [("orders", 31), ("", 0), ("polygenelubricants", 0), ("a\U0001f600", 16)],
)
def test_an_id_lives_where_kafka_puts_it(name: str, expected: int) -> None:
    """abs(java String.hashCode(tid)) mod N, abs(MIN_INT) = 0."""
    assert partition_for(name, 50) == expected


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
