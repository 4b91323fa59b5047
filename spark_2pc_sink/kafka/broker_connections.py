"""The connections to the brokers of a cluster, driven on the caller's thread, with a deadline on every wait.

They make progress only inside the calls below: nothing happens between calls, and no thread is left running.
"""

from __future__ import annotations

import math
import random
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, TypeAlias, TypeVar

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaTimeoutError
from spark_2pc_sink.kafka.connection import API_VERSIONS, API_VERSIONS_VERSION, Connection, SentRequest
from spark_2pc_sink.kafka.connection_failures import ConnectionFailures, NodeUnavailableError, client_context
from spark_2pc_sink.kafka.error_policy import kafka_error
from spark_2pc_sink.logins.tokens import BrokerTokens, check_library, token_source
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire.api_versions import Api, ApiVersionsReply, choose_version
from spark_2pc_sink.wire.framed_request import RequestTemplate
from spark_2pc_sink.wire.messages import KafkaResponse

_log = sink_log(__name__)

_Answer = TypeVar("_Answer")
#: A broker: by node id, or by index in bootstrap.servers.
NodeId: TypeAlias = "int | str"
#: Waits for the answer to a sent request, and raises `NodeUnavailableError` without one.
AnswerLater: TypeAlias = "Callable[[], KafkaResponse]"
#: The pause before reconnecting to a broker doubles with each failure in a row, with this much random variation.
_SPREAD: Final = (0.8, 1.2)


@dataclass
class _FailedConnections:
    """The last of a broker's failed connections in a row, until it is reported; then its reason in errors."""

    pause_ms: int
    unreported: BaseException | None
    again_at_s: float
    reason: str = ""


class BrokerConnections:
    """One connection to each broker in use. Not thread-safe, and not to be used across a fork.

    Construction reads the TLS files and does no network I/O. It raises ConfigurationError for a file that cannot be
    read, and MissingExtraError if the login needs a package that is not installed.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self.options: KafkaOptions = options
        self._tls = client_context(options)
        check_library(options)
        source = token_source(options)
        self._tokens = None if source is None else BrokerTokens(source)
        self._failed = ConnectionFailures(options, self._tokens)
        self._connections: dict[NodeId, Connection] = {}
        self._addresses: dict[NodeId, tuple[str, int]] = {}
        for number, server in enumerate(options.bootstrap_servers):
            host, _, port = server.rpartition(":")
            self._addresses[f"bootstrap-{number}"] = host.removeprefix("[").removesuffix("]"), int(port)
        self._failures: dict[NodeId, _FailedConnections] = {}
        self._versions: dict[NodeId, ApiVersionsReply] = {}
        #: `choose_version` with these.
        self._choices: dict[NodeId, Callable[[Api, int, int], int]] = {}
        #: Brokers that did not answer the last request, or were unreachable.
        self._silent: set[NodeId] = set()
        self._last_error = "no broker has answered yet"

    def close(self) -> None:
        """Close every connection. Pending answers are dropped. A second call does nothing."""
        for connection in self._connections.values():
            connection.close(ConnectionResetError("closed"))
        self._connections.clear()

    def deadline(self, limit_ms: int | None = None, *, backoff_ms: int | None = None) -> Deadline:
        """A deadline whose pauses drive the connections."""
        return Deadline(
            self,
            self.options.max_block_ms if limit_ms is None else limit_ms,
            backoff_ms=self.options.retry_backoff_ms if backoff_ms is None else backoff_ms,
            backoff_ms_max=self.options.retry_backoff_max_ms,
        )

    def now_s(self) -> float:
        """The machine's monotonic clock; a deadline's `spark_2pc_sink.clock.Clock`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Drive the connections in the meantime."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self.poll(left_s)

    def poll(self, timeout_s: float, until: Callable[[], bool] = lambda: False) -> None:
        """Drive the connections until the first event, for ``timeout_s`` at most; not at all if ``until`` holds."""
        if until():
            timeout_s = 0.0
        now_s = time.monotonic()
        end_s = min([now_s + max(0.0, timeout_s), *(each.wake_s for each in self._connections.values())])
        poller, connections = select.poll(), {}
        for connection in self._connections.values():
            connections[connection.fileno()] = connection
            poller.register(connection, connection.wanted)
        # Rounded up: a wait that ends slightly early would be repeated at once.
        for descriptor, events in poller.poll(math.ceil(max(0.0, end_s - now_s) * 1000)):
            connections[descriptor].advance(events)
        now_s = time.monotonic()
        for node_id, connection in list(self._connections.items()):
            if now_s >= connection.wake_s:
                connection.advance(0)
            self._note_state(node_id, connection)

    def ready(self, node_id: NodeId) -> bool:
        """True if a request would be sent to this broker now; else it is busy, or a connection is being opened."""
        return self._connection(node_id).ready

    def send(self, node_id: NodeId, request: RequestTemplate, deadline: Deadline) -> SentRequest:
        """Send a request to a broker that is `ready`; ``deadline`` is for the versions that it offers, if unknown.

        The result has the answer, or the failure, after some `poll`; a failure never says whether the broker has acted.
        Without an answer within ``request_timeout_ms`` the connection is closed, and every request on it fails.
        """
        version = API_VERSIONS_VERSION
        if request.api is not Api.API_VERSIONS:
            self.api_versions(node_id, deadline)
            version = self._choices[node_id](request.api, request.version_min, request.version_max)
        connection = self._connection(node_id)
        if not connection.ready:
            raise NodeUnavailableError(f"broker {node_id} cannot accept a request now")
        sent = connection.send(request.build(version))
        self._note_state(node_id, connection)
        return sent

    def request(self, node_id: NodeId, request: RequestTemplate, deadline: Deadline) -> KafkaResponse:
        """Send one request to one broker and wait; after a NodeUnavailableError it may have acted on the request."""
        self._silent.add(node_id)
        self._connect(node_id, deadline)
        return self._answer(node_id, self.send(node_id, request, deadline), deadline)

    def begin(self, node_id: NodeId, request: RequestTemplate, deadline: Deadline) -> AnswerLater | None:
        """Send a request at once; the result waits for the answer.

        None if another request or a new connection is needed first, or if sending failed: it may have arrived.
        """
        if node_id not in self._versions or node_id not in self._connections:
            return None
        try:
            sent = self.send(node_id, request, deadline)
        except NodeUnavailableError as error:
            _log.info("%s: %s; retrying", request.api.name, error)
            return None
        self._silent.add(node_id)
        return lambda: self._answer(node_id, sent, deadline)

    def request_at_once(self, requests: Mapping[int, RequestTemplate], deadline: Deadline) -> dict[int, KafkaResponse]:
        """The answers of several brokers, asked at the same time if they are connected; omits those without one."""
        later: dict[int, AnswerLater] = {}
        found: dict[int, KafkaResponse] = {}
        for node_id, request in requests.items():
            begun = self.begin(node_id, request, deadline)
            later[node_id] = begun or partial(self.request, node_id, request, deadline)
        for node_id, answer in later.items():
            try:
                found[node_id] = answer()
            except NodeUnavailableError as error:
                _log.info("%s; retrying", error)
        return found

    def most_promising_first(self, nodes: Sequence[int] | Sequence[str]) -> list[Any]:
        """The same brokers, the most promising first: without a recent failure, and connected."""
        connected = {node_id for node_id, connection in self._connections.items() if connection.open}
        shuffled = random.sample(nodes, len(nodes))
        return sorted(shuffled, key=lambda node_id: (node_id in self._silent, node_id not in connected))

    def until_answered(
        self,
        operation: str,
        attempt: Callable[[], _Answer],
        deadline: Deadline,
        *,
        otherwise: str | None = None,
        remedy: Callable[[str], str] = lambda _: "",
    ) -> _Answer:
        """Run ``attempt`` until it does not raise `NodeUnavailableError`, with growing pauses.

        ``otherwise`` is the error's reason if no attempt could be made, by default the last connection failure.
        """
        newest: str | None = None
        while not deadline.passed:
            # An attempt cut short by the deadline times out whatever the problem is: its reason is less informative
            # than that of the attempt before.
            try:
                return attempt()
            except NodeUnavailableError as error:
                if newest is None or not deadline.passed:
                    newest = str(error)
                if deadline.is_due_for_log():
                    _log.warning("still waiting for Kafka, for up to %.0f s more: %s", deadline.remaining_s, newest)
            except KafkaTimeoutError:
                if newest is None:
                    raise
            deadline.pause()
        reason = newest or otherwise or self._last_error
        raise KafkaTimeoutError(
            operation=operation, deadline_ms=deadline.limit_ms, last_error=reason, remedy=remedy(reason)
        )

    def api_versions(self, node_id: NodeId, deadline: Deadline) -> ApiVersionsReply:
        """This broker's offered versions, known from its connection; requested again after `forget_features`."""
        if node_id not in self._versions:
            self._silent.add(node_id)
            self._connect(node_id, deadline)  # a new connection requests them
        if node_id not in self._versions:
            self._note_versions(node_id, self.request(node_id, API_VERSIONS, deadline))
        return self._versions[node_id]

    def _note_versions(self, node_id: NodeId, response: KafkaResponse) -> ApiVersionsReply:
        if response.error_code != Code.NONE:
            raise kafka_error("ApiVersions", response.error_code)
        found = self._versions[node_id] = ApiVersionsReply.read(response)
        self._choices[node_id] = cache(partial(choose_version, found))
        return found

    def _answer(self, node_id: NodeId, sent: SentRequest, deadline: Deadline) -> KafkaResponse:
        while not sent.is_done and not deadline.passed:
            self.poll(deadline.remaining_s)
        if not sent.is_done:
            raise NodeUnavailableError(f"broker {node_id} has not answered in time")
        if sent.exception is not None:
            raise self._unavailable(node_id, sent.exception)
        self._silent.discard(node_id)
        return sent.value

    def _connection(self, node_id: NodeId) -> Connection:
        """The connection to a broker, in any state; NodeUnavailableError if it failed, and another one is not due."""
        connection = self._connections.get(node_id)
        if connection is not None:
            connection.renew()
            self._note_state(node_id, connection)
        self._raise_failure(node_id)
        connection = self._connections.get(node_id)
        if connection is not None:
            return connection
        address = self._addresses.get(node_id)
        if address is None:
            raise NodeUnavailableError(f"broker {node_id} is not in the cluster's metadata")
        # Certificates may be renewed during the job.
        self._tls = client_context(self.options)
        connection = self._connections[node_id] = Connection(address, self.options, self._tls, self._tokens)
        self._note_state(node_id, connection)
        self._raise_failure(node_id)
        return connection

    def _note_state(self, node_id: NodeId, connection: Connection) -> None:
        opened_with, connection.versions = connection.versions, None
        if opened_with is not None:
            self._note_versions(node_id, opened_with)
            self._failures.pop(node_id, None)
            self._silent.discard(node_id)
            _log.debug("connected to broker %s at %s:%d", node_id, *connection.address)
        if connection.answered:
            self._failed.answered.add(node_id)
        failure = connection.failure
        if failure is None or self._connections.get(node_id) is not connection:
            return
        del self._connections[node_id]
        self._last_error = str(failure)
        _log.debug("connection to broker %s closed: %s", node_id, failure)
        if not connection.opened:
            before = self._failures.get(node_id)
            pause_ms = self.options.reconnect_backoff_ms if before is None else before.pause_ms * 2
            pause_ms = min(pause_ms, self.options.reconnect_backoff_max_ms)
            spread = random.uniform(*_SPREAD)  # noqa: S311 - not security-relevant
            again_at_s = time.monotonic() + pause_ms / 1000 * spread
            self._failures[node_id] = _FailedConnections(pause_ms, failure, again_at_s)

    def _connect(self, node_id: NodeId, deadline: Deadline) -> None:
        connection = self._connection(node_id)
        while not connection.ready and connection.failure is None and not deadline.passed:
            self.poll(deadline.remaining_s)
        if not connection.ready and not connection.open:
            connection.close(TimeoutError("connecting took too long"))
            self._note_state(node_id, connection)
        self._raise_failure(node_id)

    def _raise_failure(self, node_id: NodeId) -> None:
        """Report, once, that the last connection to this broker failed; then, that it is too early for another."""
        failed = self._failures.get(node_id)
        if failed is not None and failed.unreported is not None:
            error = self._unavailable(node_id, failed.unreported)
            failed.unreported, failed.reason = None, str(error)
            raise error
        if failed is not None and time.monotonic() < failed.again_at_s:
            raise NodeUnavailableError(failed.reason)

    def _unavailable(self, node_id: NodeId, error: BaseException) -> Exception:
        return self._failed.classify(node_id, self._addresses.get(node_id), error, self._tls)
