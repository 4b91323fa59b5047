"""The sockets that kafka-python gets: they correct three things that it would get wrong by itself.

It tries the addresses of a host in the order of the resolver, always from the first one on, and lets each take all the
time there is. So an address that swallows packets (IPv6 that leads nowhere, a machine that was switched off) would keep
the others from ever being tried, however often it is tried again. Java goes on to the next one (KIP-302).

And where an answer and the end of the connection can be read at once, it drops the answer. That is how a broker
refuses a login: the reason would never be seen, and the login be tried again until the deadline.

And of a failure of TLS it keeps a sentence. What the peer has shown goes along with ours (`TlsFailedError`).
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, Final

from kafka import errors as kafka_errors

from spark_2pc_sink.producer.peer_certificate import shown_by_peer
from spark_2pc_sink.producer.tls_refusals import TlsFailedError

if TYPE_CHECKING:

    class KafkaNetSocket:
        """kafka-python has no type information: this is said of its class here."""

        def __init__(self, proxy_url: str) -> None: ...
        def dns_lookup(self, host: str, port: int, raise_error: bool) -> list[Any]:  # noqa: FBT001 - its own
            """The addresses of a host."""

        async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None) -> Any:
            """Connect a socket to one address."""

else:
    from kafka.net import KafkaNetSocket

_SCHEME: Final = "spark-2pc-sink"
#: kafka-python chooses by this who makes sockets. It names no proxy.
OWN_SOCKETS_URL: Final = f"{_SCHEME}://"
#: How an alert of TLS begins (RFC 8446, section 5.1), by which Kafka answers bytes that are no TLS. As the length of an
#: answer of Kafka's it would be 352 MB.
_TLS_ALERT: Final = b"\x15\x03"


class PlainSocket(socket.socket):
    """A socket without TLS that tells the end of a stream in a read of its own."""

    has_read = False
    was_answered: bool = False

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """What can be read, b"" at the end.

        Raises:
            BlockingIOError: nothing can be read now, or the end follows what was read last.
            TlsFailedError: the peer speaks TLS.
        """
        found = super().recv(bufsize, flags)
        if not self.was_answered and found.startswith(_TLS_ALERT):
            raise TlsFailedError(None)
        self.was_answered = True
        return _end_apart(self, found)


class TlsSocket(ssl.SSLSocket):
    """The same with TLS."""

    has_read = False

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """As `PlainSocket.recv`.

        Raises:
            BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError: nothing can be read now.
            TlsFailedError: with TLS 1.3 a peer refuses the client's certificate after the handshake.
        """
        try:
            return _end_apart(self, super().recv(buflen, flags))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            raise TlsFailedError(error, shown_by_peer(self)) from error

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - its own
        """Go on with the handshake; one that fails closes the socket, which nobody else would do.

        Raises:
            ssl.SSLWantReadError, ssl.SSLWantWriteError: it waits for the peer.
            TlsFailedError, OSError: it has failed.
        """
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            chain = shown_by_peer(self)
            self.close()
            raise TlsFailedError(error, chain) from error
        except OSError:
            self.close()
            raise


def _end_apart(sock: PlainSocket | TlsSocket, found: bytes) -> bytes:
    """What was read, unless it is the end right behind something: that is told when it is read the next time."""
    told_later = sock.has_read and not found
    sock.has_read = bool(found)
    if told_later:
        raise BlockingIOError
    return found


class OwnSockets(KafkaNetSocket):
    """Makes and connects sockets to one host; each address has an equal share of the time. One object per connection.

    Args:
        proxy_url: `OWN_SOCKETS_URL`.
    """

    SCHEMES = (_SCHEME,)

    def __init__(self, proxy_url: str) -> None:
        super().__init__(proxy_url)
        self._addresses_left = 0

    def dns_lookup(self, host: str, port: int, raise_error: bool = False) -> list[Any]:  # noqa: FBT001, FBT002 - its own
        """The addresses of a host, as ``socket.getaddrinfo`` returns them."""
        found: list[Any] = super().dns_lookup(host, port, raise_error)
        self._addresses_left = len(found)
        return found

    def socket(self, family: int, sock_type: int, proto: int) -> socket.socket:
        """A new socket."""
        return PlainSocket(family, sock_type, proto)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        """Connect a socket to one address.

        Raises:
            kafka.errors.KafkaConnectionError: refused, or no answer within the address's share of the time. The next
                address is tried then.
        """
        if timeout_at is not None:
            now_s = time.monotonic()
            timeout_at = now_s + (timeout_at - now_s) / max(1, self._addresses_left)
        self._addresses_left -= 1
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except kafka_errors.KafkaTimeoutError as error:
            sock.close()
            raise kafka_errors.KafkaConnectionError(f"no answer from {sockaddr[0]} port {sockaddr[1]}") from error
        except BaseException:
            sock.close()
            raise
