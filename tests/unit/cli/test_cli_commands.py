"""``spark-2pc check``, ``state`` and ``runbook`` without servers: words, answers, exit codes, and what is printed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from jdbc_state import SchemaReport
from spark_2pc_sink import cli
from spark_2pc_sink.cli import check, database as state, main, output, runbook as runbook_module
from spark_2pc_sink.cli.options import given_sink_options
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.options import Records, RecoveryOptions, Rows, SinkOptions
from spark_2pc_sink.runbook.sides import Picture
from spark_2pc_sink.sink.check.findings import CheckReport, Finding, Level
from tests.harness.json_contract import read_output
from tests.unit.runbook.fake_sides import FakeSides, halted, in_doubt, owed, picture


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.toml"
    path.write_text(
        'transactional_id = "orders"\ndatabase = "postgresql://h/d"\ntable = "orders"\n'
        '[kafka]\nbootstrap.servers = "h:1"\n'
    )
    return path


def options(*words: str) -> SinkOptions:
    return given_sink_options(cli.command_parser(["check"]).parse_args(["check", *words]))


def test_every_option_is_a_flag(file: Path) -> None:
    """Beside the file, by position or by flag; and with the environment where both say nothing."""
    found = options(str(file), "--topic", "t", "--upsert-keys", "a,b", "--mode", "upsert", "--create-table", "true")
    names = ("topic", "upsert_keys", "create_table")
    assert [found.given()[name] for name in names] == ["t", ("a", "b"), True]
    assert options("--config", str(file), "--history-batches", "7").history_batches == 7
    writes = '[{"kind": "records", "topic": "t"}, {"kind": "rows", "table": "t"}]'
    file.write_text(file.read_text().replace('table = "orders"\n', ""))
    assert options(str(file), "--writes", writes).writes == (Records("t"), Rows("t"))


@pytest.mark.parametrize(
    ("level", "strict", "code"),
    [("ok", True, 0), ("not_checked", True, 0), ("warning", False, 0), ("warning", True, 3), ("problem", False, 3)],
)
def test_exit_codes(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    level: Level,
    strict: bool,
    code: int,
) -> None:
    """Of warnings only where that is asked for. The JSON is of the documented form."""

    def found(options: SinkOptions, rows: None, **_: Any) -> CheckReport:
        return CheckReport(options.transactional_id, (Finding("topic t", level, "text", "do"),), "All.")

    monkeypatch.setattr(check, "check_sink", found)
    words = ["check", str(file), *(["--strict"] if strict else [])]
    assert cli.main(words) == code
    assert "topic t  text" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == code
    shown = read_output(capsys.readouterr().out)
    assert (shown["ready"], shown["findings"][0]["level"]) == (level != "problem", level)


AT = ("--database", "postgresql://h/d")


class Store:
    found = SchemaReport(there=True, ready=True, lines=("it is there",))

    def __init__(self, options: RecoveryOptions) -> None:
        assert options.database == "postgresql+psycopg2://h/d"
        settings = options.store_settings()
        assert (settings.state_table, settings.history_table) == ("mine", "mine_history")

    def migrate(self) -> list[str]:
        return []

    def check_schema(self, role: str | None) -> SchemaReport:
        assert role == "job"
        return self.found

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("there", "ready", "code"),
    [(True, True, output.EXIT_SETTLED), (True, False, output.EXIT_IN_DOUBT), (False, False, output.EXIT_NOT_KNOWN)],
)
def test_the_exit_code_of_a_check(
    there: bool, ready: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """D2: for scripts that deploy a job."""
    monkeypatch.setattr(state, "open_store", Store)
    monkeypatch.setattr(Store, "found", SchemaReport(there=there, ready=ready, lines=("what was found",)))
    words = ["state", "check", *AT, "--state-table", "mine", "--role", "job"]
    assert cli.main(words) == code
    assert capsys.readouterr().out == "what was found\n"
    assert cli.main([*words, "--json"]) == code
    assert read_output(capsys.readouterr().out)["lines"] == ["what was found"]


def test_the_statements_need_no_database(capsys: pytest.CaptureFixture[str]) -> None:
    """C15: for those who run them with a role of their own."""
    assert cli.main(["state", "ddl", "--role", "Job", "--state-schema", "ops"]) == output.EXIT_SETTLED
    printed = capsys.readouterr().out
    assert "COMMENT ON TABLE ops.kafka_transaction_state IS 'spark_2pc_sink state, version 2';" in printed
    assert 'GRANT USAGE ON SCHEMA ops TO "Job";' in printed
    assert 'GRANT SELECT, INSERT, UPDATE ON ops.kafka_transaction_state TO "Job";' in printed
    assert 'GRANT SELECT, INSERT, UPDATE, DELETE ON ops.kafka_transaction_state_history TO "Job";' in printed
    assert 'GRANT SELECT, INSERT, DELETE ON ops.kafka_transaction_state_actions TO "Job";' in printed
    assert cli.main(["state", "ddl", "--history-batches", "0"]) == output.EXIT_SETTLED
    printed = capsys.readouterr().out
    assert ("history" not in printed, "actions" not in printed) == (True, True)
    assert "GRANT" not in printed


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
