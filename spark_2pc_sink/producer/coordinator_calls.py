"""Asking the coordinator of one transactional id until it gives an answer that counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.producer.broker_connections import AnswerLater
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.connection_failures import NodeUnavailableError
from spark_2pc_sink.producer.error_policy import COORDINATOR_BUSY, COORDINATOR_MOVED
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.error_codes import describe_error
from spark_2pc_sink.wire.messages import KafkaRequest
from spark_2pc_sink.wire.responses import KafkaResponse

_log = sink_log(__name__)

_Reply = TypeVar("_Reply")


class _CoordinatorBusyError(NodeUnavailableError):
    """The right broker answered "ask again"."""


class CoordinatorCalls:
    """Finds the coordinator, and finds it again when it has moved, is loading, or does not answer.

    Args:
        cluster: connections; not closed by this object.
        transactional_id: whose coordinator.
    """

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id

    def forget(self) -> None:
        """Find the coordinator again with the next question."""
        self._cluster.forget_coordinator(self._transactional_id)

    def at_coordinator(self, operation: str, ask: Callable[[int], _Reply], deadline: Deadline) -> _Reply:
        """Run ``ask`` with the coordinator's node id until it does not raise `NodeUnavailableError`.

        Args:
            operation: what is asked, for the error.
            ask: one attempt.
            deadline: when to give up.

        Raises:
            KafkaTimeoutError: every attempt within the deadline failed.
            KafkaError: the coordinator cannot be found, for good.
        """

        def attempt() -> _Reply:
            try:
                return ask(self._cluster.coordinator(self._transactional_id, deadline))
            except _CoordinatorBusyError:
                raise
            except NodeUnavailableError:
                self.forget()
                raise

        named = f"{operation} for {self._transactional_id!r}"
        return self._cluster.until_answered(named, attempt, deadline, otherwise="no coordinator was found")

    def ask(
        self,
        api: Api,
        build: Callable[[int], KafkaRequest],
        read: Callable[[KafkaResponse], _Reply],
        code_of: Callable[[_Reply], int],
        deadline: Deadline,
        *,
        version_max: int | None = None,
    ) -> _Reply:
        """Send a request until the answer is not "ask again".

        Args:
            api: what is asked.
            build: makes the request for a version.
            read: reads the answer.
            code_of: the error code in what was read.
            deadline: when to give up.
            version_max: the newest version to use.

        Raises:
            KafkaTimeoutError: no such answer within the deadline; the last request may have been carried out.
            KafkaError: no version in common, or the coordinator cannot be found.
        """

        def attempt(node_id: int) -> _Reply:
            version = self._cluster.version(node_id, api, deadline, at_most=version_max)
            reply = read(self._cluster.request(node_id, build(version), deadline))
            code = code_of(reply)
            if code in COORDINATOR_MOVED:
                raise NodeUnavailableError(f"{api.name} was answered {describe_error(code)}")
            if code in COORDINATOR_BUSY:
                raise _CoordinatorBusyError(f"{api.name} was answered {describe_error(code)}")
            return reply

        return self.at_coordinator(api.name, attempt, deadline)

    def begin(
        self, api: Api, build: Callable[[int], KafkaRequest], deadline: Deadline, *, version_max: int
    ) -> AnswerLater | None:
        """Send a request at once, and wait for its answer when somebody calls for it; see `Cluster.begin`.

        None where somebody has to be asked, or a connection made, before; and where the request could not be sent.
        """
        node_id = self._cluster.known_coordinator(self._transactional_id)
        if node_id is None or not self._cluster.knows_versions(node_id):
            return None
        try:
            version = self._cluster.version(node_id, api, deadline, at_most=version_max)
            return self._cluster.begin(node_id, build(version), deadline)
        except NodeUnavailableError as error:
            _log.info("%s: %s; sending again", api.name, error)
            return None
