"""What every command prints: the JSON contract, its log, and the standard streams of shells and pipes."""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from typing import Any, get_args

import pytest
from jsonschema import ValidationError

from jdbc_state.errors import ConfigurationError
from spark_2pc_sink import cli
from spark_2pc_sink.cli import __main__ as program, output, sinks
from spark_2pc_sink.cli.options import CommandParser
from spark_2pc_sink.cli.output import FORMAT, CommandResult, envelope, json_schema
from spark_2pc_sink.errors import ClaimRefusedError, HaltCause
from spark_2pc_sink.ids import TransactionState
from spark_2pc_sink.recovery.report import ActionKind, RecoveryReport
from spark_2pc_sink.reference import broker
from tests.harness.halts import halt
from tests.harness.json_contract import read_output

SCHEMA = json.loads(json_schema())


def leaves(parser: argparse.ArgumentParser) -> list[CommandParser]:
    """The parsers of all commands that have none below them."""
    below = [
        child
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for child in dict.fromkeys(action.choices.values())
    ]
    if below:
        return [leaf for child in below for leaf in leaves(child)]
    assert isinstance(parser, CommandParser)
    return [parser]


COMMANDS = sorted(str(leaf.command) for leaf in leaves(cli.command_parser([])))


def run_with(monkeypatch: pytest.MonkeyPatch, outcome: CommandResult | BaseException) -> None:
    """Lets ``coordinator`` end as the test wants it."""

    def serve(*_: object, **__: object) -> int:
        sys.stdout.write("printed by the way\n")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome.exit_code

    monkeypatch.setattr(broker, "serve", serve)


WORDS = ["coordinator", "--in-memory", "--json"]


def test_every_command_has_its_entry_in_the_schema() -> None:
    """Under ``$defs``, and a line of ``allOf`` that leads there."""
    assert {None, *COMMANDS} == set(SCHEMA["properties"]["command"]["enum"])
    for command in COMMANDS:
        name = command.replace(" ", "_")
        line = {"if": {"properties": {"command": {"const": command}}}, "then": {"$ref": f"#/$defs/{name}"}}
        assert line in SCHEMA["allOf"]
        assert SCHEMA["$defs"][name]["description"].startswith(f"spark-2pc {command}")


def test_the_schema_names_all_values() -> None:
    sink = SCHEMA["$defs"]["sink"]["properties"]
    assert sink["actions"]["items"]["enum"] == list(get_args(ActionKind))
    assert SCHEMA["$defs"]["cause"]["enum"] == [None, *(cause.value for cause in HaltCause)]
    assert SCHEMA["$defs"]["transaction_state"]["properties"]["state"]["enum"] == [
        state.value for state in TransactionState
    ]
    codes = {value for name, value in vars(output).items() if name.startswith("EXIT_")}
    assert codes <= set(SCHEMA["properties"]["exit_code"]["enum"])
    assert SCHEMA["properties"]["format"]["const"] == FORMAT


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_word_is_json_of_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, of argparse's own errors too."""
    assert cli.main([*command.split(), "--no-such-option", "--json"]) == 2
    out, err = capsys.readouterr()
    found = read_output(out)
    assert (found["exit_code"], found["error"]["type"]) == (2, "CommandLineError")
    assert found["error"]["message"] in err


@pytest.mark.parametrize(
    ("error", "code", "cause", "remedies"),
    [
        (ConfigurationError(option="o", value=1, rule="r", remedy="do it"), 2, None, ["do it"]),
        (halt(), 3, "gap", ["do this", "or that"]),
        (
            ClaimRefusedError(transactional_id="a", what="query", expected="b", found="c", remedies=("adopt",)),
            1,
            None,
            ["adopt"],
        ),
        (PermissionError(13, "Permission denied"), 1, None, []),
    ],
    ids=["2", "3 halt", "1 claim", "1 system"],
)
def test_an_error_is_json_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    cause: str | None,
    remedies: list[str],
) -> None:
    """And the sentence stands on standard error as it does without ``--json``."""
    run_with(monkeypatch, error)
    assert cli.main(WORDS) == code
    out, err = capsys.readouterr()
    assert read_output(out) == {
        "format": FORMAT,
        "command": "coordinator",
        "exit_code": code,
        "error": {"type": type(error).__name__, "message": str(error), "cause": cause, "remedies": remedies},
    }
    assert err == f"printed by the way\nspark-2pc: {error}\n"


def test_what_is_printed_by_the_way_is_not_in_the_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with(monkeypatch, CommandResult(exit_code=0))
    assert cli.main(WORDS) == 0
    out, err = capsys.readouterr()
    assert (read_output(out)["exit_code"], err) == (0, "printed by the way\n")
    cli.main(["coordinator", "--in-memory"])
    assert capsys.readouterr() == ("printed by the way\n", "")


def test_a_defect_is_json_too_and_has_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python ends the process with exit code 1."""
    run_with(monkeypatch, ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError):
        cli.main(WORDS)
    found = read_output(capsys.readouterr().out)
    assert (found["exit_code"], found["error"]["type"]) == (1, "ZeroDivisionError")


def test_ctrl_c_ends_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_with(monkeypatch, KeyboardInterrupt())
    assert cli.main(WORDS) == 130
    out, err = capsys.readouterr()
    assert (read_output(out)["error"], err) == (None, "printed by the way\nspark-2pc: interrupted\n")


@pytest.mark.parametrize("fields", [{}, {"sinks": [], "more": 1}, {"sinks": [{}]}])
def test_a_field_that_is_missing_or_undeclared_is_found(fields: dict[str, object]) -> None:
    """The check that the other tests rely on can fail."""
    printed = json.dumps(envelope(CommandResult(exit_code=0, fields=fields), "status"))
    with pytest.raises(ValidationError):
        read_output(printed)


LOG = logging.getLogger("spark_2pc_sink.test")
LOGGING = ["recover", "--bootstrap-server", "h:1", "--database", "postgresql://h/d", "--transactional-id", "orders"]


@pytest.fixture(autouse=True)
def lines_of_three_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    def recover(**_: Any) -> RecoveryReport:
        LOG.info("for those who ask")
        LOG.warning("mind %s", "this")
        try:
            int("many")
        except ValueError:
            LOG.exception("of another sink", extra={"transactional_id": "payments"})
        return RecoveryReport(transactional_id="orders", settled=True)

    monkeypatch.setattr(sinks, "recover", recover)


def test_a_log_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """With the id of the record, or else that of the command."""
    assert cli.main([*LOGGING, "--log-json", "--log-level", "INFO"]) == 0
    info, warning, error = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert info.pop("time").endswith("+00:00")
    assert info == {
        "level": "INFO",
        "logger": "spark_2pc_sink.test",
        "message": "for those who ask",
        "transactional_id": "orders",
        "exception": None,
    }
    assert (warning["message"], warning["level"]) == ("mind this", "WARNING")
    assert error["transactional_id"] == "payments"
    assert error["exception"].endswith("invalid literal for int() with base 10: 'many'")


@pytest.mark.parametrize(("level", "logged"), [("ERROR", 1), ("WARNING", 2), ("INFO", 3), (None, 2)])
def test_the_level_is_warning_unless_told(capsys: pytest.CaptureFixture[str], level: str | None, logged: int) -> None:
    """Before the command's name or behind it; and the process logs afterwards as it did before."""
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    words = [] if level is None else ["--log-level", level]
    assert cli.main([*words, *LOGGING]) == 0
    assert capsys.readouterr().err.count(" spark_2pc_sink.test: ") == logged
    assert (root.level, root.handlers) == before


DDL = ["state", "ddl"]


def run(command: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a shell's command line comes to; ``"$@"`` in it is ``spark-2pc`` with words."""
    words = (sys.executable, "-m", str(program.__package__), *words)
    return subprocess.run(
        ["bash", "-c", command, "bash", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_a_reader_that_has_gone_is_no_failure(unbuffered: str) -> None:
    """As ``head`` does, and a pager that is left."""
    done = run('{ sleep 0.2; "$@"; echo "exit $?" >&2; } | true', *DDL, PYTHONUNBUFFERED=unbuffered)
    assert done.stderr == "exit 0\n"


def test_closed_streams_change_no_exit_code() -> None:
    done = run('"$@" >&- 2>&- <&-', *DDL)
    assert (done.returncode, done.stderr) == (output.EXIT_SETTLED, "")


@pytest.mark.slow
def test_output_that_cannot_be_written_is_said() -> None:
    done = run('"$@" > /dev/full', *DDL)
    assert done.returncode == output.EXIT_FAILED
    assert done.stderr == "spark-2pc: the result could not be printed: [Errno 28] No space left on device\n"
