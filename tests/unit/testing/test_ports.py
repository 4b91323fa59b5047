"""Ports that nobody listens on, and that nobody else is given."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from spark_2pc_sink.testing import free_port, ports
from spark_2pc_sink.testing.ports import BLOCK_PORTS, PORT_MAX, PORT_MIN

#: Draws more than a block, says so, and lives until its input ends.
OTHER_PROCESS = """\
import sys
from spark_2pc_sink.testing import free_port
print(*(free_port() for _ in range(int(sys.argv[1]))), flush=True)
sys.stdin.read()
"""


def test_can_be_bound_and_is_not_of_the_range_of_outgoing_connections() -> None:
    port = free_port()
    assert PORT_MIN <= port < PORT_MAX
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_port_is_given_once_in_all_processes() -> None:
    """A server that is down between kill and start keeps its port, whoever else starts one meanwhile."""
    count = BLOCK_PORTS + 1
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = other.stdout.readline().split()
        ours = [str(free_port()) for _ in range(count)]
    assert len({*theirs, *ours}) == 2 * count


@pytest.fixture
def one_block(monkeypatch: pytest.MonkeyPatch) -> ports._Ports:
    """Draws from one block, of which nobody else draws."""
    monkeypatch.setattr(ports, "_BLOCKS", 1)
    monkeypatch.setattr(ports, "_LEASE", f"\0spark-2pc-test-{os.getpid()}-{{}}")
    return ports._Ports()


def test_a_port_on_which_somebody_listens_is_passed_over(
    one_block: ports._Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "PORT_MIN", taken)
        assert taken < one_block.draw() < taken + BLOCK_PORTS
