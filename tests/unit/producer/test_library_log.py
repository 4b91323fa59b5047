"""No credentials in the log of kafka-python, whatever its level and whoever asks for it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator

import pytest
from kafka.protocol.sasl import SaslAuthenticateRequest

from spark_2pc_sink.errors import AuthorizationError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer import library_log
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.testing import ReferenceCoordinator
from tests.harness.login_broker import MECHANISMS, PASSWORD, LoginBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[LoginBroker]:
    broker = LoginBroker(ReferenceCoordinator())
    broker.server.properties["connection.failed.authentication.delay.ms"] = "1"
    with broker.server:
        yield broker


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What any logger says at any level."""
    with caplog.at_level(1):
        yield caplog


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login(broker: LoginBroker, logged: pytest.LogCaptureFixture, mechanism: str) -> None:
    with Cluster(KafkaOptions.parse(broker.properties(mechanism))) as cluster:
        cluster.features()
    assert "SaslAuthenticateRequest(...)" in logged.text
    assert_hidden(PASSWORD, logged.text)


def test_a_refused_login(broker: LoginBroker, logged: pytest.LogCaptureFixture) -> None:
    wrong = "plänted-" + secrets.token_hex(8)
    options = KafkaOptions.parse(broker.properties("PLAIN", password=wrong))
    with Cluster(options) as cluster, pytest.raises(AuthorizationError) as caught:
        cluster.features()
    assert_hidden(wrong, logged.text)
    assert_hidden(wrong, str(caught.getrepr(chain=True, style="long", showlocals=False)))


def test_a_token_and_another_user_of_the_library(logged: pytest.LogCaptureFixture) -> None:
    """The library's own message, as if it came from a client that is not ours."""
    library_log.install()
    request = SaslAuthenticateRequest(b"n,,\x01auth=Bearer t0ken\x01\x01", version=2)
    request.with_header(correlation_id=1, client_id="c")
    frame = request.encode(header=True, framed=True)
    logger = logging.getLogger("kafka.protocol.parser")
    logger.debug("%s Sending request %d %s", "c", 1, request)
    logger.debug("%s Send: %r", "c", bytes(frame))
    logger.debug("%s Recv: %r", "c", b"\0\0\0\4abcd")
    logging.getLogger("kafka.net.connection").debug("%s Request %d: %s", "c", 1, request)
    assert "t0ken" not in logged.text
    assert "abcd" not in logged.text
    assert logged.text.count("SaslAuthenticateRequest(...)") == 2
    assert "Recv: 8 bytes" in logged.text


def assert_hidden(secret: str, text: str) -> None:
    """Not as text, and not as the repr of its bytes."""
    assert secret not in text
    assert repr(secret.encode())[2:-1] not in text
