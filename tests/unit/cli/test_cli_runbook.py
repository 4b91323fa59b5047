"""``spark-2pc runbook``: words to a conversation, answers from standard input, exit codes, the protocol file, JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink.cli import main
from spark_2pc_sink.cli import runbook as runbook_module
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.runbook.picture import Picture
from tests.harness.json_contract import read_output
from tests.unit.runbook.fake_sides import FakeSides
from tests.unit.runbook.pictures import halted, in_doubt, owed, picture

WORDS = ["runbook", "--bootstrap-server", "h:9092", "--database", "postgresql://h/d"]


class Command:
    """Runs the command on sides that are given, and keeps what it hands to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.connections: dict[str, Any] = {}
        self.sides = FakeSides(picture())

    def run(self, *words: str, looks: tuple[Any, ...] = (), answers: str = "") -> int:
        if looks:
            self.sides = FakeSides(*looks)

        def made(connections: dict[str, Any], **more: Any) -> FakeSides:
            self.connections = {**connections, **more}
            return self.sides

        self._monkeypatch.setattr(runbook_module, "BothSides", made)
        self._monkeypatch.setattr("sys.stdin", io.StringIO(answers))
        return main([*WORDS, *words])


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(monkeypatch)


@pytest.mark.parametrize(
    ("look", "code"),
    [
        (picture(), 0),
        (Picture(transactional_id="orders", kafka_problem="refused"), 1),
        (in_doubt(), 3),
        (Picture(transactional_id="orders"), 4),
    ],
    ids=str,
)
def test_the_exit_code_says_how_it_ended(command: Command, look: Picture, code: int) -> None:
    assert command.run("--transactional-id", "orders", looks=(look,)) == code
    assert command.sides.calls == []


def test_answers_are_read_line_by_line(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """And shown, as no terminal has shown them."""
    code = command.run("--transactional-id", "orders", looks=(in_doubt(), picture()), answers="settle\nyes\n")
    assert (code, command.sides.calls) == (0, [{}])
    assert "Do it? [yes/no] yes\n" in capsys.readouterr().out


def test_connections_and_tables_reach_both_sides(command: Command) -> None:
    assert command.run("--state-schema", "ours", "--timeout", "3", "--record-columns", "id = key") == 0
    assert command.connections == {
        "kafka": {"bootstrap.servers": "h:9092"},
        "database": "postgresql://h/d",
        "state_schema": "ours",
        "timeout_s": 3,
        "record_columns": "id = key",
        "schema_registry": None,
    }


def test_a_cause_is_told_by_the_line_of_the_error(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    line = "HaltError: batch 9 follows batch 5 in the state row: it is neither its replay nor the next"
    assert command.run("--transactional-id", "orders", "--cause", line, looks=(halted(HaltCause.GAP),)) == 3
    assert "(gap)" in capsys.readouterr().out


def test_a_cause_is_a_known_one_of_one_sink(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run("--cause", "bad_luck") == 2
    assert command.run("--cause", "gap") == 2
    assert "pass --transactional-id too" in capsys.readouterr().err


def test_a_protocol_is_written_as_json(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "night.json"
    command.run("--protocol", str(file), looks=(owed(),), answers="stop\n")
    written = json.loads(file.read_text())
    assert [step["kind"] for step in written["steps"]] == ["saw", "answered", "left", "ended"]
    assert written["program"] == "spark-2pc"


def test_a_protocol_that_cannot_be_written_is_refused_first(command: Command, tmp_path: Path) -> None:
    code = command.run("--protocol", str(tmp_path / "none" / "night.txt"), looks=(in_doubt(),), answers="settle\nyes\n")
    assert (code, command.sides.calls) == (2, [])


@pytest.mark.parametrize(
    ("looks", "answers", "code"),
    [
        ((owed(), picture()), "drop\ngiven up\nyes\n", 0),
        ((Picture(transactional_id="orders", database_problem="refused"),), "repair\n", 1),
    ],
    ids=["accepted", "out_of_reach"],
)
def test_json_is_of_the_documented_form(
    command: Command, capsys: pytest.CaptureFixture[str], looks: tuple[Picture, ...], answers: str, code: int
) -> None:
    """What is said meanwhile goes to standard error."""
    assert command.run("--json", "--transactional-id", "orders", looks=looks, answers=answers) == code
    printed = capsys.readouterr()
    found = read_output(printed.out)
    assert (found["command"], found["exit_code"]) == ("runbook", code)
    assert found["protocol"]["steps"][-1]["text"] in printed.err or found["protocol"]["steps"][-1]["kind"] == "ended"
