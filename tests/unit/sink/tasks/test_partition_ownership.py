"""Every partition has one owner, and every row a partition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.sink.tasks.partition_ownership import check_partitions, owned_partitions, owner_of, spread


@given(topic=st.text(min_size=1, max_size=20), count=st.integers(1, 200), tasks=st.integers(1, 50))
def test_every_partition_has_exactly_one_owner(topic: str, count: int, tasks: int) -> None:
    """B30: no two tasks write one partition."""
    owned = [owned_partitions(topic, count, task=task, tasks=tasks) for task in range(tasks)]
    assert sorted(partition for one in owned for partition in one) == list(range(count))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    for task, partitions in enumerate(owned):
        assert {owner_of(topic, partition, tasks) for partition in partitions} <= {task}


@given(rows=st.integers(0, 2_000), partitions=st.lists(st.integers(0, 99), min_size=1, max_size=20, unique=True))
def test_rows_without_a_key_are_shared_out_evenly_in_runs(rows: int, partitions: list[int]) -> None:
    """As a sticky partitioner does."""
    spread_out = spread(rows, partitions).tolist()
    assert len(spread_out) == rows
    assert set(spread_out) <= set(partitions)
    counts = [spread_out.count(partition) for partition in partitions]
    assert max(counts) - min(counts) <= 1
    assert sum(a != b for a, b in pairwise(spread_out)) < len(partitions)


def test_a_partition_that_the_topic_lacks_is_refused_with_its_row() -> None:
    """The row is named by the caller's description."""
    with pytest.raises(UnstorableValueError, match="topic 'orders' has partitions 0 to 3") as raised:
        check_partitions(np.array([0, 3, 4], dtype=np.int32), "orders", 4, lambda row: f"row {row}")
    assert raised.value.row_key == "row 2"
    check_partitions(np.array([0, 3], dtype=np.int32), "orders", 4, str)
