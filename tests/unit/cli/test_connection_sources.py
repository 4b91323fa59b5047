"""Connection arguments from flags, a file and the environment: what goes before what, and that no secret is shown."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink import cli
from spark_2pc_sink.cli import sinks
from spark_2pc_sink.cli.options import connection_as_given, file_of, given_sides
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recovery.report import RecoveryReport, StatusReport, sink_flags

URL = "postgresql://app:secret@h/shop"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATABASE", "BOOTSTRAP_SERVER", "COMMAND_CONFIG"):
        monkeypatch.delenv(f"SPARK_2PC_{name}", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(
        f'# where both sides are\ndatabase = "{URL}"\nstate_schema = "ops"\nhistory_batches = 5\ntable = "orders"\n'
        '[kafka]\nbootstrap.servers = "h:1"\nsecurity.protocol = "SASL_SSL"\nsasl.password = "hidden"\n'
    )
    return path


def said(*words: str) -> dict[str, Any]:
    """What ``status`` with these words would pass on."""
    given = cli.command_parser(["status"]).parse_args(["status", *words])
    return given_sides(given)


FROM_FILE = {
    "kafka": {"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", "sasl.password": "hidden"},
    "database": URL,
    "state_schema": "ops",
    "history_batches": 5,
}


def test_a_file_says_all(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said("--config", str(file)) == FROM_FILE
    monkeypatch.setenv("SPARK_2PC_CONFIG", str(file))
    assert said() == FROM_FILE


def test_a_file_is_read_once(file: Path) -> None:
    """It may be a pipe, as with ``--config <(…)``."""
    given = cli.command_parser(["status"]).parse_args(["status", "--config", str(file)])
    assert file_of(given).options["database"] == URL
    file.unlink()
    assert given_sides(given) == FROM_FILE


def test_the_environment_says_what_the_command_line_leaves_out(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag or the file of one goes before it, thing by thing."""
    monkeypatch.setenv("SPARK_2PC_DATABASE", "postgresql://env/d")
    monkeypatch.setenv("SPARK_2PC_BOOTSTRAP_SERVER", "env:1")
    assert said() == {"kafka": {"bootstrap.servers": "env:1"}, "database": "postgresql://env/d"}
    assert said("--config", str(file)) == FROM_FILE
    other = said("--kafka", "metadata.broker.list=flag:1", "--database", "postgresql://flag/d")
    assert other["kafka"] == {"metadata.broker.list": "flag:1"}
    assert other["database"] == "postgresql://flag/d"
    credentials = tmp_path / "client.properties"
    credentials.write_text("bootstrap.servers=env:1\nsasl.password=hidden\n")
    monkeypatch.setenv("SPARK_2PC_COMMAND_CONFIG", str(credentials))
    assert said("--bootstrap-server", "flag:1")["kafka"] == {"bootstrap.servers": "flag:1", "sasl.password": "hidden"}


def test_the_password_comes_from_a_command(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file of the sink, the environment or a flag."""
    file.write_text('password_command = "cat file"\n' + file.read_text())
    assert said("--config", str(file)) == FROM_FILE | {"password_command": "cat file"}
    monkeypatch.setenv("SPARK_2PC_PASSWORD_COMMAND", "cat environment")
    monkeypatch.setenv("SPARK_2PC_BOOTSTRAP_SERVER", "h:1")
    assert said("--database", "postgresql://h/d")["password_command"] == "cat environment"
    words = ["--database", "postgresql://h/d", "--password-command", "cat flag"]
    assert said(*words)["password_command"] == "cat flag"


def test_a_secret_on_the_command_line_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It works, as with PostgreSQL's own tools, and ps shows it."""
    monkeypatch.setattr(sinks, "status", lambda **_: StatusReport())
    words = ["status", "--bootstrap-server", "h:1", "--kafka", "sasl.password=hidden", "--database", URL]
    assert cli.main(words) == 4
    err = capsys.readouterr().err
    assert "WARNING spark_2pc_sink.cli.options: --database contains a password, which ps shows" in err
    assert "--kafka sasl.password=… is a secret, which ps shows" in err
    assert "hidden" not in err
    assert "secret@" not in err
    monkeypatch.setenv("SPARK_2PC_DATABASE", URL)
    assert cli.main(["status", "--bootstrap-server", "h:1"]) == 4
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--database", URL], ["--database", "postgresql://app@h/shop"]),
        (["--command-config", "c", "--kafka", "client.id=a"], ["--command-config", "c", "--kafka", "client.id=a"]),
        (["--kafka", "sasl.password=b"], ["--command-config", "FILE"]),
        (["--password-command", "cat 'my file'"], ["--password-command", "cat 'my file'"]),
        ([], []),
    ],
    ids=["password in URL", "properties", "password of Kafka", "command", "environment"],
)
def test_a_printed_command_names_both_sides_as_they_were_given(words: list[str], shown: list[str]) -> None:
    """By file where a secret is in it, and with nothing that the environment says; never with a password."""
    given = cli.command_parser(["status"]).parse_args(["status", *words])
    found = connection_as_given(given)
    assert found is not None
    assert shlex.split(found) == shown


def test_a_remedy_has_the_words_of_its_command_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And another call has its own."""

    def recover(**options: Any) -> RecoveryReport:
        command = f"spark-2pc recover {sink_flags(RecoveryOptions.parse(**options, settle_deadline_ms=1))}"
        return RecoveryReport(transactional_id="orders", settled=False, remedies=(f"{command} --take-over: …",))

    kafka = {"bootstrap.servers": "h:1"}
    monkeypatch.setattr(sinks, "recover", recover)
    file.write_text(f'database = "{URL}"\n[kafka]\nbootstrap.servers = "h:1"\n')
    assert cli.main(["recover", "--config", str(file), "--transactional-id", "orders"]) == 3
    printed = f"to do:    spark-2pc recover --transactional-id orders --config {file} --take-over: …\n"
    assert printed in capsys.readouterr().out
    options = RecoveryOptions.parse(transactional_id="orders", kafka=kafka, database=URL)
    sides = "--bootstrap-server h:1 --database postgresql://app@h/shop"
    assert sink_flags(options) == f"--transactional-id orders {sides}"
