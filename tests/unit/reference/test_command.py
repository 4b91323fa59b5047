"""``spark-2pc coordinator`` as a process: its one line, its end, its metrics, and what it refuses."""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_2pc_sink import cli
from spark_2pc_sink.cli import coordinator, exits
from spark_2pc_sink.reference import broker
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.testing import free_port, wait_until
from tests.unit.reference.waiting import present

DEADLINE_S = 30
MEMORY = ("--in-memory", "--listen", "127.0.0.1:0")
#: Open files that the process begins with, as if its shell allowed no more, and what needs more than these.
FEW_FILES, MORE_PARTITIONS = 64, 100


@contextmanager
def running(*words: str, files: int | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, which may open so many files until it asks for more, and what its line says it listens on."""
    program = [sys.executable, "-m", "spark_2pc_sink.cli", "coordinator", *words]
    limited = [] if files is None else ["sh", "-c", f'ulimit -S -n {files} && exec "$@"', "sh"]
    with subprocess.Popen([*limited, *program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = present(re.fullmatch(r"listening on ((?:127\.0\.0\.1|\[::1\]):\d+)\n", process.stdout.readline()))
            yield process, found[1]
        finally:
            process.kill()


def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_orderly(tmp_path: Path, number: signal.Signals) -> None:
    with running("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")) as (process, address):
        assert admin(address).list_topics(timeout=DEADLINE_S).brokers
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == exits.EXIT_SETTLED
        assert process.stdout is not None
        assert process.stdout.read() == ""


@pytest.mark.slow
def test_a_restart_on_the_same_directory_knows_what_was_there(tmp_path: Path) -> None:
    words = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    with running(*words) as (process, address):
        admin_client = admin(address)
        admin_client.create_topics([NewTopic("kept", num_partitions=3)])["kept"].result(DEADLINE_S)
        process.terminate()
        process.wait(DEADLINE_S)
    with running(*words) as (_, address):
        assert len(admin(address).list_topics("kept", timeout=DEADLINE_S).topics["kept"].partitions) == 3


@pytest.mark.slow
def test_more_partitions_than_a_shell_lets_a_process_open_files(tmp_path: Path) -> None:
    words = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    errors: list[KafkaError | None] = []
    with running(*words, files=FEW_FILES) as (_, address):
        admin_client = admin(address)
        admin_client.create_topics([NewTopic("many", num_partitions=MORE_PARTITIONS)])["many"].result(DEADLINE_S)
        producer = Producer({"bootstrap.servers": address, "message.timeout.ms": DEADLINE_S * 1000})
        for partition in range(MORE_PARTITIONS):
            producer.produce("many", b"", partition=partition, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(2 * DEADLINE_S) == 0
    assert errors == [None] * MORE_PARTITIONS


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


@pytest.mark.slow
def test_a_properties_file_and_settings_of_which_settings_win(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=7\nnum.partitions=2\n")
    with running(*MEMORY, "--config", str(file), "--set", "node.id=8") as (_, address):
        assert set(admin(address).list_topics(timeout=DEADLINE_S).brokers) == {8}


@pytest.mark.slow
def test_metrics_are_served() -> None:
    port = free_port()
    with running(*MEMORY, "--metrics", f"127.0.0.1:{port}", "--metrics-host-name", "watch.internal"):
        opener = urllib.request.build_opener()
        opener.addheaders = [("Host", "watch.internal")]
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
            text = answer.read().decode()
        assert 'kafka_transactions{state="Ongoing"} 0.0' in text


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
    assert cli.main(["coordinator", *MEMORY, *words]) == exits.EXIT_USAGE
    assert named in capsys.readouterr().err


def test_a_directory_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    with running(*words):
        assert cli.main(["coordinator", *words]) == exits.EXIT_USAGE
    assert str(tmp_path / "data") in capsys.readouterr().err


def test_an_address_in_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ("--in-memory", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        assert cli.main(["coordinator", *words]) == exits.EXIT_FAILED
    assert "in use" in capsys.readouterr().err


def test_a_place_must_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """What is kept nowhere is lost with the process, so that is said and not a default."""
    parser = argparse.ArgumentParser()
    coordinator.add_commands(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["coordinator", "--listen", "127.0.0.1:0"])
    assert "--data-dir --in-memory" in capsys.readouterr().err


def test_an_ipv6_address_is_shown_as_clients_take_it() -> None:
    """Without brackets the port reads as a part of the address."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with running("--in-memory", "--listen", "[::1]:0") as (_, address):
        assert admin(address).list_topics(timeout=DEADLINE_S).brokers


def test_serving_ends_with_the_signal(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    properties = BrokerProperties.from_mapping({"listeners": f"PLAINTEXT://127.0.0.1:{port}"})

    def terminate() -> None:
        wait_until(lambda: answers(port), deadline_s=DEADLINE_S, what="the listener")
        os.kill(os.getpid(), signal.SIGTERM)

    terminating = threading.Thread(target=terminate)
    terminating.start()
    assert broker.serve(properties, None) == exits.EXIT_SETTLED
    terminating.join()
    assert capsys.readouterr().out == f"listening on 127.0.0.1:{port}\n"
    assert not answers(port)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return False
    return True
