"""Logins and TLS with clients that others wrote: confluent-kafka and kafka-python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import trustme
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS
from spark_2pc_sink.reference.handlers.cluster import ClusterHandlers
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.network.connection import SocketServer
from spark_2pc_sink.reference.protocol.api import handlers_of
from tests.unit.reference.net import dispatcher
from tests.unit.reference.waiting import DEADLINE_S

# A client that is refused goes on trying until its time is over.
pytestmark = pytest.mark.slow

#: How long a client tries: it takes a refused login for something that may pass.
CLIENT_DEADLINE_S = 1.5
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'


@contextmanager
def running(properties: Mapping[str, str]) -> Iterator[SocketServer]:
    """A server in a thread, because these clients block."""
    ready = Event()
    started: list[tuple[SocketServer, Callable[[], object]]] = []

    async def run() -> None:
        chosen = BrokerProperties.from_mapping(properties)
        stopped = asyncio.Event()
        with ThreadPoolExecutor(1) as executor:
            catalog = await Catalog.open(None, chosen, executor=executor)
            server = SocketServer(
                dispatcher(handlers_of(ClusterHandlers(catalog))),
                chosen,
                access_of=lambda _principal, _host: FULL_ACCESS,
            )
            await server.start()
            started.append((server, partial(asyncio.get_running_loop().call_soon_threadsafe, stopped.set)))
            ready.set()
            await stopped.wait()
            await server.stop(deadline_s=1)
            await catalog.close()

    # As in the command: asyncio.run closes who is just being accepted. A client that was refused comes again.
    thread = Thread(target=asyncio.run, args=[run()], daemon=True)
    thread.start()
    assert ready.wait(DEADLINE_S)
    ((server, stop),) = started
    try:
        yield server
    finally:
        stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SocketServer, Path]]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    properties = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0",
        "connection.failed.authentication.delay.ms": "1",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
        "ssl.keystore.location": str(folder / "server.pem"),
    }
    with running(properties) as found:
        yield found, folder / "authority.pem"


def confluent(address: str, protocol: str, user: str | None, password: str | None, authority: Path) -> int:
    """How many brokers confluent-kafka sees."""
    options: dict[str, Any] = {"bootstrap.servers": address, "security.protocol": protocol, "log_level": 0}
    options |= {"ssl.ca.location": str(authority)} if "SSL" in protocol else {}
    if user is not None:
        options |= {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password}
    options["error_cb"] = lambda _error: None
    client = AdminClient(options)
    return len(client.list_topics(timeout=CLIENT_DEADLINE_S).brokers)


def kafka_python(address: str, protocol: str, user: str | None, password: str | None, authority: Path) -> int:
    """How many brokers kafka-python sees."""
    options: dict[str, Any] = {
        "security_protocol": protocol,
        "request_timeout_ms": 5000,
        "bootstrap_timeout_ms": int(CLIENT_DEADLINE_S * 1000),
    }
    options |= {"ssl_cafile": str(authority)} if "SSL" in protocol else {}
    if user is not None:
        options |= {"sasl_mechanism": "PLAIN", "sasl_plain_username": user, "sasl_plain_password": password}
    client = KafkaAdminClient(bootstrap_servers=address, **options)
    try:
        return len(client.describe_cluster()["brokers"])
    finally:
        client.close()


PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL", "SSL")
Look = Callable[[str, str, str | None, str | None, Path], int]


def address_of(server: SocketServer, protocol: str) -> str:
    return "{}:{}".format(*server.addresses[PROTOCOLS.index(protocol)])


@pytest.mark.parametrize("look", [confluent, kafka_python])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_come_in(server: tuple[SocketServer, Path], protocol: str, look: Look) -> None:
    found, authority = server
    user, password = ("alice", "secret") if "SASL" in protocol else (None, None)
    assert look(address_of(found, protocol), protocol, user, password, authority) == 1


@pytest.mark.parametrize("look", [confluent, kafka_python])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("mallory", "secret")])
def test_clients_with_a_wrong_login_do_not(
    server: tuple[SocketServer, Path], protocol: str, user: str, password: str, look: Look
) -> None:
    found, authority = server
    failed = found.metrics.failed_logins
    with pytest.raises((KafkaException, KafkaError)):
        look(address_of(found, protocol), protocol, user, password, authority)
    assert found.metrics.failed_logins > failed


@pytest.mark.parametrize("look", [confluent, kafka_python])
def test_clients_without_a_login_do_not(server: tuple[SocketServer, Path], look: Look) -> None:
    found, authority = server
    errors = found.metrics.protocol_errors
    with pytest.raises((KafkaException, KafkaError)):
        look(address_of(found, "SASL_PLAINTEXT"), "PLAINTEXT", None, None, authority)
    assert found.metrics.protocol_errors > errors
