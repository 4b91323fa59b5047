"""The direct exchange: one request and its answer on a connection at rest, without a pass of kafka-python's loop.

For one request the loop moves tasks, timers and selector entries about, which takes half a millisecond of Python. A
service sends two requests for each of its transactions, one after the other, and then that is most of what they cost.
While nothing is under way on a connection, its socket can as well be written and read by the thread that waits.
Connecting, TLS, logins and the codec stay with kafka-python.
"""

from __future__ import annotations

import time
from typing import Any, Final

from kafka import errors as kafka_errors

from spark_2pc_sink.wire.messages import KafkaRequest
from spark_2pc_sink.wire.responses import KafkaResponse

#: Read at a time. Most answers are far smaller.
_READ_BYTES: Final = 64 * 1024


def at_rest(connection: Any) -> bool:
    """Whether nothing is under way on a connection of kafka-python's, not even a new login (KIP-368)."""
    return bool(
        connection.connected
        and not connection.paused
        and not connection.in_flight_requests
        and not connection._reauth.is_reauthenticating  # noqa: SLF001 - kafka-python tells it nowhere else
    )


def exchange(connection: Any, request: KafkaRequest, *, timeout_s: float) -> KafkaResponse:
    """Send a request on a connection `at_rest`, and wait for its answer.

    A connection whose answer was not taken is closed: what is read from it next would be that answer.

    Args:
        connection: kafka-python's.
        request: at an explicit version.
        timeout_s: how long sending and waiting may take.

    Raises:
        kafka.errors.KafkaError: no answer; the broker may have acted on the request.
    """
    try:
        return _exchange(connection, request, time.monotonic() + timeout_s)
    except TimeoutError as error:
        lost: kafka_errors.KafkaError = kafka_errors.RequestTimedOutError(f"no answer within {timeout_s:.3f} s")
        connection.close(lost)
        raise lost from error
    except (OSError, kafka_errors.KafkaError) as error:
        lost = kafka_errors.KafkaConnectionError(str(error))
        connection.close(lost)
        raise lost from error
    except BaseException:
        connection.close(kafka_errors.KafkaConnectionError("a request was interrupted"))
        raise


def _exchange(connection: Any, request: KafkaRequest, end_s: float) -> KafkaResponse:
    parser, transport = connection.parser, connection.transport
    sock = transport._sock  # noqa: SLF001 - kafka-python hands it out nowhere
    parser.send_request(request)
    sock.settimeout(left_s_until(end_s))
    sock.sendall(parser.send_bytes())
    # bounded: each pass takes bytes of one answer, whose length the parser bounds, and all end at end_s
    while not (answers := parser.receive_bytes(_read(sock, end_s))):
        pass
    # As the loop has it; a broken connection is closed, and its socket needs no setting.
    sock.settimeout(0)
    # kafka-python closes a connection that nobody has used for long.
    transport.last_read = time.monotonic()
    # The parser has compared the correlation id with that of the one request.
    ((_, response),) = answers
    return response


def _read(sock: Any, end_s: float) -> bytes:
    sock.settimeout(left_s_until(end_s))
    try:
        data: bytes = sock.recv(_READ_BYTES)
    except BlockingIOError:
        # Our sockets tell an end right behind something in a read of its own.
        data = b""
    if not data:
        message = "socket disconnected"
        raise ConnectionResetError(message)
    return data


def left_s_until(end_s: float) -> float:
    """Seconds until a time of the monotonic clock, for the time-out of a socket.

    Raises:
        TimeoutError: it has passed.
    """
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
