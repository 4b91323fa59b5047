"""The reports of `recover` and `status`: as JSON, as text, and what a state row that cannot be understood is."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from jdbc_state import StateRow
from jdbc_state.sessions import DriverSession, Liveness
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import ProducerIdAndEpoch, TransactionState
from spark_2pc_sink.recipe.resolve import KafkaView
from spark_2pc_sink.recovery.report import Action, RecoveryReport, StatusReport, UnreadableSink, problem_of

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


LIVES = Liveness(alive=True, detail="as it is")
FINE = replace(REPORT, actions=())
DECIDED = replace(REPORT, settled=False, row=ROW, dry_run=True, actions=())
SETTLED = replace(ROW, status="done")
LOOK = replace(FINE, dry_run=True, before=SETTLED, row=SETTLED)
OPEN = replace(LOOK, settled=False, prepared_s=7.0)
OWED = replace(DECIDED, row=replace(ROW, status="owed"))
BEHIND = HaltCause.DATABASE_BEHIND
UNDECIDED = "IN DOUBT for 7 s, Kafka has an open transaction that the database has not decided"


@pytest.mark.parametrize(
    ("report", "condition", "headline"),
    [
        (FINE, "fine", "healthy, batch 7 on both sides"),
        (LOOK, "fine", "healthy, batch 7 on both sides, 4 s ago"),
        (replace(LOOK, row=replace(SETTLED, age_s=7_300.0)), "fine", "healthy, batch 7 on both sides, 2 h ago"),
        (replace(LOOK, row=replace(SETTLED, batch_id=None)), "fine", "healthy, no batch yet"),
        (replace(LOOK, row=replace(SETTLED, digest="")), "fine", "healthy, batch 7 settled, 4 s ago"),
        (replace(LOOK, kafka=None), "fine", "nothing is in doubt in the database; Kafka was not read"),
        (replace(FINE, known=False, row=None), "not_known", "UNKNOWN, the state table has no row for this id"),
        (replace(DECIDED, known=None, row=None), "unclear", "unclear, the database was not read"),
        (replace(DECIDED, elsewhere=True), "elsewhere", "belongs to another Kafka cluster"),
        (DECIDED, "in_doubt", "IN DOUBT for 1 min, the database has batch 7, and Kafka has not confirmed it"),
        (
            replace(DECIDED, driver=LIVES),
            "in_doubt",
            "batch 7 is in progress for 1 min: the database has batch 7, and Kafka has not confirmed it",
        ),
        (OWED, "owed", "Kafka lacks batch 7 for 1 min: the database has it, and Kafka aborted it"),
        (replace(OWED, cause=BEHIND), "in_doubt", "STOPPED for 1 min, a person must decide (database_behind)"),
        (OPEN, "in_doubt", UNDECIDED),
        (replace(OPEN, driver=replace(LIVES, alive=None)), "in_doubt", UNDECIDED),
        (
            replace(OPEN, driver=LIVES),
            "at_work",
            "healthy, batch 7 on both sides, 4 s ago; the next batch is in progress",
        ),
        (
            replace(OPEN, driver=LIVES, cause=BEHIND),
            "in_doubt",
            "STOPPED for 7 s, a person must decide (database_behind)",
        ),
        (replace(OPEN, driver=LIVES, before=None), "in_doubt", "IN DOUBT, the state row is lost"),
    ],
)
def test_the_condition_of_a_sink_and_its_verdict_in_one_line(
    report: RecoveryReport, condition: str, headline: str
) -> None:
    """An open transaction of a driver that lives is a batch at work; a decision that Kafka lacks is in doubt."""
    assert report.condition == condition
    assert str(report).splitlines()[0] == f"orders: {headline}"
    assert bool(StatusReport(sinks=(report,)).in_doubt) is (condition in {"in_doubt", "owed"})


@pytest.mark.parametrize(
    ("sinks", "summary"),
    [
        ([], "0 sinks"),
        ([FINE], "1 sink: 1 healthy"),
        (
            [FINE, replace(DECIDED, elsewhere=True), DECIDED, DECIDED, FINE, replace(OPEN, driver=LIVES)],
            "6 sinks: 2 healthy, 1 at work, 2 in doubt (for 0:01:00), 1 elsewhere",
        ),
        ([OPEN], "1 sink: 1 in doubt (for 0:00:07)"),
    ],
)
def test_the_summary(sinks: list[RecoveryReport], summary: str) -> None:
    """What is well comes first; of what a person has to look after it says for how long."""
    each = (replace(report, transactional_id=f"orders-{number}") for number, report in enumerate(sinks))
    assert StatusReport(sinks=tuple(each)).summary == summary


def test_json() -> None:
    """The same names whatever was found."""
    broken = UnreadableSink("bad", "database", "status 'gone' must be one of none, decided, done, owed")
    late = replace(DECIDED, transactional_id="late")
    found = StatusReport(sinks=(FINE, late), unreadable=(broken,), kafka_problem="down")
    printed: dict[str, Any] = json.loads(json.dumps(found.as_json()))
    assert printed["summary"] == "3 sinks: 1 healthy, 1 in doubt (for 0:01:00), 1 unreadable"
    assert [sink["transactional_id"] for sink in printed["sinks"]] == ["orders", "late"]
    assert printed["in_doubt"] == ["late"]
    assert printed["unreadable"] == [{"transactional_id": "bad", "side": "database", "problem": broken.problem}]
    assert (printed["kafka_problem"], printed["database_problem"]) == ("down", None)
    assert not found.complete
    assert StatusReport().as_json().keys() == printed.keys()


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
