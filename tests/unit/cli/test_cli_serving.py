"""``spark-2pc exporter`` and ``dashboard``: what they watch, where they listen, and who may come in."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink import cli
from spark_2pc_sink.cli import output, serving
from spark_2pc_sink.cli.serving import TOKEN_CHARACTERS_MIN, host_and_port
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.monitoring import exporter as metrics_server
from spark_2pc_sink.monitoring.dashboard import app as page_server
from tests.harness.without_modules import run_without

SIDES = ("--bootstrap-server", "broker:9092", "--database", "postgresql://ops@db/shop")
LONG = "x" * TOKEN_CHARACTERS_MIN


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for server in (metrics_server, page_server):
        monkeypatch.setattr(server, "serve", lambda *arguments: found.append(arguments))
    return found


def test_the_exporter_watches_what_the_command_line_names(served: list[tuple[Any, ...]]) -> None:
    code = cli.main(["exporter", *SIDES, "--listen", "0.0.0.0:9940", "--timeout", "5", "--state-schema", "sinks"])
    ((watched, access, host, port),) = served
    assert (access.token, {"0.0.0.0", socket.gethostname().lower()} <= access.names) == (None, True)  # noqa: S104
    assert (code, host, port) == (output.EXIT_SETTLED, "0.0.0.0", 9940)  # noqa: S104 - what was said
    given = watched.connections
    assert (given["database"], watched.timeout_s) == ("postgresql://ops@db/shop", 5)
    assert (given["kafka"]["bootstrap.servers"], given["state_schema"]) == ("broker:9092", "sinks")


def test_elsewhere_a_token_is_made_and_printed_once(
    served: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        cli.main(["dashboard", *SIDES, "--listen", "0.0.0.0:8939"])
    printed = capsys.readouterr().out.splitlines()
    tokens = [access.token for _, access, _, _ in served]
    assert printed == [f"token: {token}" for token in tokens]
    assert len(set(tokens)) == 2
    assert "0.0.0.0" in served[0][1].hosts  # noqa: S104 - what was said


def test_a_token_of_a_file_is_asked_for_everywhere_and_printed_nowhere(
    served: list[tuple[Any, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{LONG}\n")
    cli.main(["dashboard", *SIDES, "--listen", "10.0.0.1:0", "--token-file", str(file)])
    assert served[0][1].token == LONG
    assert LONG not in "".join(capsys.readouterr())


def test_the_exporter_asks_for_the_token_of_a_file_and_goes_by_names_that_are_added(
    served: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{LONG}\n")
    cli.main(["exporter", *SIDES, "--token-file", str(file), "--host-name", "Exporter"])
    access = served[0][1]
    assert access.grants(f"Bearer {LONG}")
    assert not access.grants("")
    assert access.knows("exporter:9939")
    assert LONG not in repr(access)


@pytest.mark.parametrize("content", [None, b"short", b"\xff\xfe" * 20])
def test_a_token_file_that_is_none_is_refused(
    served: list[tuple[Any, ...]], tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    assert cli.main(["exporter", *SIDES, "--token-file", str(file)]) == output.EXIT_USAGE
    said = capsys.readouterr().err
    assert "token-file" in said
    assert "short" not in said
    assert served == []


@pytest.mark.parametrize("text", ["", "host", ":9939", "host:", "host:-1", "host:99x", "host:65536"])
def test_what_is_no_address_is_refused_by_the_option_s_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--listen"):
        host_and_port(text, option="--listen")


@pytest.mark.slow
def test_their_commands_load_neither_spark_nor_servers_before_they_are_run() -> None:
    """So that --help, and every other command, does without the extras."""
    assert serving.__name__ in sys.modules
    done = run_without(
        {"pyspark", "prometheus_client", "flask", "flask_wtf", "waitress"},
        "from spark_2pc_sink.cli import main; main(['--help'])",
    )
    assert (done.returncode, done.stderr) == (0, "")
