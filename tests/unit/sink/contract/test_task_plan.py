"""Every partition has one owner."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.sink.contract.task_plan import owned_partitions, owner_of


@given(topic=st.text(min_size=1, max_size=20), count=st.integers(1, 200), tasks=st.integers(1, 50))
def test_every_partition_has_exactly_one_owner(topic: str, count: int, tasks: int) -> None:
    """B30: no two tasks write one partition."""
    owned = [owned_partitions(topic, count, task=task, tasks=tasks) for task in range(tasks)]
    assert sorted(partition for one in owned for partition in one) == list(range(count))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    for task, partitions in enumerate(owned):
        assert {owner_of(topic, partition, tasks) for partition in partitions} <= {task}
