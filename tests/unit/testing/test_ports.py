"""Ports that nobody listens on, also when many processes ask with the same seed."""

from __future__ import annotations

import random
import socket

from spark_2pc_sink.testing import free_port
from spark_2pc_sink.testing.ports import PORT_MAX, PORT_MIN


def test_can_be_bound_and_is_not_of_the_range_of_outgoing_connections() -> None:
    port = free_port()
    assert PORT_MIN <= port < PORT_MAX
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_does_not_depend_on_the_seed_that_parallel_processes_share() -> None:
    drawn = set()
    for _ in range(4):
        random.seed(0)
        drawn.add(free_port())
    assert len(drawn) > 1
