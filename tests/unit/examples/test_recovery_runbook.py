"""The example for one's own automation: settles what needs no decision, and leaves the rest to a person."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

import recovery_runbook
from recovery_runbook import EXIT_LEFT, run
from spark_2pc_sink import HaltCause, VerifyReport
from spark_2pc_sink.errors import DualWriteError, TakeOverRefusedError
from spark_2pc_sink.recovery.status import StatusReport, UnreadableSink
from tests.unit.runbook.pictures import halted, in_doubt, owed, report

KAFKA: dict[str, str | int] = {"bootstrap.servers": "h:9092"}
DATABASE = "postgresql://h/d"
SAME = VerifyReport(transactional_id="orders", verdict="same")


class Round:
    """One round of the example on functions that answer as is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.recover = mock.Mock(return_value=report(dry_run=False))
        self.verify = mock.Mock(return_value=SAME)
        line = {"at": "2026-11-24T03:07:00+00:00", "action": "claim", "os_user": "me", "host": "here", "reason": None}
        self.history = mock.Mock(return_value=mock.Mock(as_json=lambda: [line]))

    def run(self, found: StatusReport) -> int:
        for name, value in {"status": mock.Mock(return_value=found), **vars(self)}.items():
            if not name.startswith("_"):
                self._monkeypatch.setattr(recovery_runbook, name, value)
        return run(KAFKA, DATABASE)


@pytest.fixture
def nightly(monkeypatch: pytest.MonkeyPatch) -> Round:
    return Round(monkeypatch)


def sinks(found: Any) -> StatusReport:
    return StatusReport(sinks=(found.report,))


def test_a_sink_whose_driver_is_dead_is_settled_and_compared(nightly: Round) -> None:
    assert nightly.run(sinks(in_doubt())) == 0
    assert nightly.recover.call_args.kwargs["transactional_id"] == "orders"
    assert "take_over" not in nightly.recover.call_args.kwargs
    assert nightly.verify.call_count == 1


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
    nightly: Round, capsys: pytest.CaptureFixture[str], found: StatusReport, section: str
) -> None:
    assert nightly.run(found) == EXIT_LEFT
    assert nightly.recover.call_count == 0
    told = capsys.readouterr().out
    assert section in told
    assert ("2026-11-24T03:07:00+00:00 claim by me on here" in told) is bool(section)


def test_a_living_driver_is_left_alone(nightly: Round, capsys: pytest.CaptureFixture[str]) -> None:
    refused: DualWriteError = TakeOverRefusedError(
        transactional_id="orders", driver="it lives", remedies=(), report=None
    )
    nightly.recover.side_effect = refused
    assert nightly.run(sinks(in_doubt())) == EXIT_LEFT
    assert "it lives" in capsys.readouterr().out


def test_where_all_is_well_nothing_is_done(nightly: Round) -> None:
    assert nightly.run(StatusReport(sinks=(report(),))) == 0
    assert (nightly.recover.call_count, nightly.verify.call_count) == (0, 0)
