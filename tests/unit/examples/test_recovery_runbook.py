"""The example for one's own automation leaves to a person what needs a decision; the rest runs on real servers."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

import recovery_runbook
from recovery_runbook import EXIT_LEFT, run
from spark_2pc_sink import HaltCause
from spark_2pc_sink.errors import DualWriteError, TakeOverRefusedError
from spark_2pc_sink.recovery.status import StatusReport, UnreadableSink
from tests.unit.runbook.pictures import halted, in_doubt, owed


def nightly(monkeypatch: pytest.MonkeyPatch, found: StatusReport, recover: mock.Mock) -> int:
    """One round of the example, with a status as found."""
    line = {"at": "2026-11-24T03:07:00+00:00", "action": "claim", "os_user": "me", "host": "here", "reason": None}
    history = mock.Mock(as_json=lambda: [line])
    answers = {"status": mock.Mock(return_value=found), "history": mock.Mock(return_value=history), "recover": recover}
    for name, answer in answers.items():
        monkeypatch.setattr(recovery_runbook, name, answer)
    return run({"bootstrap.servers": "h:9092"}, "postgresql://h/d")


def sinks(found: Any) -> StatusReport:
    return StatusReport(sinks=(found.report,))


@pytest.mark.parametrize(
    ("found", "section"),
    [
        (sinks(halted(HaltCause.DATABASE_BEHIND)), "RUNBOOK.md#database_behind"),
        (sinks(owed()), "RUNBOOK.md#owed"),
        (StatusReport(kafka_problem="refused"), ""),
        (
            StatusReport(unreadable=(UnreadableSink(transactional_id="newer", side="database", problem="status 'x'"),)),
            "",
        ),
    ],
)
def test_what_needs_a_decision_or_cannot_be_read_is_left_to_a_person(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: StatusReport, section: str
) -> None:
    recover = mock.Mock()
    assert nightly(monkeypatch, found, recover) == EXIT_LEFT
    assert recover.call_count == 0
    told = capsys.readouterr().out
    assert section in told
    assert ("2026-11-24T03:07:00+00:00 claim by me on here" in told) is bool(section)


def test_a_living_driver_is_left_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    refused: DualWriteError = TakeOverRefusedError(
        transactional_id="orders", driver="it lives", remedies=(), report=None
    )
    assert nightly(monkeypatch, sinks(in_doubt()), mock.Mock(side_effect=refused)) == EXIT_LEFT
    assert "it lives" in capsys.readouterr().out
