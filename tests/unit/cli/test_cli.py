"""The command line without servers: words, exit codes, and what is printed."""

from __future__ import annotations

import io
from argparse import Namespace
from dataclasses import replace
from typing import Any

import pytest

from spark_2pc_sink import cli
from spark_2pc_sink.cli import sinks
from spark_2pc_sink.cli.options import reason_for
from spark_2pc_sink.errors import ConfigurationError, HaltCause, HaltError, TakeOverRefusedError
from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.recovery.report import RecoveryReport
from tests.harness.halts import halt
from tests.harness.json_contract import read_output
from tests.unit.recovery.test_report import DECIDED, REPORT

SIDES = ["--kafka", "bootstrap.servers=h:1", "--kafka", "client.id=night", "--database", "postgresql://h/d"]
TO_TAKE_OVER = replace(DECIDED, dry_run=False, remedies=("spark-2pc recover --take-over",))


REFUSED = TakeOverRefusedError(
    transactional_id="orders", driver="its driver lives (pid 4711)", remedies=("wait",), report=TO_TAKE_OVER
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []

    def recover(**options: Any) -> RecoveryReport:
        seen.append(options)
        return REPORT if options.get("take_over") else TO_TAKE_OVER

    monkeypatch.setattr(sinks, "recover", recover)
    return seen


def test_recover_passes_what_was_said(calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recover", *SIDES, "--transactional-id", "orders", "--take-over", "--drop", "--state-schema", "ops"]
    words += ["--history-batches", "5", "--adopt", "--open-transaction", "commit", "--batch", "7"]
    words += ["--accept-loss", "41..43"]
    words += ["--reason", "the night of the 5th"]
    assert cli.main(words) == 0
    assert calls == [
        {
            "transactional_id": "orders",
            "take_over": True,
            "decision": OperatorDecision.DROP,
            "open_transaction": "commit",
            "batch": 7,
            "adopt": True,
            "accept_loss": "41..43",
            "reason": "the night of the 5th",
            "kafka": {"bootstrap.servers": "h:1", "client.id": "night"},
            "database": "postgresql://h/d",
            "state_schema": "ops",
            "history_batches": 5,
        }
    ]
    printed = capsys.readouterr().out
    assert "orders: settled now" in printed
    assert "- committed 5:1 in Kafka" in printed
    assert "database: batch 7, decided 5:1" in printed
    assert "now:      batch 7, done 5:1" in printed


@pytest.mark.parametrize(
    ("error", "cause", "row"),
    [
        (halt(report=replace(TO_TAKE_OVER, cause=HaltCause.GAP)), "gap", "decided"),
        (REFUSED, None, "decided"),
    ],
    ids=["recovery halts", "a driver lives"],
)
def test_a_refusal_is_printed_for_machines_too(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: HaltError | TakeOverRefusedError,
    cause: str | None,
    row: str | None,
) -> None:
    """An object of the same fields as any other, with the cause; the words go where the words of errors go."""

    def fail(**_: Any) -> RecoveryReport:
        raise error

    monkeypatch.setattr(sinks, "recover", fail)
    assert cli.main(["recover", *SIDES, "--transactional-id", "orders", "--json"]) == 3
    printed = capsys.readouterr()
    whole = read_output(printed.out)
    assert (whole["exit_code"], whole["error"]["type"], whole["error"]["cause"]) == (3, type(error).__name__, cause)
    (found,) = whole["sinks"]
    assert found.keys() == TO_TAKE_OVER.as_json().keys()
    assert (found["cause"], found["settled"]) == (cause, False)
    assert (found["row"] and found["row"]["status"]) == row
    assert str(error) in printed.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_on_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error: standard output may be JSON."""
    monkeypatch.setattr("sys.stdin", Terminal(" the disk is gone \n"))
    assert reason_for(Namespace(), "--drop") == "the disk is gone"
    out, err = capsys.readouterr()
    assert (out, err.startswith("Why --drop?")) == ("", True)


@pytest.mark.parametrize("terminal", [Terminal("\n"), Terminal(""), io.StringIO("typed before\n")])
def test_without_one_nothing_is_done(monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO) -> None:
    """Nobody says one, or nobody can be asked."""
    monkeypatch.setattr("sys.stdin", terminal)
    with pytest.raises(ConfigurationError, match="--reason") as refused:
        reason_for(Namespace(), "--drop")
    assert refused.value.remedy == "pass --reason 'why' with --drop"
