"""State rows for people, and those that cannot be understood."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_2pc_sink.recovery.report import problem_of
from tests.unit.recovery.test_report import ROW


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"prepared_transaction_state": "", "kafka_offsets": {}}, ""),
        ({"kafka_offsets": {"a-b-12": (0, 1)}}, ""),
        ({"prepared_transaction_state": "7"}, "prepared transaction state '7': must be '' or 'producerId:epoch'"),
        ({"settled": "7:99999"}, "producer id and epoch '7:99999': the producer id must be from 0 to"),
        ({"status": "paused"}, "status 'paused' must be one of none, decided, done, owed"),
        ({"kafka_offsets": {"orders": (0, 1)}}, "kafka_offsets name 'orders', which must be topic-partition"),
        ({"transactional_id": "a\nb"}, "transactional_id 'a\\nb': must have 1 to 255 printable characters"),
    ],
)
def test_what_is_wrong_with_a_row(change: dict[str, Any], problem: str) -> None:
    found = problem_of(replace(ROW, **change))
    assert found.startswith(problem)
    assert bool(found) is bool(problem)
