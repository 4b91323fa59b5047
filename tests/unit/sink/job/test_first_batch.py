"""Which plans hand each row over as they come to it; Spark's own plans are in the tests with Spark."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.sink.job.classic_query import is_straight


class Plan:
    """A plan of Spark, as py4j shows it."""

    def __init__(self, name: str, *below: Plan) -> None:
        self._name = name
        self._below = below

    def getClass(self) -> Plan:  # noqa: N802 - Java's name
        return self

    def getSimpleName(self) -> str:  # noqa: N802 - Java's name
        return self._name

    def children(self) -> Plan:
        return self

    def size(self) -> int:
        return len(self._below)

    def apply(self, index: int) -> Plan:
        return self._below[index]


def plan(*names: str) -> Any:
    """Plans, each above the next."""
    found = Plan(names[-1])
    for name in reversed(names[:-1]):
        found = Plan(name, found)
    return found


@pytest.mark.parametrize(
    ("names", "straight"),
    [
        (("Project", "SubqueryAlias", "LogicalRDD"), True),
        (("WriteToMicroBatchDataSourceV1", "Project", "StreamingDataSourceV2ScanRelation"), True),
        (("Project", "Filter", "LogicalRDD"), False),
        (("Aggregate", "LogicalRDD"), False),
        (("Project", "LocalRelation"), False),
    ],
)
def test_rows_come_straight_through_selects_alone(names: tuple[str, ...], straight: bool) -> None:
    assert is_straight(plan(*names)) is straight


def test_both_sides_of_a_plan_count() -> None:
    assert not is_straight(Plan("Project", Plan("LogicalRDD"), Plan("Filter", Plan("LogicalRDD"))))
