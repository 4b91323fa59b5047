"""InitProducerId(keepPreparedTxn), trace by trace, and where apache/kafka pull request 21735 departs from KIP-939.

The traces are the reference vectors A to I: a kept transaction, crash loops, one and two epoch overflows,
force-terminate, timeout, nothing ongoing, and a crash between decision and completion. B3, B11, B12, B28.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS
from spark_2pc_sink.reference.coordinator.coordinator_state import NO_BLOCK, ProducerIdBlock
from spark_2pc_sink.reference.coordinator.end_txn import due_timeouts
from spark_2pc_sink.reference.coordinator.events import AbortTimedOut, AddPartitionsToTxn, InitProducerId
from spark_2pc_sink.reference.coordinator.plans import (
    AddPartitionsReply,
    AllocateProducerIdBlock,
    EndTxnReply,
    InitProducerIdReply,
)
from spark_2pc_sink.reference.coordinator.states import NO_PAIR, Pair, TransactionState

from .driver import KEEPING, KEEPING_UNCHANGED, RELEASED, START_MS, T0, T1, TID, Driver, end, metadata

O = TransactionState.ONGOING  # noqa: E741 - the letter of the traces


def ongoing(pair: tuple[int, int], client: tuple[int, int] | None = None, **changes: object) -> Driver:
    """An Ongoing transaction, kept if a client pair is given; new producer ids are 73 and up."""
    kept = {} if client is None else {"next_producer_id": client[0], "next_producer_epoch": client[1]}
    known = metadata(O, pair, **kept, **({"timeout_ms": TIMEOUT_NEVER_MS} | changes))
    return Driver.of(known, settings=KEEPING, block=ProducerIdBlock(73, 20))


def keep(driver: Driver, **fields: Any) -> InitProducerIdReply:
    return driver.init(keep_prepared=True, **fields)


def kept(pair: tuple[int, int], transaction: tuple[int, int]) -> InitProducerIdReply:
    return InitProducerIdReply(0, Pair(*pair), Pair(*transaction))


def done(pair: tuple[int, int]) -> EndTxnReply:
    return EndTxnReply(0, Pair(*pair))


FENCED = EndTxnReply(Code.PRODUCER_FENCED)
UNKNOWN = EndTxnReply(Code.INVALID_PRODUCER_ID_MAPPING)


@pytest.mark.parametrize("commit", [True, False])
def test_trace_a_keep_and_end(commit: bool) -> None:
    """(42,100) keep -> (42,101); end(42,101): markers (42,101), Complete (42,102); late end(42,100) -> 90."""
    driver = ongoing((42, 100))
    assert keep(driver) == kept((42, 101), (42, 100))
    assert driver.refused(end((42, 100), commit=commit)) == FENCED
    assert driver.do(end((42, 101), commit=commit)) == done((42, 102))
    (markers,) = driver.drain()
    assert (markers.producer_id, markers.producer_epoch, markers.transaction_version) == (42, 101, 2)
    assert driver.get().pair == (42, 102)
    assert driver.refused(end((42, 101), commit=commit)) == done((42, 102))
    assert driver.refused(end((42, 100), commit=commit)) == FENCED
    assert driver.add((42, 102)) == {0}


def test_trace_b_three_recoveries_in_a_row() -> None:
    """Keep three times: NE 101, 102, 103; commit(42,103): markers (42,101), Complete (42,104); commit(42,102) -> 90."""
    driver = ongoing((42, 100))
    assert [keep(driver).pair for _ in range(3)] == [(42, 101), (42, 102), (42, 103)]
    for stale in (100, 101, 102, 104):
        assert driver.refused(end((42, stale))) == FENCED
    assert driver.do(end((42, 103))) == done((42, 104))
    (markers,) = driver.drain()
    assert markers.producer_epoch == 101
    assert driver.refused(end((42, 102))) == FENCED
    assert driver.refused(end((42, 103))) == done((42, 104))


def test_trace_c_a_rotated_client_pair() -> None:
    """{42,10},{73,85} commit(73,85) -> Complete (73,86); retry (73,85) is an epoch-bump retry."""
    driver = ongoing((42, 10), (73, 85))
    assert driver.refused(end((42, 10))) == UNKNOWN
    assert driver.do(end((73, 85))) == done((73, 86))
    (markers,) = driver.drain()
    assert (markers.producer_id, markers.producer_epoch) == (42, 11)
    assert (driver.get().pair, driver.get().previous_producer_id) == ((73, 86), 73)
    assert driver.refused(end((73, 85))) == done((73, 86))
    assert driver.refused(end((42, 10))) == UNKNOWN


def test_trace_d_two_overflows() -> None:
    """(42,32766) keep -> (73,0) … (73,32766); commit: Prepare (42,32767,PP=73,NP=85,NE=0), Complete (85,0,PP=73)."""
    driver = ongoing((42, 32766))
    assert keep(driver) == kept((73, 0), (42, 32766))
    assert keep(driver) == kept((73, 1), (42, 32766))
    driver.state = driver.state.with_metadata(TID, replace(driver.get(), next_producer_epoch=32765))
    driver.state = replace(driver.state, producer_ids=replace(driver.state.producer_ids, taken=12))
    assert keep(driver) == kept((73, 32766), (42, 32766))
    assert driver.do(end((73, 32766))) == done((85, 0))
    prepare = driver.log[-1].value
    assert prepare is not None
    assert (prepare.producer_id, prepare.producer_epoch, prepare.previous_producer_id) == (42, 32767, 73)
    assert (prepare.next_producer_id, prepare.next_producer_epoch) == (85, 0)
    (markers,) = driver.drain()
    assert (markers.producer_id, markers.producer_epoch) == (42, 32767)
    assert (driver.get().pair, driver.get().previous_producer_id) == ((85, 0), 73)
    assert driver.refused(end((73, 32766))) == done((85, 0))
    assert driver.refused(end((73, 32765))) == UNKNOWN
    assert driver.refused(end((42, 32766))) == UNKNOWN


def test_trace_d_departs_from_the_kip_no_client_gets_32767() -> None:
    """KIP-939 lets NextProducerEpoch reach MAX and the client commit with it; here one more keep rotates instead.

    That would defeat the retry test, which looks for 32766, and break 'clients never see MAX'.
    """
    driver = ongoing((42, 32766), (72, 32766))
    assert keep(driver) == kept((73, 0), (42, 32766))


def test_trace_e_the_kept_epoch_is_the_last() -> None:
    """Init (32765), produce, keep -> 32766, commit -> rotation: (newPid, 0)."""
    driver = ongoing((42, 32765))
    assert keep(driver) == kept((42, 32766), (42, 32765))
    assert driver.do(end((42, 32766))) == done((73, 0))
    (markers,) = driver.drain()
    assert (markers.producer_id, markers.producer_epoch) == (42, 32766)
    assert driver.refused(end((42, 32766))) == done((73, 0))


def test_trace_f_force_terminate() -> None:
    """{42,100},{42,101} + plain: markers (42,101), CompleteAbort (42,102), answer 51; retry -> Empty (42,103)."""
    driver = ongoing((42, 100), (42, 101))
    assert driver.do(InitProducerId(transactional_id=TID)) == InitProducerIdReply(Code.CONCURRENT_TRANSACTIONS)
    (markers,) = driver.drain()
    assert (markers.producer_epoch, markers.commit) == (101, False)
    assert (driver.get().state, driver.get().pair) == (TransactionState.COMPLETE_ABORT, (42, 102))
    assert driver.refused(end((42, 101), commit=False)) == done((42, 102))
    assert driver.refused(end((42, 101), commit=True)) == EndTxnReply(Code.INVALID_TXN_STATE)
    assert driver.init() == InitProducerIdReply(0, Pair(42, 103))
    for commit in (True, False):
        assert driver.refused(end((42, 101), commit=commit)) == FENCED


def test_trace_g_a_timeout_of_a_kept_transaction() -> None:
    """Non-2PC transaction that was kept: same as F up to CompleteAbort. KIP-939: legal without enable2Pc."""
    driver = ongoing((42, 100), timeout_ms=60_000)
    assert keep(driver) == kept((42, 101), (42, 100))
    driver.now_ms += 60_001
    driver.do(AbortTimedOut(transactional_id=TID, producer_id=42))
    (markers,) = driver.drain()
    assert (markers.producer_epoch, markers.commit) == (101, False)
    assert driver.get().pair == (42, 102)
    assert driver.refused(end((42, 101))) == EndTxnReply(Code.INVALID_TXN_STATE)


@pytest.mark.parametrize("label", ["EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT"])
def test_trace_h_nothing_ongoing(label: str) -> None:
    """Complete (42,102) + keep -> Empty (42,103), ongoing (-1,-1)."""
    driver = Driver.of(metadata(TransactionState[label], (42, 102)), settings=KEEPING)
    assert keep(driver, timeout_ms=7) == InitProducerIdReply(0, Pair(42, 103), NO_PAIR)
    assert (driver.get().state, driver.get().timeout_ms) == (TransactionState.EMPTY, 7)
    assert keep(Driver.of(settings=KEEPING)) == InitProducerIdReply(0, Pair(1000, 0), NO_PAIR)


def test_trace_i_a_crash_between_decision_and_completion() -> None:
    """Reload must restore NP, NE, PP from the tags and resend markers (42, 32767)."""
    driver = ongoing((42, 32766), (73, 32766))
    driver.do(end((73, 32766)))
    driver.effects.clear()
    reloaded = driver.crashed()
    (markers,) = reloaded.drain()
    assert (markers.producer_id, markers.producer_epoch, markers.coordinator_epoch) == (42, 32767, 1)
    assert (reloaded.get().pair, reloaded.get().previous_producer_id) == ((73, 0), 73)
    assert reloaded.refused(end((73, 32766))) == done((73, 0))


def test_a_crash_after_keep_loses_neither_pair() -> None:
    driver = ongoing((42, 100))
    keep(driver)
    reloaded = driver.crashed()
    assert (reloaded.get().pair, reloaded.get().client_pair) == ((42, 100), (42, 101))
    assert keep(reloaded) == kept((42, 102), (42, 100))
    assert reloaded.end((42, 102)) == done((42, 103))


def test_keeping_changes_nothing_but_the_client_pair() -> None:
    """P, E, partitions, start and the transaction's own timeout do not change; see `TestWhoseTimeout`."""
    driver = ongoing((42, 100), partitions=frozenset({T0, T1}), last_producer_epoch=99)
    before = driver.get()
    driver.now_ms += 5
    keep(driver, timeout_ms=5, enable_2pc=False)
    expected = replace(
        before,
        next_producer_id=42,
        next_producer_epoch=101,
        last_update_ms=START_MS + 5,
        last_producer_epoch=99,
        timeout_after_keep_ms=5,
    )
    assert driver.get() == expected


class TestWhoMayAsk:
    """Supplied (p,e): validated against the client's pair, mismatch -> 90."""

    @pytest.mark.parametrize("given", [(42, 100), (42, 102), (41, 101), (73, 101)])
    @pytest.mark.parametrize("keep_prepared", [True, False])
    def test_only_the_latest_pair_may_be_supplied(self, given: tuple[int, int], keep_prepared: bool) -> None:
        """An earlier recoverer must neither take over nor abort what the database may have decided to commit."""
        driver = ongoing((42, 100), (42, 101))
        event = InitProducerId(
            transactional_id=TID, producer_id=given[0], producer_epoch=given[1], keep_prepared=keep_prepared
        )
        assert driver.refused(event) == InitProducerIdReply(Code.PRODUCER_FENCED)

    def test_the_latest_pair_may_keep_again_or_abort(self) -> None:
        driver = ongoing((42, 32766), (73, 4))
        assert keep(driver, producer_id=73, producer_epoch=4) == kept((73, 5), (42, 32766))
        assert driver.init(producer_id=73, producer_epoch=5).code == Code.CONCURRENT_TRANSACTIONS
        assert driver.get().pair == (73, 6)

    def test_the_first_keep_checks_the_pair_of_the_transaction(self) -> None:
        driver = ongoing((42, 100))
        event = InitProducerId(transactional_id=TID, producer_id=42, producer_epoch=99, keep_prepared=True)
        assert driver.refused(event) == InitProducerIdReply(Code.PRODUCER_FENCED)
        assert keep(driver, producer_id=42, producer_epoch=100).pair == (42, 101)

    def test_a_change_under_way_is_waited_for(self) -> None:
        """Pending or Prepare* -> 51."""
        waiting = (
            metadata(O, pending=O),
            metadata(TransactionState.PREPARE_COMMIT),
            metadata(TransactionState.PREPARE_ABORT),
        )
        for known in waiting:
            driver = Driver.of(known, settings=KEEPING)
            event = InitProducerId(transactional_id=TID, keep_prepared=True)
            assert driver.refused(event) == InitProducerIdReply(Code.CONCURRENT_TRANSACTIONS)

    def test_rotation_waits_for_a_producer_id(self) -> None:
        driver = Driver.of(metadata(O, (42, 32766)), settings=KEEPING, block=NO_BLOCK)
        before = driver.state
        plan = driver.plan(InitProducerId(transactional_id=TID, keep_prepared=True))
        assert driver.finish(plan) == InitProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS)
        assert (plan.effects, driver.state) == ((AllocateProducerIdBlock(),), before)


@pytest.mark.parametrize(
    ("settings", "code"),
    [(RELEASED, 35), (replace(KEEPING, transaction_version=1), 35), (replace(KEEPING, transaction_version=0), 35)],
    ids=["as released", "transaction.version 1", "transaction.version 0"],
)
def test_keeping_needs_the_profile_and_the_feature(settings: object, code: int) -> None:
    """As released -> 35; feature level < 2 -> 35: the tags need value version 1."""
    driver = Driver.of(metadata(O, client_transaction_version=0), settings=settings)  # type: ignore[arg-type]
    event = InitProducerId(transactional_id=TID, keep_prepared=True)
    assert driver.refused(event) == InitProducerIdReply(code)


class TestWhoseTimeout:
    """Two-phase commit is what the client that now holds the id asked for and may do (KIP-939, Scope: a privilege)."""

    @pytest.mark.parametrize("commit", [True, False])
    @pytest.mark.parametrize("crash", [True, False])
    def test_a_client_without_it_gets_transactions_that_expire(self, commit: bool, crash: bool) -> None:
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

    def test_a_client_with_it_never_sees_one_expire(self) -> None:
        driver = ongoing((42, 100), timeout_ms=60_000)
        keep(driver, enable_2pc=True)
        driver.now_ms += 10**9
        assert due_timeouts(driver.state, driver.now_ms) == ()
        driver.end((42, 101))
        driver.add((42, 102))
        driver.now_ms += 10**9
        assert due_timeouts(driver.state, driver.now_ms) == ()

    def test_the_last_that_kept_counts(self) -> None:
        driver = ongoing((42, 100))
        keep(driver, timeout_ms=30_000)
        keep(driver, enable_2pc=True)
        assert driver.crashed().get().timeout_after_keep_ms == -1
        keep(driver, timeout_ms=20_000)
        driver.end((42, 103))
        assert driver.get().timeout_ms == 20_000

    def test_a_timeout_that_the_broker_does_not_allow_is_refused(self) -> None:
        driver = ongoing((42, 100))
        event = InitProducerId(transactional_id=TID, keep_prepared=True, timeout_ms=900_001)
        assert driver.refused(event) == InitProducerIdReply(Code.INVALID_TRANSACTION_TIMEOUT)


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


class TestOnlyTheEndMayFollow:
    """KIP-939: 'the application is only allowed to call .commitTransaction, .abortTransaction, or
    .completeTransaction'.
    """  # noqa: D205

    @pytest.mark.parametrize(("pair", "code"), [((42, 101), 48), ((42, 100), 90), ((42, 102), 90), ((73, 101), 49)])
    def test_no_partition_joins(self, pair: tuple[int, int], code: int) -> None:
        """p≠cp -> 49, e≠ce -> 90, exact C -> 48: data at ce would make the marker (P,E+1) stale."""
        driver = ongoing((42, 100), (42, 101))
        for partition in (T0, T1):
            event = AddPartitionsToTxn(
                transactional_id=TID, producer_id=pair[0], producer_epoch=pair[1], partitions=(partition,)
            )
            assert driver.refused(event) == AddPartitionsReply(TID, ((partition, code),))

    @pytest.mark.parametrize(("pair", "codes"), [((42, 101), (48, 120)), ((42, 100), (90, 90)), ((73, 101), (49, 49))])
    def test_verification_says_so_too(self, pair: tuple[int, int], codes: tuple[int, int]) -> None:
        """verifyOnly with NP set: same pid and epoch rule, then 48 for what is in it, 120 for the rest."""
        driver = ongoing((42, 100), (42, 101))
        event = AddPartitionsToTxn(
            transactional_id=TID,
            producer_id=pair[0],
            producer_epoch=pair[1],
            partitions=(T0, T1),
            verify_only=True,
        )
        assert driver.refused(event) == AddPartitionsReply(TID, ((T0, codes[0]), (T1, codes[1])))

    @pytest.mark.parametrize(("pair", "code"), [((42, 101), 48), ((42, 100), 90), ((73, 101), 49)])
    @pytest.mark.parametrize("commit", [True, False])
    def test_an_end_without_the_bump_is_refused(self, pair: tuple[int, int], code: int, commit: bool) -> None:
        """EndTxn v<=4 with NP set: after the pid and epoch checks against C answer 48."""
        driver = ongoing((42, 100), (42, 101))
        assert driver.refused(end(pair, commit=commit, version=4)) == EndTxnReply(code)

    @pytest.mark.parametrize("pair", [(42, 100), (42, 32766), (42, 0)])
    def test_a_rotated_client_pair_fences_with_49(self, pair: tuple[int, int]) -> None:
        """The *original* (P,E) holder is fenced: if cp=P it gets 90, if rotated 49."""
        driver = ongoing((42, 32766), (73, 0))
        assert driver.refused(end(pair)) == UNKNOWN


def test_the_extra_bump_keeps_a_duplicate_end_out_of_the_next_transaction() -> None:
    """Not reusing ce is deliberate: a delayed duplicate EndTxn(ce) must not end the following transaction; B5."""
    driver = ongoing((42, 100), (42, 101))
    driver.end((42, 101))
    driver.add((42, 102))
    for commit in (True, False):
        assert driver.refused(end((42, 101), commit=commit)) == FENCED


def test_a_kept_transaction_survives_a_switch_of_the_profile() -> None:
    """The switch governs who may keep, not how what was kept is ended: no pair is ever handed out twice."""
    driver = ongoing((42, 100), (42, 101))
    driver.do(end((42, 101)))
    driver.state = replace(driver.state, settings=RELEASED)
    reloaded = driver.crashed()
    reloaded.drain()
    assert reloaded.get().pair == (42, 102)


class TestKeptUnchanged:
    """The form of apache/kafka pull request 22704; see also the vectors, and ``conformance/test_upstream_rows.py``."""

    def test_only_a_client_with_two_phase_commit_may_keep(self) -> None:
        driver = ongoing((42, 100))
        driver.state = replace(driver.state, settings=KEEPING_UNCHANGED)
        event = InitProducerId(transactional_id=TID, keep_prepared=True)
        assert driver.refused(event) == InitProducerIdReply(Code.INVALID_REQUEST)
        assert driver.refused(replace(event, enable_2pc=True)) == kept((42, 100), (42, 100))

    @pytest.mark.parametrize(("held", "code"), [({}, 51), ({"producer_id": 41, "producer_epoch": 1}, 90)])
    def test_a_transaction_with_a_timeout_is_not_kept(self, held: dict[str, int], code: int) -> None:
        driver = ongoing((42, 100), timeout_ms=60_000)
        driver.state = replace(driver.state, settings=KEEPING_UNCHANGED)
        assert keep(driver, enable_2pc=True, **held).code == code
        assert driver.get().state is (TransactionState.COMPLETE_ABORT if code == Code.CONCURRENT_TRANSACTIONS else O)

    def test_what_was_kept_with_a_bump_is_still_its_clients(self) -> None:
        """The setting has changed since."""
        driver = ongoing((42, 100), (42, 101))
        driver.state = replace(driver.state, settings=KEEPING_UNCHANGED)
        assert keep(driver, enable_2pc=True) == kept((42, 101), (42, 100))
