"""EndTxn: both grids written down a second time by hand, the arithmetic of pairs, overflow, and fencing.

The grids below are strings in the shape of a person's notes; the package has them as dictionaries. "R" is the reply
of the stored pair, "D" decides, "A" aborts nothing.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.coordinator_state import NO_BLOCK
from spark_2pc_sink.reference.coordinator.end_txn import Epoch, classify
from spark_2pc_sink.reference.coordinator.events import AbortTimedOut, InitProducerId, Operation, Resource
from spark_2pc_sink.reference.coordinator.plans import AllocateProducerIdBlock, EndTxnReply, SendMarkers
from spark_2pc_sink.reference.coordinator.states import NO_PAIR, STATES_BY_LABEL, Pair, TransactionState

from .access import denied
from .driver import RELEASED, T0, TID, Driver, end, metadata

# state: commit current, commit retry, abort current, abort retry; the epoch E is 5 throughout.
BUMP_GRID = """
Ongoing        D   90  D   90
Empty          48  90  A   90
CompleteCommit 48  R   A   48
CompleteAbort  48  48  A   R
PrepareCommit  90  51  90  48
PrepareAbort   90  48  90  51
"""
# state: commit, abort
PLAIN_GRID = """
Ongoing        D   D
Empty          48  48
CompleteCommit R   48
CompleteAbort  48  R
PrepareCommit  51  48
PrepareAbort   48  51
"""


def rows(grid: str, *columns: tuple[bool, int]) -> list[object]:
    cells: list[object] = []
    for line in grid.split("\n"):
        label, *words = line.split() or [""]
        for (commit, epoch), word in zip(columns, words, strict=False):
            name = f"{label}-{'commit' if commit else 'abort'}-e{epoch - 5:+d}-{word}"
            cells.append(pytest.param(STATES_BY_LABEL[label], commit, epoch, word, id=name))
    return cells


def check(state: TransactionState, commit: bool, epoch: int, word: str, version: int) -> None:
    driver = Driver.of(metadata(state))
    event = end((42, epoch), commit=commit, version=version)
    bumped = version >= 5
    if word in "DA":
        plan = driver.plan(event)
        assert plan.reply == EndTxnReply(Code.NONE, Pair(42, 6) if bumped else NO_PAIR)
        (record,) = plan.records
        assert record.value is not None
        assert record.value.state is (TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT)
        assert record.value.producer_epoch == (6 if bumped else 5)
        assert record.value.client_transaction_version == (2 if bumped else 0)
    elif word == "R":
        assert driver.refused(event) == EndTxnReply(Code.NONE, Pair(42, 5) if bumped else NO_PAIR)
    else:
        assert driver.refused(event) == EndTxnReply(int(word))


@pytest.mark.parametrize(
    ("state", "commit", "epoch", "word"), rows(BUMP_GRID, (True, 5), (True, 4), (False, 5), (False, 4))
)
def test_every_cell_of_the_grid_with_epoch_bump(state: TransactionState, commit: bool, epoch: int, word: str) -> None:
    """EndTxn v5: 'retry' is E = e + 1; in Prepare* with no change pending only the retry is not fenced."""
    check(state, commit, epoch, word, 5)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("epoch", [3, 6, 7, 0])
@pytest.mark.parametrize(
    "label", ["Ongoing", "Empty", "CompleteCommit", "CompleteAbort", "PrepareCommit", "PrepareAbort"]
)
def test_any_other_epoch_is_fenced(label: str, epoch: int, commit: bool) -> None:
    driver = Driver.of(metadata(STATES_BY_LABEL[label]))
    assert driver.refused(end((42, epoch), commit=commit)) == EndTxnReply(Code.PRODUCER_FENCED)


@pytest.mark.parametrize(("state", "commit", "epoch", "word"), rows(PLAIN_GRID, (True, 5), (False, 5)))
def test_every_cell_of_the_grid_without_epoch_bump(
    state: TransactionState, commit: bool, epoch: int, word: str
) -> None:
    """EndTxn v0 to v4: no bump, client transaction version 0, no pair in the reply."""
    check(state, commit, epoch, word, 4)


@pytest.mark.parametrize(("version", "code"), [(4, 90), (2, 90), (1, 47), (0, 47)])
@pytest.mark.parametrize("pending", [None, TransactionState.ONGOING])
def test_below_v5_the_epoch_is_checked_before_pending(
    version: int, code: int, pending: TransactionState | None
) -> None:
    """Order: 49 for the id, 90 (47 below v2) for the epoch, then pending 51."""
    driver = Driver.of(metadata(TransactionState.ONGOING, pending=pending))
    assert driver.refused(end((42, 4), version=version)) == EndTxnReply(code)
    assert driver.refused(end((41, 5), version=version)) == EndTxnReply(Code.INVALID_PRODUCER_ID_MAPPING)
    if pending is not None:
        assert driver.refused(end((42, 5), version=version)) == EndTxnReply(Code.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize("pair", [(42, 5), (42, 4), (41, 5), (42, 99)])
def test_from_v5_on_pending_is_checked_before_the_pair(pair: tuple[int, int]) -> None:
    """Order: empty id 42; unknown 49; pending 51 (before pid and epoch)."""
    driver = Driver.of(metadata(TransactionState.ONGOING, pending=TransactionState.ONGOING))
    assert driver.refused(end(pair)) == EndTxnReply(Code.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize("version", [4, 5])
def test_who_is_unknown_is_told_so(version: int) -> None:
    """Empty id 42; unknown id 49; another producer id 49."""
    assert Driver.of().refused(end((42, 5), version=version)) == EndTxnReply(Code.INVALID_PRODUCER_ID_MAPPING)
    event = replace(end((42, 5), version=version), transactional_id="")
    assert Driver.of().refused(event) == EndTxnReply(Code.INVALID_REQUEST)
    driver = Driver.of(metadata(TransactionState.ONGOING))
    assert driver.refused(end((41, 5), version=version)) == EndTxnReply(Code.INVALID_PRODUCER_ID_MAPPING)


@pytest.mark.parametrize("version", [4, 5])
def test_write_on_the_id_is_asked_first(version: int) -> None:
    access = denied((Operation.WRITE, Resource.TRANSACTIONAL_ID, TID))
    driver = Driver.of(metadata(TransactionState.ONGOING))
    event = end((42, 5), version=version, access=access)
    assert driver.refused(event) == EndTxnReply(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("commit", [True, False])
def test_an_ended_transaction_answers_its_retry_and_nothing_else(commit: bool) -> None:
    """KIP-890, COMPLETE: 'If we retry and see epoch - 1 + ID ... and are issuing the same command we can return'."""
    driver = Driver.of(metadata(TransactionState.ONGOING))
    assert driver.end((42, 5), commit=commit) == EndTxnReply(0, Pair(42, 6))
    assert driver.end((42, 5), commit=commit) == EndTxnReply(0, Pair(42, 6))
    assert driver.refused(end((42, 5), commit=not commit)) == EndTxnReply(Code.INVALID_TXN_STATE)


def test_a_retry_while_markers_are_written_has_to_wait() -> None:
    """KIP-890 says that a retry during PREPARE returns success with the new epoch; Kafka answers 51."""
    driver = Driver.of(metadata(TransactionState.ONGOING))
    driver.do(end((42, 5)))
    assert driver.get().pending is TransactionState.COMPLETE_COMMIT
    assert driver.refused(end((42, 5))) == EndTxnReply(Code.CONCURRENT_TRANSACTIONS)
    driver.drain()
    assert driver.refused(end((42, 5))) == EndTxnReply(0, Pair(42, 6))


@pytest.mark.parametrize(("version", "marker_epoch", "transaction_version"), [(5, 6, 2), (4, 5, 0)])
def test_what_markers_and_records_carry(version: int, marker_epoch: int, transaction_version: int) -> None:
    """TV2: Prepare, markers and Complete at E + 1; TV0/1: the epoch is unchanged throughout."""
    driver = Driver.of(metadata(TransactionState.ONGOING))
    driver.do(end((42, 5), version=version))
    assert driver.drain() == [
        SendMarkers(
            transactional_id=TID,
            producer_id=42,
            producer_epoch=marker_epoch,
            coordinator_epoch=0,
            commit=True,
            transaction_version=transaction_version,
            partitions=(T0,),
        )
    ]
    assert driver.get() == metadata(
        TransactionState.COMPLETE_COMMIT,
        (42, marker_epoch),
        last_producer_epoch=5 if version == 5 else -1,
        client_transaction_version=transaction_version,
    )


def test_an_ongoing_transaction_without_partitions_can_be_committed() -> None:
    """Commit of a transaction without partitions is 48 in Empty, but succeeds in Ongoing, with no markers."""
    driver = Driver.of(metadata(TransactionState.ONGOING, partitions=frozenset()))
    driver.do(end((42, 5)))
    assert driver.drain() == []
    assert [each.value.state.label for each in driver.log if each.value] == ["PrepareCommit", "CompleteCommit"]


@pytest.mark.parametrize("label", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_aborting_nothing_burns_an_epoch_and_restarts_the_clock(label: str) -> None:
    """Empty abort passes through PrepareAbort and CompleteAbort with no markers; start := now."""
    driver = Driver.of(metadata(STATES_BY_LABEL[label]), settings=RELEASED)
    driver.now_ms += 77
    assert driver.end((42, 5), commit=False) == EndTxnReply(0, Pair(42, 6))
    assert [each.value.state.label for each in driver.log if each.value] == ["PrepareAbort", "CompleteAbort"]
    assert (driver.get().pair, driver.get().start_ms, driver.get().partitions) == ((42, 6), driver.now_ms, frozenset())
    assert driver.end((42, 6), commit=False) == EndTxnReply(0, Pair(42, 7))


@pytest.mark.parametrize("commit", [True, False])
def test_the_last_epoch_ends_in_a_new_producer_id(commit: bool) -> None:
    """Prepare (P, 32767, NP=new), Complete (new, 0, PP=old), LE stays 32766; clients never see 32767."""
    driver = Driver.of(metadata(TransactionState.ONGOING, (42, 32766)))
    assert driver.end((42, 32766), commit=commit) == EndTxnReply(0, Pair(1000, 0))
    prepare, complete = (each.value for each in driver.log)
    assert prepare is not None
    assert complete is not None
    assert (prepare.producer_id, prepare.producer_epoch, prepare.next_producer_id) == (42, 32767, 1000)
    assert (complete.producer_id, complete.producer_epoch, complete.next_producer_id) == (1000, 0, -1)
    assert (complete.previous_producer_id, complete.next_producer_epoch) == (42, -1)
    assert driver.get().last_producer_epoch == 32766
    # KIP-890, COMPLETE: 'If we retry and see epoch max - 1 + ID in last seen fields ... we can return'.
    assert driver.end((42, 32766), commit=commit) == EndTxnReply(0, Pair(1000, 0))
    assert driver.refused(end((42, 32766), commit=not commit)) == EndTxnReply(Code.INVALID_TXN_STATE)
    assert driver.refused(end((42, 32765), commit=commit)) == EndTxnReply(Code.INVALID_PRODUCER_ID_MAPPING)


def test_the_epoch_before_the_last_does_not_overflow() -> None:
    driver = Driver.of(metadata(TransactionState.ONGOING, (42, 32765)))
    assert driver.end((42, 32765)) == EndTxnReply(0, Pair(42, 32766))
    assert driver.get().next_producer_id == -1


def test_without_a_producer_id_left_the_end_waits() -> None:
    """Block exhausted: 14, and nothing has changed."""
    driver = Driver.of(metadata(TransactionState.ONGOING, (42, 32766)), block=NO_BLOCK)
    before = driver.state
    plan = driver.plan(end((42, 32766)))
    assert plan.effects == (AllocateProducerIdBlock(),)
    assert driver.finish(plan) == EndTxnReply(Code.COORDINATOR_LOAD_IN_PROGRESS)
    assert driver.state == before
    driver.drain()
    assert driver.end((42, 32766)).code == 0


@pytest.mark.parametrize("label", ["Ongoing", "Empty"])
def test_an_overflow_retry_in_the_next_transaction_is_fenced_and_not_unknown(label: str) -> None:
    """`ovf` only bypasses the pid check: in Ongoing/Empty it then fails the epoch check: 90, not 49."""
    driver = Driver.of(metadata(STATES_BY_LABEL[label], (73, 0), previous_producer_id=42))
    assert driver.refused(end((42, 32766))) == EndTxnReply(Code.PRODUCER_FENCED)
    assert driver.refused(end((42, 32765))) == EndTxnReply(Code.INVALID_PRODUCER_ID_MAPPING)


def test_quirk_epoch_0_of_an_old_client_makes_32766_a_retry() -> None:
    """A TV1-completed transaction with E=0 and PP=P makes `ovf` true for (P, 32766): treated as a retry."""
    known = metadata(TransactionState.COMPLETE_COMMIT, (42, 0))
    assert Driver.of(known).refused(end((42, 32766))) == EndTxnReply(0, Pair(42, 0))
    assert classify(known, Pair(42, 32766)) is Epoch.RETRY


def test_the_broken_epoch_32767_can_only_be_aborted() -> None:
    """Broken state E=32767 (old bugs): abort keeps 32767 and still rotates; commit would go negative: -1."""
    driver = Driver.of(metadata(TransactionState.ONGOING, (42, 32767)))
    assert driver.refused(end((42, 32767))) == EndTxnReply(Code.UNKNOWN_SERVER_ERROR)
    driver.do(end((42, 32767), commit=False))
    (markers,) = driver.drain()
    assert markers.producer_epoch == 32767
    assert driver.get().pair == (1000, 0)


def test_after_a_timeout_the_old_client_learns_the_next_epoch_only_by_aborting() -> None:
    """Consequence (i): EndTxn(abort, e=E) succeeds as a "retry" and hands out E+1; commit 48; AddPartitions 90."""
    driver = Driver.of(metadata(TransactionState.ONGOING))
    driver.now_ms += 60_001
    driver.run(AbortTimedOut(transactional_id=TID, producer_id=42))
    assert driver.get().state is TransactionState.COMPLETE_ABORT
    assert driver.end((42, 5), commit=False) == EndTxnReply(0, Pair(42, 6))
    assert driver.end((42, 5), commit=True) == EndTxnReply(Code.INVALID_TXN_STATE)
    assert driver.add((42, 5)) == {Code.PRODUCER_FENCED}


def test_after_a_second_producer_has_come_the_first_is_fenced() -> None:
    """Consequences (ii) and (iii): between 51 and the retry the old producer can learn E+1; after it all is 90."""
    driver = Driver.of(metadata(TransactionState.ONGOING))
    assert driver.init().code == Code.CONCURRENT_TRANSACTIONS
    assert driver.end((42, 5), commit=False) == EndTxnReply(0, Pair(42, 6))
    assert driver.init().pair == (42, 7)
    for epoch in (5, 6):
        for commit in (True, False):
            assert driver.end((42, epoch), commit=commit) == EndTxnReply(Code.PRODUCER_FENCED)


@pytest.mark.parametrize(
    ("level", "marker_epoch", "last", "transaction_version"), [(2, 6, 5, 2), (1, 6, -1, 0), (0, 6, -1, 0)]
)
def test_fencing_bumps_once_at_every_feature_level(
    level: int, marker_epoch: int, last: int, transaction_version: int
) -> None:
    """TV2 fence: E -> E+1 inside the Prepare step, LE=E; TV0/1: the epoch is set to E+1 before, LE := -1."""
    known = metadata(TransactionState.ONGOING, client_transaction_version=0)
    driver = Driver.of(known, settings=replace(RELEASED, transaction_version=level))
    assert driver.do(InitProducerId(transactional_id=TID)) is not None
    (markers,) = driver.drain()
    assert (markers.producer_epoch, markers.commit, markers.transaction_version) == (
        marker_epoch,
        False,
        transaction_version,
    )
    assert (driver.get().pair, driver.get().last_producer_epoch) == ((42, 6), last)


@pytest.mark.parametrize(
    ("level", "after_abort", "after_retry"), [(2, (1000, 0), (1000, 1)), (1, (42, 32767), (1000, 0))]
)
def test_fencing_the_last_epoch(level: int, after_abort: tuple[int, int], after_retry: tuple[int, int]) -> None:
    """At E=32766, TV2: PrepareAbort 32767 -> CompleteAbort (newPid,0) -> retry (newPid,1); TV0/1: the retry rotates."""
    known = metadata(TransactionState.ONGOING, (42, 32766), client_transaction_version=0)
    driver = Driver.of(known, settings=replace(RELEASED, transaction_version=level))
    assert driver.init().code == Code.CONCURRENT_TRANSACTIONS
    assert driver.log[0].value is not None
    assert driver.log[0].value.producer_epoch == 32767
    assert driver.get().pair == after_abort
    assert driver.init().pair == after_retry


@pytest.mark.parametrize(
    ("version", "level", "code"), [(5, 0, Code.UNSUPPORTED_VERSION), (4, 0, 0), (5, 1, 0), (4, 2, 0)]
)
def test_the_client_chooses_the_version_of_each_request(version: int, level: int, code: int) -> None:
    """EndTxn v<=4 is accepted on TV2; a TV2 client on a cluster at level 0 cannot be logged: UNSUPPORTED_VERSION."""
    known = metadata(TransactionState.ONGOING, client_transaction_version=0)
    driver = Driver.of(known, settings=replace(RELEASED, transaction_version=level))
    assert driver.end((42, 5), version=version).code == code
    if code:
        assert driver.get() == known


def test_a_timeout_without_a_producer_id_left_is_tried_again_later() -> None:
    driver = Driver.of(metadata(TransactionState.ONGOING, (42, 32766)), block=NO_BLOCK)
    driver.now_ms += 60_001
    before = driver.state
    assert driver.do(AbortTimedOut(transactional_id=TID, producer_id=42)) is None
    assert driver.state == before
    driver.drain()
    driver.run(AbortTimedOut(transactional_id=TID, producer_id=42))
    assert driver.get().state is TransactionState.COMPLETE_ABORT
