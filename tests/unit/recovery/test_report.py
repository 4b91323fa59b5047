"""The recovery report as fields, as JSON, and as text."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from jdbc_state import StateRow
from jdbc_state.sessions import DriverSession, Liveness
from spark_2pc_sink.ids import ProducerIdAndEpoch, TransactionState
from spark_2pc_sink.recipe.resolve import KafkaView
from spark_2pc_sink.recovery.report import Action, RecoveryReport

ROW = StateRow(
    transactional_id="orders",
    prepared_transaction_state="5:1",
    status="decided",
    settled="5:0",
    generation=3,
    query_id="query",
    batch_id=7,
    cluster_id="cluster",
    row_count=10,
    record_count=9,
    digest="ab",
    kafka_offsets={"orders-0": (5, 13)},
    topic_ids={"orders": "id"},
    decision=8,
    claimed_at=datetime(2026, 11, 24, 10, 0, tzinfo=timezone.utc),
    decided_at=datetime(2026, 11, 24, 10, 1, tzinfo=timezone.utc),
    age_s=4.0,
    decided_age_s=60.0,
)
REPORT = RecoveryReport(
    transactional_id="orders",
    settled=True,
    before=ROW,
    row=replace(ROW, status="done", settled="5:2"),
    kafka=KafkaView(TransactionState.ONGOING, ProducerIdAndEpoch(5, 1), 2, "cluster"),
    actions=(Action("commit", "committed 5:1 in Kafka: because"),),
    reason="because",
)
SESSION = DriverSession(4711, "app", hidden=False, address="10.0.0.1")


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (Liveness(True, "as it is", SESSION), (True, 4711, "10.0.0.1", "app")),
        (Liveness(True, "as it is", replace(SESSION, address="")), (True, 4711, None, "app")),
        (Liveness(None, "a pooler"), (None, None, None, None)),
    ],
)
def test_json_says_where_the_driver_is(driver: Liveness, expected: tuple[object, ...]) -> None:
    """D10: its session's place, and its claim with the time."""
    shown = replace(REPORT, driver=driver).as_json()["driver"]
    assert (shown["alive"], shown["pid"], shown["host"], shown["role"]) == expected
    assert (shown["claim"], shown["since"]) == (3, "2026-11-24T10:00:00+00:00")


@pytest.mark.parametrize(
    ("change", "next_batch"),
    [
        ({"status": "done"}, 8),
        ({"status": "owed"}, 7),
        ({"status": "decided"}, None),
        ({"status": "none", "batch_id": None}, 0),
    ],
)
def test_the_next_batch(change: dict[str, Any], next_batch: int | None) -> None:
    """An owed batch is sent again; while one is decided only, its outcome is open."""
    assert replace(REPORT, row=replace(ROW, **change)).next_batch == next_batch


def test_the_text_is_for_people() -> None:
    text = str(REPORT)
    assert text.splitlines() == [
        "orders: settled now, batch 7 on both sides",
        "  database: batch 7, decided 5:1, settled at 5:0",
        "  Kafka:    Ongoing 5:1",
        "            5:1 is the Kafka transaction with producer id 5, epoch 1",
        "  - committed 5:1 in Kafka: because",
        "  now:      batch 7, done 5:1, settled at 5:2",
    ]


DONE = replace(ROW, status="done", decided_age_s=None, age_s=3.9)
LOOK = replace(REPORT, actions=(), dry_run=True, row=DONE, before=DONE)
ALIVE = Liveness(True, "", SESSION)


@pytest.mark.parametrize(
    ("look", "headline"),
    [
        (LOOK, "healthy, batch 7 on both sides, 3 s ago"),
        (replace(LOOK, row=replace(DONE, age_s=7_300.0)), "healthy, batch 7 on both sides, 2 h ago"),
        (replace(LOOK, row=replace(DONE, batch_id=None)), "healthy, no batch yet"),
        (replace(LOOK, row=replace(DONE, digest="")), "healthy, batch 7 settled, 3 s ago"),
        (replace(LOOK, kafka=None), "nothing is in doubt in the database; Kafka was not read"),
        (
            replace(LOOK, settled=False, driver=ALIVE),
            "healthy, batch 7 on both sides, 3 s ago; the next batch is in progress",
        ),
        (
            replace(LOOK, settled=False, prepared_s=90.0),
            "IN DOUBT for 1 min, Kafka has an open transaction that the database has not decided",
        ),
        (
            replace(LOOK, settled=False, row=ROW),
            "IN DOUBT for 1 min, the database has batch 7, and Kafka has not confirmed it",
        ),
        (
            replace(LOOK, settled=False, row=ROW, driver=ALIVE),
            "batch 7 is in progress for 1 min: the database has batch 7, and Kafka has not confirmed it",
        ),
        (replace(LOOK, settled=False, before=None), "IN DOUBT, the state row is lost"),
        (
            replace(LOOK, settled=False, row=replace(ROW, status="owed")),
            "Kafka lacks batch 7 for 1 min: the database has it, and Kafka aborted it",
        ),
        (replace(LOOK, elsewhere=True), "belongs to another Kafka cluster"),
        (replace(LOOK, known=None), "unclear, the database was not read"),
    ],
)
def test_the_verdict_in_one_line(look: RecoveryReport, headline: str) -> None:
    assert str(look).splitlines()[0] == f"orders: {headline}"
