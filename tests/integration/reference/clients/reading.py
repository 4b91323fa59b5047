"""What the tests of several clients share: waiting for records, for a balanced group, for what is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import pytest

from spark_2pc_sink.testing import read_topic, wait_until

T = TypeVar("T")
C = TypeVar("C")

DEADLINE_S = 30.0
#: The brokers that clients are tried on: Kafka shows that the tests are right, the other that it answers as Kafka does.
BROKERS = (
    pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.java, pytest.mark.thorough]),
    pytest.param("reference", marks=pytest.mark.kafka),
)


def take(poll: Callable[[], Iterable[T]], count: int) -> list[T]:
    """Poll until ``count`` records have arrived; more is a failure."""
    records: list[T] = []

    def complete() -> bool:
        records.extend(poll())
        return len(records) >= count

    wait_until(complete, deadline_s=DEADLINE_S, what=f"{count} records")
    assert len(records) == count, records
    return records


def balance(
    members: Sequence[C],
    shares: Sequence[int],
    *,
    poll: Callable[[C], Iterable[T]],
    assigned: Callable[[C], Iterable[int]],
) -> list[T]:
    """Poll members of a group in turn until each has its share of the partitions and no partition has two owners.

    Returns the records that arrived in the meantime.
    """
    records: list[T] = []

    def balanced() -> bool:
        for member in members:
            records.extend(poll(member))
        found = [set(assigned(member)) for member in members]
        return [len(share) for share in found] == list(shares) and len(set().union(*found)) == sum(shares)

    wait_until(balanced, deadline_s=DEADLINE_S, what=f"shares of {shares} partitions")
    return records


def values(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[str]:
    records = read_topic(bootstrap, topic, isolation=isolation)
    return [(record.value or b"").decode() for record in records]


def committed_values(bootstrap: str, topic: str, count: int) -> list[str]:
    """What a committed reader finds once there is so much: EndTxn is answered before the markers are written."""
    found: list[str] = []

    def complete() -> bool:
        found[:] = values(bootstrap, topic)
        return len(found) >= count

    wait_until(complete, deadline_s=DEADLINE_S, what=f"{count} committed records")
    return found
