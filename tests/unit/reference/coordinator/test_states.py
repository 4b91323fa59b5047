"""The table of transitions against the predecessors in Kafka's TransactionState, and the small rules of states."""

from __future__ import annotations

from spark_2pc_sink.reference.coordinator.states import COMPLETION, DECIDED, PREDECESSORS


def test_only_a_decided_transaction_is_completed() -> None:
    assert set(COMPLETION) == DECIDED
    assert all(PREDECESSORS[after] == {before} for before, after in COMPLETION.items())
