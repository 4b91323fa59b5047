"""``spark-2pc history`` without a database: words, the table, JSON and exit codes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from jdbc_state import ActionLine
from spark_2pc_sink import cli
from spark_2pc_sink.cli import history
from spark_2pc_sink.recovery.history import BatchEntry, HistoryReport
from tests.harness.json_contract import read_output

WORDS = ["history", "--database", "postgresql://h/d"]
AT = datetime(2026, 11, 24, 3, 0, tzinfo=timezone.utc)
BATCH = BatchEntry(
    at=AT,
    transactional_id="orders",
    event="decided",
    status="done",
    batch_id=4,
    row_count=20,
    record_count=20,
    kafka_offsets={"orders-0": (5, 24)},
    prepared_transaction_state="7:3",
    generation=2,
    decided_at=AT,
    settled_at=None,
)
DROP = ActionLine(
    number=1,
    transactional_id="orders",
    at=AT + timedelta(minutes=1),
    action="drop",
    batch_id=4,
    generation=3,
    role="job",
    os_user="night",
    host="ops-1",
    program="spark-2pc recover",
    reason="the topic\nis gone",
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []

    def answer(**options: Any) -> HistoryReport:
        seen.append(options)
        return HistoryReport((BATCH, DROP) if options.get("last") != 1 else ())

    monkeypatch.setattr(history, "history", answer)
    return seen


def test_batches_and_actions_are_lines_and_objects(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Who, when and why; a reason of several lines is one."""
    assert cli.main([*WORDS, "--since", "2026-11-24T04:00+01:00"]) == 0
    assert asked[0]["since"] == AT
    printed = capsys.readouterr().out
    assert "orders-0 5..24" in printed
    assert "night@ops-1 by spark-2pc recover, role job" in printed
    assert "the topic is gone" in printed
    assert cli.main([*WORDS, "--json"]) == 0
    entries = read_output(capsys.readouterr().out)["entries"]
    assert [entry["kind"] for entry in entries] == ["batch", "action"]


def test_nothing_is_exit_code_4_and_a_time_that_is_none_2(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*WORDS, "--last", "1", "--json"]) == 4
    assert read_output(capsys.readouterr().out)["entries"] == []
    assert cli.main([*WORDS, "--since", "yesterday"]) == 2
    assert "must be a time in ISO 8601" in capsys.readouterr().err
    assert len(asked) == 1
