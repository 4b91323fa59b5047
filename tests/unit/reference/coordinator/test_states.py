"""The table of transitions against the predecessors in Kafka's TransactionState, and the small rules of states."""

from __future__ import annotations

import pytest

from spark_2pc_sink.reference.coordinator.states import (
    COMPLETION,
    DECIDED,
    PREDECESSORS,
    TRANSIENT,
    TRANSITIONS,
    TransactionState,
    exhausted,
)

from .driver import T0, metadata


def test_every_row_names_its_trigger_and_the_sentence_it_follows() -> None:
    assert all(row.trigger and row.sentence.startswith(("KIP-", "Kafka, ")) for row in TRANSITIONS)
    assert len({(row.source, row.target) for row in TRANSITIONS}) == len(TRANSITIONS)


def test_dead_and_epoch_fence_lead_nowhere_that_is_stored() -> None:
    """The fence is replaced by PrepareAbort at once; an id that is dead is gone."""
    targets = {row.target for row in TRANSITIONS if row.source in TRANSIENT}
    assert targets == {TransactionState.PREPARE_ABORT}


def test_only_a_decided_transaction_is_completed() -> None:
    assert set(COMPLETION) == DECIDED
    assert all(PREDECESSORS[after] == {before} for before, after in COMPLETION.items())


@pytest.mark.parametrize(("epoch", "expected"), [(32765, False), (32766, True), (32767, True), (0, False)])
def test_an_epoch_is_exhausted_from_32766(epoch: int, expected: bool) -> None:
    """EXH(x) = x >= 32766: 32767 is left for the marker."""
    assert exhausted(epoch) is expected


def test_the_client_pair_differs_only_while_a_kept_transaction_is_ongoing() -> None:
    """KIP-939: two pairs are persisted; outside of Ongoing the next pair is not yet the client's to use."""
    ongoing = metadata(TransactionState.ONGOING, (42, 10))
    kept = metadata(TransactionState.ONGOING, (42, 10), next_producer_id=73, next_producer_epoch=0)
    decided = metadata(TransactionState.PREPARE_COMMIT, (42, 11), next_producer_id=73, next_producer_epoch=1)
    assert (ongoing.client_pair, ongoing.kept) == ((42, 10), False)
    assert (kept.client_pair, kept.pair, kept.kept) == ((73, 0), (42, 10), True)
    assert (decided.client_pair, decided.kept) == ((42, 11), False)


def test_every_transition_remembers_the_producer_id_before_it() -> None:
    """The real log has PreviousProducerId = P from the first record on, although KIP-939's traces print -1."""
    moved = metadata(TransactionState.EMPTY, (42, 5), previous_producer_id=-1).moved_to(
        TransactionState.ONGOING, 7, partitions=frozenset({T0})
    )
    assert (moved.previous_producer_id, moved.last_update_ms, moved.pending) == (42, 7, None)
