"""Placing ids, producer id blocks, and the sharing of what does not change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.reference.coordinator.coordinator_state import (
    NO_BLOCK,
    CoordinatorState,
    ProducerIdBlock,
    ProducerIds,
    Profile,
    Settings,
    partition_for,
)
from spark_2pc_sink.reference.coordinator.states import COMPLETION, DECIDED, PREDECESSORS, StateId
from tests.unit.reference.waiting import present

from .driver import RELEASED, metadata


@pytest.mark.parametrize(
    ("name", "expected"),
    # String.hashCode of Java 17: orders -1008770331, '' 0, "polygenelubricants" Integer.MIN_VALUE, a😀 1866116.
    [("orders", 31), ("", 0), ("polygenelubricants", 0), ("a\U0001f600", 16)],
)
def test_an_id_lives_where_kafka_puts_it(name: str, expected: int) -> None:
    """abs(java String.hashCode(tid)) mod N, abs(MIN_INT) = 0."""
    assert partition_for(name, 50) == expected


def test_ids_come_from_the_block_in_order_and_then_from_the_next() -> None:
    """Pid allocation order: 0, 1, 2 …; jumps to the next block."""
    ids = ProducerIds(ProducerIdBlock(0, 2)).with_block(ProducerIdBlock(5000, 2))
    given = []
    for _ in range(4):
        taken = present(ids.take())
        given.append(taken[0])
        ids = taken[1]
    assert given == [0, 1, 5000, 5001]
    assert ids.take() is None


def test_a_block_is_wanted_when_nine_tenths_are_used() -> None:
    ids = ProducerIds(ProducerIdBlock(0, 10), taken=8)
    assert not ids.wants_block
    assert replace(ids, taken=9).wants_block
    assert not replace(ids, taken=9).with_block(ProducerIdBlock(10, 10)).wants_block
    assert ProducerIds(NO_BLOCK).wants_block


@pytest.mark.parametrize("again", [ProducerIdBlock(0, 10), ProducerIdBlock(10, 10), ProducerIdBlock(20, 10)])
def test_a_block_that_is_here_or_not_needed_changes_nothing(again: ProducerIdBlock) -> None:
    """No id is handed out twice because an allocation was reported twice."""
    ids = ProducerIds(ProducerIdBlock(0, 10)).with_block(ProducerIdBlock(10, 10))
    assert ids.with_block(again) == ids
    assert ProducerIds(ProducerIdBlock(0, 10)).with_block(ProducerIdBlock(0, 10)).following is None


@pytest.mark.parametrize(
    ("level", "profile", "wanted", "keeps", "log_version"),
    [
        (0, Profile.KEEP_PREPARED, 2, False, 0),
        (1, Profile.KEEP_PREPARED, 2, False, 1),
        (2, Profile.KEEP_PREPARED, 2, True, 1),
        (2, Profile.KEEP_UNCHANGED, 3, False, 1),
        (3, Profile.KEEP_UNCHANGED, 3, True, 1),
        (2, Profile.AS_RELEASED, 2, False, 1),
    ],
)
def test_feature_level_and_profile_decide_what_is_kept(
    level: int, profile: Profile, wanted: int, keeps: bool, log_version: int
) -> None:
    settings = Settings(transaction_version=level, profile=profile, keep_prepared_version=wanted)
    assert (settings.keeps_prepared, settings.log_version) == (keeps, log_version)


def test_a_change_shares_every_partition_but_one() -> None:
    state = CoordinatorState.new(RELEASED)
    changed = state.with_metadata("orders", metadata(StateId.EMPTY))
    index = state.partition_of("orders")
    assert [old is new for old, new in zip(state.partitions, changed.partitions, strict=True)].count(False) == 1
    assert list(changed) == [changed.get("orders")]
    assert changed.with_metadata("orders", None) == state
    assert state.partitions[index].transactions == {}


def test_only_a_decided_transaction_is_completed() -> None:
    assert set(COMPLETION) == DECIDED
    assert all(PREDECESSORS[after] == {before} for before, after in COMPLETION.items())
