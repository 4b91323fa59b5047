"""State rows for people, and those that cannot be understood."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_2pc_sink.recovery.report import batch_line, owed_reason, problem_of
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


def test_the_batch_in_a_line() -> None:
    """Counts, since when, and where; a batch of many partitions does not fill the screen."""
    assert batch_line(ROW) == "7: 10 rows, 9 records, decided 2026-11-24 10:01:00 UTC; orders-0 5..13"
    assert batch_line(replace(ROW, decided_at=None, kafka_offsets={})) == "7: 10 rows, 9 records"
    assert batch_line(replace(ROW, batch_id=None)) == "none yet"
    many = replace(ROW, kafka_offsets={f"orders-{number}": (number, number) for number in range(9)})
    assert batch_line(many).endswith(
        "; orders-0 0..0, orders-1 1..1, orders-2 2..2, orders-3 3..3, orders-4 4..4, orders-5 5..5 and 3 more"
    )


def test_what_is_owed() -> None:
    assert owed_reason(ROW) == (
        "Kafka is owed batch 7: the table has its 10 rows since 2026-11-24 10:01:00 UTC, and Kafka aborted its 9 "
        "records"
    )
    assert "its 10 rows, and" in owed_reason(replace(ROW, decided_at=None))
