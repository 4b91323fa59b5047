"""Requests to transaction coordinators: retries, and descriptions of transactions (KIP-664)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import FencedError, KafkaError, KafkaTimeoutError
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, PreparedTxnState, ProducerIdAndEpoch, TopicPartition, TransactionState
from spark_2pc_sink.kafka.broker_connections import AnswerLater
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.kafka.error_policy import COORDINATOR_BUSY, COORDINATOR_MOVED, TWO_CAUSES, kafka_error
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.framed_request import RequestTemplate, pair_of
from spark_2pc_sink.wire.messages import KafkaPart, KafkaResponse, describe_error

_Reply = TypeVar("_Reply")


class _CoordinatorBusyError(NodeUnavailableError):
    """The right broker asked for a retry."""


class CoordinatorCalls:
    """Finds the coordinator, and finds it again if it has moved, is loading, or does not answer."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id

    def forget(self) -> None:
        self._cluster.coordinators.pop(self._transactional_id, None)

    def at_coordinator(self, operation: str, ask: Callable[[int], _Reply], deadline: Deadline) -> _Reply:
        """Run ``ask`` with the coordinator's node id until it does not raise `NodeUnavailableError`."""

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
        request: RequestTemplate,
        deadline: Deadline,
        *,
        read: Callable[[KafkaResponse], Any] = lambda response: response,
        code_of: Callable[[Any], int] = lambda found: found.error_code,
    ) -> Any:
        """Send a request until the answer no longer asks for a retry. After a time-out it may have been carried out."""

        def attempt(node_id: int) -> Any:
            reply = read(self._cluster.request(node_id, request, deadline))
            code = code_of(reply)
            if code in COORDINATOR_BUSY:
                kind = NodeUnavailableError if code in COORDINATOR_MOVED else _CoordinatorBusyError
                raise kind(f"{request.api.name} was answered {describe_error(code)}")
            return reply

        return self.at_coordinator(request.api.name, attempt, deadline)

    def describe(self, deadline: Deadline) -> TransactionDescription:
        found = self.ask(
            messages.describe_transactions_request([self._transactional_id]),
            deadline,
            read=lambda response: messages.described(response, self._transactional_id),
        )
        return description_of(found)

    def begin(self, request: RequestTemplate, deadline: Deadline) -> AnswerLater | None:
        """`Cluster.begin` at the coordinator; None also if it is unknown."""
        node_id = self._cluster.coordinators.get(self._transactional_id)
        return None if node_id is None else self._cluster.begin(node_id, request, deadline)


#: Answers to keepPreparedTxn from a coordinator without support: released Kafka has none, and with
#: apache/kafka#22704 it requires enable2Pc.
KEEP_REFUSED: Final = frozenset({Code.UNSUPPORTED_VERSION, Code.INVALID_REQUEST})


@dataclass(frozen=True)
class InitializedProducer:
    """The answer to InitProducerId."""

    producer: ProducerIdAndEpoch
    #: The kept prepared transaction, '' for none (KIP-939).
    ongoing: PreparedTxnState
    #: True if transactions of this id never time out.
    two_phase_commit: bool
    timeout_ms: int
    #: Whether it is the user's transaction.timeout.ms, or else the broker's maximum.
    own_timeout: bool = False


#: Ids per request, to bound its size.
IDS_PER_REQUEST_MAX: Final = 500
#: States of an aborted transaction.
_ABORTED: Final = (TransactionState.PREPARE_ABORT.value, TransactionState.COMPLETE_ABORT.value)


@dataclass(frozen=True)
class TransactionDescription:
    """The coordinator's description of a transactional id (KIP-664, DescribeTransactions)."""

    #: Kafka's name, one of `TransactionState` or a newer one; ``Unknown`` for an unknown or forgotten id.
    state: str
    producer: ProducerIdAndEpoch | None
    #: 2147483647 for transactions that never time out; 0 for an unknown id.
    timeout_ms: int
    #: Those without an end marker.
    partitions: tuple[TopicPartition, ...] = ()
    #: When the current or last transaction began, since 1970 by the coordinator's clock; None without one.
    start_time_ms: int | None = None


def description_of(found: KafkaPart) -> TransactionDescription:
    """Read a coordinator's answer; an unknown id is a state, not an error."""
    if found.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND:
        return TransactionDescription(TransactionState.UNKNOWN.value, None, 0)
    if found.error_code != Code.NONE:
        raise kafka_error("DescribeTransactions", found.error_code, f"id {found.transactional_id!r}")
    began_ms = found.transaction_start_time_ms
    return TransactionDescription(
        state=found.transaction_state,
        producer=pair_of(found.producer_id, found.producer_epoch),
        timeout_ms=found.transaction_timeout_ms,
        partitions=messages.transaction_partitions(found),
        start_time_ms=began_ms if began_ms >= 0 else None,
    )


def commit_error(
    code: int, producer: ProducerIdAndEpoch, described: TransactionDescription | None, *, open_ms: int
) -> KafkaError:
    """The error for a refused commit: a `FencedError` for another writer, a plain `KafkaError` for a time-out.

    If the coordinator does not tell them apart, the class is that of the code, and the message names both causes.
    ``open_ms`` is an upper bound of the transaction's age.
    """
    kind: type[KafkaError] | None = None
    cause = TWO_CAUSES
    if described is not None and described.producer is not None:
        shown = f"Kafka shows {described.state} {described.producer}"
        rotated = producer.exhausted and described.producer.epoch == 0
        if described.state in _ABORTED and (rotated or described.producer == producer.bumped()):
            timed_out = described.timeout_ms <= open_ms and described.timeout_ms != TIMEOUT_NEVER_MS
            kind = KafkaError if timed_out else FencedError
            past = f"Kafka has aborted the transaction after its time-out of {described.timeout_ms} ms"
            cause = past if timed_out else f"another client has ended the transaction before any time-out; {shown}"
        elif described.producer not in {producer, producer.bumped()}:
            kind, cause = FencedError, f"another writer has taken over the transactional id; {shown}"
    name = describe_error(code).name
    detail = f"commit of {producer}: {cause}"
    return (kind or type(kafka_error("EndTxn", code)))(api="EndTxn", code=code, name=name, detail=detail)


def describe_all(
    cluster: Cluster, transactional_ids: Iterable[str], deadline: Deadline
) -> dict[str, TransactionDescription | KafkaError | KafkaTimeoutError]:
    """Describe many ids, with one request to each coordinator; an id without a description has its error."""
    found: dict[str, TransactionDescription | KafkaError | KafkaTimeoutError] = {}
    wanted = sorted(set(transactional_ids))

    def attempt() -> None:
        """Ask for those left, and report why some have no final answer, if any."""
        left = [name for name in wanted if name not in found]
        reason: NodeUnavailableError | None = None
        for first in range(0, len(left), IDS_PER_REQUEST_MAX):
            reason = _ask_once(cluster, left[first : first + IDS_PER_REQUEST_MAX], found, deadline) or reason
        if reason is not None:
            raise reason

    operation = Api.DESCRIBE_TRANSACTIONS.name
    try:
        cluster.until_answered(operation, attempt, deadline, otherwise="no broker was asked in time")
    except KafkaTimeoutError as error:
        left = [name for name in wanted if name not in found]
        found |= {name: replace(error, operation=f"{operation} for {name!r}") for name in left}
    return found


def _ask_once(
    cluster: Cluster,
    transactional_ids: Sequence[str],
    found: dict[str, TransactionDescription | KafkaError | KafkaTimeoutError],
    deadline: Deadline,
) -> NodeUnavailableError | None:
    """Add the final answers to ``found``, and return why others have none."""
    reason: NodeUnavailableError | None = None
    asked: defaultdict[int, list[str]] = defaultdict(list)
    try:
        coordinators = cluster.find_coordinators(transactional_ids, deadline)
    except NodeUnavailableError as error:
        return error
    for name, node in coordinators.items():
        if isinstance(node, KafkaError):
            found[name] = node
        elif isinstance(node, NodeUnavailableError):
            reason = node
        else:
            asked[node].append(name)
    for node_id, names in asked.items():
        try:
            answers = cluster.request(node_id, messages.describe_transactions_request(names), deadline)
        except NodeUnavailableError as error:
            reason = error
            continue
        for answer in answers.transaction_states:
            if answer.error_code in COORDINATOR_BUSY:
                code = describe_error(answer.error_code)
                reason = NodeUnavailableError(f"DescribeTransactions was answered {code}")
                continue
            try:
                found[answer.transactional_id] = description_of(answer)
            except KafkaError as refusal:
                found[answer.transactional_id] = refusal
    return reason
