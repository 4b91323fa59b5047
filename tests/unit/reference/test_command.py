"""``spark-2pc coordinator``: its one line, its end, and what it refuses."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading

import pytest

from spark_2pc_sink import cli
from spark_2pc_sink.cli import output
from spark_2pc_sink.reference import broker
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.testing import free_port, wait_until
from spark_2pc_sink.web_server import MetricsAccess

MEMORY = ("--in-memory", "--listen", "127.0.0.1:0")


@pytest.mark.parametrize(("hard", "wanted"), [(4096, 4096), (resource.RLIM_INFINITY, 10_240)])
def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch, hard: int, wanted: int
) -> None:
    """Where there is no limit, as many as Java takes: no system takes infinitely many for an answer."""
    limits = [(1024, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    broker.raise_file_limit()
    broker.raise_file_limit()
    assert limits == [(1024, hard), (wanted, hard)]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--set", "nodes.id=1"), "node.id"),
        (("--set", "node.id"), "NAME=VALUE"),
        (("--set", "transaction.version=3"), "transaction.version"),
        (("--metrics", "9404"), "HOST:PORT"),
        (("--listen", "nowhere"), "nowhere"),
    ],
)
def test_a_wrong_command_line_is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], named: str
) -> None:
    assert cli.main(["coordinator", *MEMORY, *words]) == output.EXIT_USAGE
    assert named in capsys.readouterr().err


def test_serving_ends_with_the_signal(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    properties = BrokerProperties.from_mapping({"listeners": f"PLAINTEXT://127.0.0.1:{port}"})

    def terminate() -> None:
        wait_until(lambda: answers(port), what="the listener")
        os.kill(os.getpid(), signal.SIGTERM)

    terminating = threading.Thread(target=terminate)
    terminating.start()
    assert broker.serve(properties, None, None, MetricsAccess()) == output.EXIT_SETTLED
    terminating.join()
    assert capsys.readouterr().out == f"listening on 127.0.0.1:{port}\n"
    assert not answers(port)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return False
    return True
