"""The direct exchange: one request and its answer on a connection at rest, without a pass of kafka-python's loop.

For one request the loop moves tasks, timers and selector entries about, which takes half a millisecond of Python. A
service sends two requests for each of its transactions, one after the other, and then that is most of what they cost.
While nothing is under way on a connection, its socket can as well be written and read by the thread that waits.
Connecting, TLS, logins and the codec stay with kafka-python.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors

from spark_2pc_sink.wire.messages import KafkaRequest
from spark_2pc_sink.wire.responses import KafkaResponse

_Result = TypeVar("_Result")

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


class SentRequest:
    """A request on its way: making one sends it. Nothing else may be asked on its connection until `answer`.

    Args:
        connection: kafka-python's, `at_rest`.
        request: at an explicit version.
        timeout_s: how long sending and waiting may take, from now.

    Raises:
        kafka.errors.KafkaError: it was not sent; the broker may have got it all the same.
    """

    def __init__(self, connection: Any, request: KafkaRequest, *, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s
        self._or_close(lambda: self._write(request))

    def answer(self) -> KafkaResponse:
        """Wait for the answer. A connection whose answer was not taken is closed: the next one read would be that.

        Raises:
            kafka.errors.KafkaError: no answer; the broker may have acted on the request.
        """
        return self._or_close(self._receive)

    def drop(self) -> None:
        """Close the connection: nobody will take the answer, which the next request would be given."""
        self._connection.close(kafka_errors.KafkaConnectionError("the answer was not taken"))

    def _or_close(self, step: Callable[[], _Result]) -> _Result:
        try:
            return step()
        except TimeoutError as error:
            late = kafka_errors.RequestTimedOutError(f"no answer within {self._timeout_s:.3f} s")
            self._connection.close(late)
            raise late from error
        except (OSError, kafka_errors.KafkaError) as error:
            lost = kafka_errors.KafkaConnectionError(str(error))
            self._connection.close(lost)
            raise lost from error
        except BaseException:
            self._connection.close(kafka_errors.KafkaConnectionError("a request was interrupted"))
            raise

    def _write(self, request: KafkaRequest) -> None:
        parser, sock = self._connection.parser, self._socket
        self._correlation_id: int = parser.send_request(request)
        sock.settimeout(left_s_until(self._end_s))
        sock.sendall(parser.send_bytes())

    def _receive(self) -> KafkaResponse:
        parser, transport = self._connection.parser, self._connection.transport
        if transport is None:
            message = "closed before the answer was read"
            raise ConnectionResetError(message)
        sock = self._socket
        # bounded: each pass takes bytes of one answer, whose length the parser bounds, and all end at the same time
        while not (answers := parser.receive_bytes(_read(sock, self._end_s))):
            pass
        # As the loop has it; a broken connection is closed, and its socket needs no setting.
        sock.settimeout(0)
        # kafka-python closes a connection that nobody has used for long.
        transport.last_read = time.monotonic()
        # The parser has compared it with that of its oldest request. An interruption in a moment when nobody holds this
        # object, as by the handler of a signal, leaves one whose answer nobody has taken.
        ((correlation_id, response),) = answers
        if correlation_id != self._correlation_id:
            message = "the answer is that of a request before, which was interrupted"
            raise ConnectionResetError(message)
        return response

    @property
    def _socket(self) -> Any:
        return self._connection.transport._sock  # noqa: SLF001 - kafka-python hands it out nowhere


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
