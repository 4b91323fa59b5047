"""The connections to brokers, driven on the caller's thread, with a deadline on every wait.

`BrokerConnections` wraps ``kafka.net`` of kafka-python (TCP, TLS, SASL, framing). Its event loop runs only inside the
calls below: nothing happens between two calls, and no thread is left behind.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from kafka import errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaTimeoutError
from spark_2pc_sink.logins.kerberos import check_library
from spark_2pc_sink.logins.token_sources import token_source
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer import library_log
from spark_2pc_sink.producer.broker_tokens import BrokerTokens
from spark_2pc_sink.producer.connection_failures import ConnectionFailures, NodeUnavailableError
from spark_2pc_sink.producer.direct_exchange import SentRequest, at_rest
from spark_2pc_sink.producer.error_policy import kafka_error
from spark_2pc_sink.producer.network_loop import NetworkLoop
from spark_2pc_sink.producer.sockets import OWN_SOCKETS_URL
from spark_2pc_sink.producer.tls import client_context
from spark_2pc_sink.wire import api_versions, messages, responses
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.messages import KafkaRequest
from spark_2pc_sink.wire.replies import ApiVersionsReply
from spark_2pc_sink.wire.responses import KafkaResponse

_log = sink_log(__name__)

_Answer = TypeVar("_Answer")
#: Waits for the answer to a request that was sent, and raises `NodeUnavailableError` where there is none.
AnswerLater: TypeAlias = "Callable[[], KafkaResponse]"

#: ApiVersions is asked at this version: brokers since 2.4 answer it, the others are too old for us anyway.
_API_VERSIONS_VERSION: Final = 3
#: One pass of the loop moves a request from the queue to the selector, the next one to the socket.
_PASSES_TO_SOCKET: Final = 2


class Reasons:
    """The newest reason of failed attempts, for the error at the end, and for the log where they go on for long.

    An attempt that the deadline cut short was not answered in time whatever the trouble is: it says less than what was
    found before it, and does not take its place.

    Args:
        deadline: of all attempts.

    Attributes:
        newest: None before the first.
    """

    def __init__(self, deadline: Deadline) -> None:
        self.newest: str | None = None
        self._deadline = deadline

    def note(self, reason: object) -> None:
        """An attempt has failed."""
        if self.newest is None or not self._deadline.passed:
            self.newest = str(reason)
        if self._deadline.got_long():
            _log.warning("still waiting for Kafka, for up to %.0f s more: %s", self._deadline.remaining_s, self.newest)


class Pending(Protocol):
    """An answer that may have come: the part of ``kafka.future.Future`` in use here."""

    is_done: bool
    value: KafkaResponse
    exception: BaseException | None


class _LoopClock:
    """The machine's monotonic clock; to sleep is to let the connections go on."""

    def __init__(self, connections: BrokerConnections) -> None:
        self._connections = connections

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self._connections.poll(left_s)


class BrokerConnections:
    """One connection to each broker that is asked.

    Making one reads the files of TLS, and connects to nobody. Not for use from several threads at once, and not across
    a fork.

    Args:
        options: addresses, security, time-outs and back-off.

    Raises:
        ConfigurationError: a file of TLS cannot be read.
        MissingExtraError: the login needs a package that is not installed.
        KafkaTimeoutError: this process may open no more files.
    """

    def __init__(self, options: KafkaOptions) -> None:
        tls = client_context(options)
        check_library(options)
        source = token_source(options)
        library_log.install()
        self.options = options
        self._tokens = None if source is None else BrokerTokens(source)
        self._failed = ConnectionFailures(options, self._tokens)
        self._events = library_log.ConnectionEvents()
        self._net = NetworkLoop()
        self._manager = KafkaConnectionManager(
            self._net,
            proxy_url=OWN_SOCKETS_URL,
            ssl_context=tls,
            sasl_oauth_token_provider=self._tokens,
            **options.connection_config(),
        )
        self._versions: dict[int | str, ApiVersionsReply] = {}
        self._connecting: dict[int | str, tuple[Any, float]] = {}
        self._failures: dict[int | str, BaseException] = {}
        self._reasons: dict[int | str, str] = {}
        #: Brokers that did not answer the last request, or could not be reached for it.
        self._silent: set[int | str] = set()
        #: What `begin` has sent, until its answer is taken.
        self._unanswered: dict[int | str, SentRequest] = {}
        self._connect_s_max = options.socket_connection_setup_timeout_ms / 1000
        self._closed = False

    # --- lifetime ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every connection. Answers still under way are dropped. Calling it again changes nothing."""
        if not self._closed:
            self._closed = True
            with library_log.quiet(self._events):
                for connection, _ in self._connecting.values():
                    # Without an error the socket would stay open until what is left was written, which nobody does now.
                    connection.close(kafka_errors.KafkaConnectionError("closed"))
                self._manager.close()
                self._net.close()

    # --- the loop ------------------------------------------------------------------------------------------------

    def deadline(self, limit_ms: int | None = None, *, backoff_ms: int | None = None) -> Deadline:
        """A deadline whose pauses let the connections go on.

        Args:
            limit_ms: milliseconds from now; ``max_block_ms`` unless said.
            backoff_ms: the first pause; ``retry_backoff_ms`` unless said.
        """
        return Deadline(
            _LoopClock(self),
            self.options.max_block_ms if limit_ms is None else limit_ms,
            backoff_ms=self.options.retry_backoff_ms if backoff_ms is None else backoff_ms,
            backoff_ms_max=self.options.retry_backoff_max_ms,
        )

    def poll(self, timeout_s: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let the connections send and receive; returns after the first event, or after ``timeout_s`` without one.

        Args:
            timeout_s: seconds to wait at most.
            until: what is waited for. It may have come by the time when there is nothing left to send, and then no
                further event need come.
        """
        with library_log.quiet(self._events):
            for _ in range(_PASSES_TO_SOCKET - 1):
                self._net.poll(timeout_ms=0)
            if not until():
                self._net.poll(timeout_ms=max(0.0, timeout_s) * 1000)

    def wait(self, pending: Pending, deadline: Deadline) -> None:
        """Drive the loop until ``pending`` is done or the deadline has passed."""
        with library_log.quiet(self._events):
            while not pending.is_done and not deadline.passed:
                self._net.poll(timeout_ms=deadline.remaining_s * 1000, future=pending)

    # --- one broker ----------------------------------------------------------------------------------------------

    def ready(self, node_id: int | str) -> bool:
        """True when a request to this broker would be written now; else a connection is on its way, or it is busy.

        Raises:
            NodeUnavailableError: connecting failed a moment ago.
            AuthorizationError: the broker refused the credentials.
        """
        connection = self._connection(node_id)
        return bool(connection.connected and not connection.paused)

    def send(self, node_id: int | str, request: KafkaRequest) -> Pending:
        """Hand a request to the connection of a broker that is `ready`.

        The answer, or the failure, shows in the result after some `poll`; a failure never says whether the broker
        has acted on the request. Without an answer within ``request_timeout_ms`` the connection is closed, which
        fails every request on it.

        Raises:
            NodeUnavailableError: the request was not sent.
        """
        connection = self._connection(node_id)
        if not connection.connected or connection.paused:
            raise NodeUnavailableError(f"broker {node_id} cannot take a request now")
        with library_log.quiet(self._events):
            pending: Pending = connection.send_request(request)
        return pending

    def request(self, node_id: int | str, request: KafkaRequest, deadline: Deadline) -> KafkaResponse:
        """Ask one broker once and wait for the answer.

        Raises:
            NodeUnavailableError: no connection, or no answer; the broker may have acted on the request.
            AuthorizationError: the broker refused the credentials.
        """
        begun = self.begin(node_id, request, deadline)
        if begun is not None:
            return begun()
        self._silent.add(node_id)
        self._connect(node_id, deadline)
        pending = self.send(node_id, request)
        self.wait(pending, deadline)
        if not pending.is_done:
            raise NodeUnavailableError(f"broker {node_id} has not answered in time")
        if pending.exception is not None:
            raise self._unavailable(node_id, pending.exception)
        self._note_answer(node_id, request)
        return pending.value

    def begin(self, node_id: int | str, request: KafkaRequest, deadline: Deadline) -> AnswerLater | None:
        """Send a request at once, and wait for its answer when somebody calls for it.

        Returns:
            what waits for the answer. Whoever asks this broker something else before closes the connection, and then
            there is no answer. None where the connection is not there, or is busy.

        Raises:
            NodeUnavailableError: it was not sent; the broker may have got it all the same.
        """
        resting = self._at_rest(node_id)
        if resting is None:
            return None
        self._silent.add(node_id)
        timeout_s = min(deadline.remaining_s, self.options.request_timeout_ms / 1000)
        sent = self._asked(node_id, lambda: SentRequest(resting, request, timeout_s=timeout_s))
        self._unanswered[node_id] = sent

        def answer() -> KafkaResponse:
            self._unanswered.pop(node_id, None)
            response = self._asked(node_id, sent.answer)
            self._note_answer(node_id, request)
            return response

        return answer

    def request_at_once(
        self, requests: Mapping[int, KafkaRequest], deadline: Deadline
    ) -> dict[int, KafkaResponse] | None:
        """Ask several brokers at the same time, each one thing.

        Returns:
            the answers; None where a connection is not there or is busy, or a broker did not answer.
        """
        later: dict[int, AnswerLater] = {}
        try:
            for node_id, request in requests.items():
                begun = self.begin(node_id, request, deadline)
                if begun is None:
                    return None
                later[node_id] = begun
            return {node_id: answer() for node_id, answer in later.items()}
        except NodeUnavailableError as error:
            _log.info("%s; asking again", error)
            return None

    def by_promise(self, nodes: Sequence[int] | Sequence[str]) -> list[Any]:
        """Those of equal knowledge, the most promising first: who has not failed us last, and has a connection."""
        connected = {connection.node_id for connection in self._manager.least_used_connections()}
        shuffled = random.sample(nodes, len(nodes))
        return sorted(shuffled, key=lambda node_id: (node_id in self._silent, node_id not in connected))

    def call(
        self,
        api: Api,
        choose_node: Callable[[Deadline], int],
        build: Callable[[int], KafkaRequest],
        deadline: Deadline,
    ) -> KafkaResponse:
        """Ask until some broker answers, whatever it answers.

        Args:
            api: what is asked, for the version and for error texts.
            choose_node: says whom to ask, anew for each attempt.
            build: makes the request for a version.
            deadline: when to give up.

        Raises:
            KafkaTimeoutError: no answer within the deadline.
            KafkaError: the broker and this package have no version in common (code 35).
            AuthorizationError: a broker refused the credentials.
        """

        def attempt() -> KafkaResponse:
            node_id = choose_node(deadline)
            version = self.version(node_id, api, deadline)
            return self.request(node_id, build(version), deadline)

        return self.until_answered(api.name, attempt, deadline)

    def until_answered(
        self, operation: str, attempt: Callable[[], _Answer], deadline: Deadline, *, otherwise: str | None = None
    ) -> _Answer:
        """Run ``attempt`` until it does not raise `NodeUnavailableError`, with growing pauses.

        Args:
            operation: what is asked, for the error.
            attempt: asks once.
            deadline: when to give up.
            otherwise: what the error says where no attempt could be made; by default what last went wrong with a
                connection.

        Raises:
            KafkaTimeoutError: every attempt within the deadline failed.
        """
        reasons = Reasons(deadline)
        while not deadline.passed:
            try:
                return attempt()
            except NodeUnavailableError as error:
                reasons.note(error)
            deadline.pause()
        last_error = reasons.newest or otherwise or self._events.last_error
        raise KafkaTimeoutError(operation=operation, deadline_ms=deadline.limit_ms, last_error=last_error)

    def api_versions(self, node_id: int | str, deadline: Deadline) -> ApiVersionsReply:
        """The versions that this broker offers, asked once per broker and again after `forget_features`.

        Raises:
            NodeUnavailableError: no answer.
        """
        known = self._versions.get(node_id)
        if known is None:
            known = self._note_versions(node_id, self.request(node_id, _api_versions_request(), deadline))
        return known

    def begin_api_versions(self, node_id: int, deadline: Deadline) -> Callable[[], ApiVersionsReply] | None:
        """Ask a broker for its versions anew, as `begin` does; its answer is what `api_versions` tells from then on.

        Raises:
            NodeUnavailableError: it was not sent.
        """
        later = self.begin(node_id, _api_versions_request(), deadline)
        return None if later is None else lambda: self._note_versions(node_id, later())

    def knows_versions(self, node_id: int | str) -> bool:
        """Whether `version` can tell without asking the broker."""
        return node_id in self._versions

    def version(self, node_id: int | str, api: Api, deadline: Deadline, *, at_most: int | None = None) -> int:
        """The newest version of ``api`` that this broker and this package speak.

        Raises:
            KafkaError: there is none (code 35).
            NodeUnavailableError: the broker did not say what it offers.
        """
        return api_versions.choose_version(self.api_versions(node_id, deadline), api, at_most=at_most)

    # --- parts ------------------------------------------------------------------------------------------------------

    def _note_versions(self, node_id: int | str, response: KafkaResponse) -> ApiVersionsReply:
        found = responses.read_api_versions(response)
        if found.error_code != Code.NONE:
            raise kafka_error("ApiVersions", found.error_code)
        self._versions[node_id] = found
        return found

    def _drop_unanswered(self, node_id: int | str) -> None:
        """End a request whose answer nobody has taken: what is read next of its connection would be that."""
        left = self._unanswered.pop(node_id, None)
        if left is not None:
            with library_log.quiet(self._events):
                left.drop()

    def _at_rest(self, node_id: int | str) -> Any:
        """The connection to a broker on which nothing is under way; None where there is none."""
        self._drop_unanswered(node_id)
        known, _ = self._connecting.get(node_id, (None, 0.0))
        if known is None or not at_rest(known):
            return None
        left_s = self._net._next_scheduled_timeout(time.monotonic())  # noqa: SLF001 - it tells nowhere else
        if left_s is not None and left_s <= 0:
            # A new login (KIP-368), or the end of what nobody has used for long: only the loop has timers.
            self.poll(0)
        return known if at_rest(known) else None

    def _asked(self, node_id: int | str, step: Callable[[], _Answer]) -> _Answer:
        with library_log.quiet(self._events):
            try:
                return step()
            except kafka_errors.KafkaError as error:
                raise self._unavailable(node_id, error) from error

    def _note_answer(self, node_id: int | str, request: KafkaRequest) -> None:
        self._silent.discard(node_id)
        if request.API_KEY != Api.API_VERSIONS:  # which a listener answers before a login, too
            self._failed.note_answer(node_id)

    def _connection(self, node_id: int | str) -> Any:
        """The connection to a broker, new or old, in whatever state.

        Raises:
            NodeUnavailableError: the one before could not be made; or it is too early for a new one.
            ConfigurationError: a file of TLS cannot be read any more.
        """
        with library_log.quiet(self._events):
            self._drop_unanswered(node_id)
            self._raise_failure(node_id)
            try:
                connection = self._manager.get_connection(node_id, refresh_metadata_on_err=False)
            except kafka_errors.NodeNotReadyError as error:
                raise NodeUnavailableError(self._reasons.get(node_id, f"broker {node_id}: {error}")) from error
            except kafka_errors.KafkaError as error:
                raise self._unavailable(node_id, error) from error
            known, since_s = self._connecting.get(node_id, (None, 0.0))
            if known is not connection:
                self._connecting[node_id] = (connection, time.monotonic())
                connection.init_future.add_errback(partial(self._failures.__setitem__, node_id))
                # Certificates are renewed under a running job. It connects in the next pass of the loop.
                self._manager.config["ssl_context"] = client_context(self.options)
            elif connection.initializing and time.monotonic() - since_s > self._connect_s_max:
                # A TLS handshake that hangs has no time-out of its own, and would be found again for ever.
                connection.close(kafka_errors.KafkaConnectionError("connecting took too long"))
                self._raise_failure(node_id)
        return connection

    def _connect(self, node_id: int | str, deadline: Deadline) -> None:
        """Wait until the broker can take a request.

        Raises:
            NodeUnavailableError: it cannot, within the deadline or ``socket_connection_setup_timeout_ms``.
        """
        connection = self._connection(node_id)
        # Rounded up: cut off a moment before the deadline, it would pass for a reason of its own (`Reasons`).
        limit_ms = math.ceil(min(deadline.remaining_s, self._connect_s_max) * 1000)
        self.wait(connection.init_future, self.deadline(limit_ms))
        if not connection.init_future.is_done:
            with library_log.quiet(self._events):
                connection.close(kafka_errors.KafkaConnectionError("connecting took too long"))
        self._raise_failure(node_id)
        while connection.paused and not connection.closed and not deadline.passed:
            self.poll(deadline.remaining_s, until=lambda: not connection.paused or connection.closed)

    def _raise_failure(self, node_id: int | str) -> None:
        """Report, once, that the last connection to this broker could not be made.

        kafka-python forgets such a connection, and makes another one when asked again.
        """
        failure = self._failures.pop(node_id, None)
        if failure is not None:
            error = self._unavailable(node_id, failure)
            self._reasons[node_id] = str(error)
            raise error

    def _unavailable(self, node_id: int | str, error: BaseException) -> Exception:
        """The exception for a failure of kafka-python, see `ConnectionFailures.judge`."""
        broker = self._manager.cluster.broker_metadata(node_id)
        address = None if broker is None else (broker.host, broker.port)
        return self._failed.judge(node_id, address, error, self._manager.config["ssl_context"])


def _api_versions_request() -> KafkaRequest:
    return messages.api_versions_request(
        version=_API_VERSIONS_VERSION, client_name="spark-2pc-sink", client_version="1"
    )
