"""What a person's word about an open transaction does, and where it does nothing."""

from __future__ import annotations

import itertools

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import ENDING_STATES, PreparedTxnState, ProducerIdAndEpoch, TransactionState
from spark_2pc_sink.recipe.resolve import (
    Halt,
    KafkaView,
    OpenTransactionEnd,
    Resolution,
    RowStatus,
    RowView,
    Verdict,
    apply_operator_choice,
    resolve,
)

FRESH = RowView(RowStatus.NONE, cluster_id="here")
PAIR = ProducerIdAndEpoch(7, 10)
COMMIT, ABORT = OpenTransactionEnd(3), OpenTransactionEnd(None)


def chosen(state: TransactionState, word: OpenTransactionEnd | None, row: RowView = FRESH) -> Resolution | Halt:
    kafka = KafkaView(state, PAIR, 2, "here")
    return apply_operator_choice(row, kafka, resolve(row, kafka, adopt=True), word)


def answer(found: Resolution | Halt) -> Verdict | HaltCause:
    return found.cause if isinstance(found, Halt) else found.verdict


@pytest.mark.parametrize(
    ("word", "found"), [(None, HaltCause.OPEN_TRANSACTION), (COMMIT, Verdict.TAKE_OPEN), (ABORT, Verdict.ABORT)]
)
def test_an_open_transaction_ends_as_a_person_says(word: OpenTransactionEnd | None, found: object) -> None:
    """C14: adopt alone ends nothing that the database may have decided."""
    assert answer(chosen(TransactionState.ONGOING, word)) is found


@pytest.mark.parametrize(
    ("word", "state", "found"),
    [
        (COMMIT, TransactionState.COMPLETE_ABORT, HaltCause.OPEN_TRANSACTION),
        (COMMIT, TransactionState.COMPLETE_COMMIT, HaltCause.OPEN_TRANSACTION),
        (COMMIT, TransactionState.EMPTY, HaltCause.OPEN_TRANSACTION),
        (ABORT, TransactionState.COMPLETE_COMMIT, HaltCause.OPEN_TRANSACTION),
        (ABORT, TransactionState.COMPLETE_ABORT, Verdict.NOTHING),
        (COMMIT, TransactionState.PREPARE_ABORT, Verdict.WAIT),
        (ABORT, TransactionState.PREPARE_COMMIT, Verdict.WAIT),
    ],
)
def test_it_may_have_ended_otherwise_meanwhile(
    word: OpenTransactionEnd, state: TransactionState, found: object
) -> None:
    """C14: a time-out, or an operator; to go on as if the word had been carried out would be wrong."""
    resolution = chosen(state, word)
    assert answer(resolution) is found
    if isinstance(resolution, Halt):
        assert f"could end with {word}: Kafka shows {state.value} 7:10" in resolution.reason


def test_a_row_that_tells_by_itself_is_not_overruled() -> None:
    """Safe to run twice: where the row names a decision, or a recovery has finished with it, the word does nothing."""
    known = [
        RowView(status, PreparedTxnState("7:10"), PreparedTxnState("7:9"), "here")
        for status in RowStatus
        if status is not RowStatus.NONE
    ] + [RowView(RowStatus.NONE, settled=PreparedTxnState("7:9"), cluster_id="here")]
    for row, state, word in itertools.product(known, TransactionState, (COMMIT, ABORT)):
        kafka = KafkaView(state, PAIR, 2, "here")
        found = resolve(row, kafka, adopt=True)
        assert apply_operator_choice(row, kafka, found, word) is found


def test_an_end_that_is_under_way_is_waited_for() -> None:
    for state, word in itertools.product(ENDING_STATES, (COMMIT, ABORT)):
        assert answer(chosen(state, word)) is Verdict.WAIT


def test_words_are_those_of_the_command_line() -> None:
    assert [str(COMMIT), str(ABORT)] == ["commit", "abort"]
