"""The table of the writer's states, by itself. Covers B4 and B23."""

from __future__ import annotations

import itertools

import pytest

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.producer import RULES, Operation, WriterState, rule_for

ALLOWED = {(rule.state, rule.operation) for rule in RULES}


def test_no_call_has_two_rules() -> None:
    assert len(ALLOWED) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.state.value}: {rule.operation.value}")
def test_every_rule_has_a_source(rule: object) -> None:
    source = getattr(rule, "source", "")
    assert source.startswith(("KIP-", "KafkaProducer"))


@pytest.mark.parametrize(
    ("state", "operation"),
    [pair for pair in itertools.product(WriterState, Operation) if pair not in ALLOWED],
    ids=lambda part: part.value,
)
def test_a_call_without_a_rule_is_refused_and_says_what_is_allowed(state: WriterState, operation: Operation) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        rule_for(state, operation)
    assert caught.value.state == state.value
    assert "close" in caught.value.rule


def test_prepared_and_kept_allow_only_the_end_of_the_transaction() -> None:
    """KIP-939: 'a mode where only .commitTransaction, .abortTransaction, or .completeTransaction could be called'."""
    ends = {Operation.COMMIT, Operation.ABORT, Operation.COMPLETE, Operation.CLOSE}
    for state in (WriterState.PREPARED, WriterState.KEPT):
        assert {operation for allowed, operation in ALLOWED if allowed is state} == ends


def test_an_unknown_outcome_can_only_be_repeated() -> None:
    """The javadoc of commitTransaction: after a time-out it is safe to retry, and abort is not possible (B4)."""
    assert (WriterState.COMMITTING, Operation.ABORT) not in ALLOWED
    assert (WriterState.ABORTING, Operation.COMMIT) not in ALLOWED


def test_every_state_can_be_reached_and_left() -> None:
    reached = {WriterState.UNINITIALISED, WriterState.FATAL, WriterState.KEPT_NOTHING}
    reached |= {state for rule in RULES for state in (rule.done, rule.failed, rule.unknown)}
    assert reached == set(WriterState)
    assert {state for state, _ in ALLOWED} == set(WriterState)
