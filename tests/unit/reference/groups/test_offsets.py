"""Committed and pending offsets, as ``OffsetMetadataManager`` keeps them."""

from __future__ import annotations

import pytest

from spark_2pc_sink.reference.groups.members import Group, GroupState, Member
from spark_2pc_sink.reference.groups.records import OffsetKey, OffsetValue
from spark_2pc_sink.reference.groups.store import OffsetTable

KEY = OffsetKey("g", "orders", 0)
DAY_MS = 86_400_000


def at(offset: int, commit_ms: int = 0, expire_ms: int = -1) -> OffsetValue:
    return OffsetValue(offset=offset, commit_ms=commit_ms, expire_ms=expire_ms)


def test_transactions_do_not_see_each_other() -> None:
    table = OffsetTable()
    table.replay(0, 7, KEY, at(5))
    table.replay(1, 8, KEY, at(6))
    table.end_transaction(8, commit=True)
    assert (table.get(KEY), table.is_pending(KEY)) == (at(6), True)
    table.end_transaction(7, commit=True)
    assert (table.get(KEY), table.is_pending(KEY)) == (at(6), False)
    table.end_transaction(9, commit=True)


def test_a_tombstone_takes_pending_offsets_away_too() -> None:
    table = OffsetTable()
    table.replay(0, -1, KEY, at(1))
    table.replay(1, 7, KEY, at(5))
    table.replay(2, -1, KEY, None)
    assert (table.get(KEY), table.is_pending(KEY), table.keys_of(KEY.group_id)) == (None, False, [])
    table.end_transaction(7, commit=True)
    assert table.get(KEY) is None


SIMPLE = Group(group_id="g")
EMPTY = Group(group_id="g", protocol_type="consumer", state_since_ms=DAY_MS, topics=frozenset())
MEMBER = Member(
    member_id="m",
    instance_id=None,
    client_id="c",
    client_host="h",
    session_timeout_ms=1,
    rebalance_timeout_ms=1,
    protocols=(("range", b""),),
)


def stable(*topics: str) -> Group:
    return Group(
        group_id="g", state=GroupState.STABLE, protocol_type="consumer", members={"m": MEMBER}, topics=frozenset(topics)
    )


@pytest.mark.parametrize(
    ("group", "value", "now_ms", "expired"),
    [
        (SIMPLE, at(1, 1_000), 1_000 + 7 * DAY_MS - 1, False),
        (SIMPLE, at(1, 1_000), 1_000 + 7 * DAY_MS, True),
        (EMPTY, at(1, 0), 8 * DAY_MS - 1, False),
        (EMPTY, at(1, 0), 8 * DAY_MS, True),
        (stable("orders"), at(1, 0), 100 * DAY_MS, False),
        (stable("payments"), at(1, 0), 7 * DAY_MS, True),
        (stable("payments"), at(1, 1), 7 * DAY_MS, False),
        (Group(group_id="g", state=GroupState.STABLE, protocol_type="connect"), at(1), 100 * DAY_MS, False),
        (SIMPLE, at(1, 0, expire_ms=500), 499, False),
        (SIMPLE, at(1, 0, expire_ms=500), 500, True),
    ],
)
def test_retention(group: Group, value: OffsetValue, now_ms: int, expired: bool) -> None:
    """KIP-211: from the last commit for clients without a group, from the end of the last member for groups."""
    table = OffsetTable()
    table.replay(0, -1, KEY, value)
    assert table.expired(group, now_ms, 7 * DAY_MS) == ([KEY] if expired else [])
    table.replay(1, 7, KEY, value)
    assert table.expired(group, now_ms, 7 * DAY_MS) == []
