"""Descriptions of transactional ids: what their coordinators say of them (KIP-664)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import FencedError, KafkaError, KafkaTimeoutError
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, ProducerIdAndEpoch, TopicPartition, TransactionState
from spark_2pc_sink.producer.broker_connections import Reasons
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.connection_failures import NodeUnavailableError
from spark_2pc_sink.producer.error_policy import COORDINATOR_BUSY, TWO_CAUSES, kafka_error
from spark_2pc_sink.wire import messages, responses
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.error_codes import describe_error
from spark_2pc_sink.wire.replies import DescribedTransaction

#: Ids in one request, so that no broker gets a giant one.
IDS_PER_REQUEST_MAX: Final = 500
#: The states of a transaction that has not ended, as ListTransactions knows them.
_OPEN_STATES: Final = (
    TransactionState.ONGOING.value,
    TransactionState.PREPARE_COMMIT.value,
    TransactionState.PREPARE_ABORT.value,
)
#: The states of a transaction that was aborted.
_ABORTED: Final = (TransactionState.PREPARE_ABORT.value, TransactionState.COMPLETE_ABORT.value)


@dataclass(frozen=True)
class TransactionDescription:
    """The coordinator's description of a transactional id (KIP-664, DescribeTransactions).

    Args:
        state: Kafka's name of the state, one of `TransactionState` or a newer one; ``Unknown`` for an id that the
            coordinator has never seen, or has forgotten.
        producer: the pair, None for an unknown id.
        timeout_ms: 2147483647 for transactions that never time out; 0 for an unknown id.
        partitions: those of the transaction that have no end marker yet.
        start_time_ms: when the current or the last transaction began, since 1970 by the coordinator's clock; None if
            there was none.
    """

    state: str
    producer: ProducerIdAndEpoch | None
    timeout_ms: int
    partitions: tuple[TopicPartition, ...] = ()
    start_time_ms: int | None = None


def description_of(found: DescribedTransaction) -> TransactionDescription:
    """What a coordinator has answered; that it has no such id is a state.

    Raises:
        KafkaError: any other refusal.
    """
    if found.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND:
        return TransactionDescription(TransactionState.UNKNOWN.value, None, 0)
    if found.error_code != Code.NONE:
        raise kafka_error("DescribeTransactions", found.error_code, f"id {found.transactional_id!r}")
    began = found.start_time_ms if found.start_time_ms >= 0 else None
    return TransactionDescription(found.state, found.producer, found.timeout_ms, found.partitions, began)


def commit_error(
    code: int, producer: ProducerIdAndEpoch, described: TransactionDescription | None, *, open_ms: int
) -> KafkaError:
    """The error for a refused commit: a `FencedError` for another writer, a plain `KafkaError` for a time-out.

    Where the coordinator does not tell them apart, the class is that of the code, and the text names both causes.

    Args:
        code: one of `error_policy.COMMIT_REFUSED`.
        producer: the pair of the transaction.
        described: the transactional id after the refusal; None where the coordinator did not answer.
        open_ms: the transaction began so many milliseconds ago, or less.
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
    """What their coordinators say of many ids, with one request to each coordinator; or why they say nothing.

    Args:
        cluster: connections; not closed by this.
        transactional_ids: of which.
        deadline: of all together.
    """
    found: dict[str, TransactionDescription | KafkaError | KafkaTimeoutError] = {}
    left = sorted(set(transactional_ids))
    reasons = Reasons(deadline)
    while left and not deadline.passed:
        for some in _portions(left):
            found |= _ask_once(cluster, some, deadline, reasons)
        left = [name for name in left if name not in found]
        if left:
            deadline.pause()
    for name in left:
        found[name] = KafkaTimeoutError(
            operation=f"{Api.DESCRIBE_TRANSACTIONS.name} for {name!r}",
            deadline_ms=deadline.limit_ms,
            last_error=reasons.newest or "no broker was asked in time",
        )
    return found


def list_open(cluster: Cluster, deadline: Deadline) -> list[str]:
    """The ids whose transactions have not ended, as far as they may be seen (DESCRIBE), by name.

    Raises:
        KafkaError: a broker refused.
        KafkaTimeoutError: a broker did not answer.
    """
    return sorted({name for node_id in cluster.node_ids(deadline) for name in _open_at(cluster, node_id, deadline)})


def _open_at(cluster: Cluster, node_id: int, deadline: Deadline) -> list[str]:
    response = cluster.call(
        Api.LIST_TRANSACTIONS,
        lambda _: node_id,
        lambda version: messages.list_transactions_request(version=version, states=_OPEN_STATES),
        deadline,
    )
    reply = responses.read_list_transactions(response)
    if reply.error_code != Code.NONE:
        raise kafka_error("ListTransactions", reply.error_code)
    return [row.transactional_id for row in reply.transactions]


def _ask_once(
    cluster: Cluster, transactional_ids: Sequence[str], deadline: Deadline, reasons: Reasons
) -> dict[str, TransactionDescription | KafkaError]:
    """One attempt: those that were answered for good, and are not to be asked about again."""
    found: dict[str, TransactionDescription | KafkaError] = {}
    try:
        coordinators = cluster.find_coordinators(transactional_ids, deadline)
    except NodeUnavailableError as error:
        reasons.note(error)
        return found
    asked: defaultdict[int, list[str]] = defaultdict(list)
    for name, node in coordinators.items():
        if isinstance(node, KafkaError):
            found[name] = node
        elif isinstance(node, NodeUnavailableError):
            reasons.note(node)
        else:
            asked[node].append(name)
    for node_id, names in asked.items():
        try:
            version = cluster.version(node_id, Api.DESCRIBE_TRANSACTIONS, deadline)
            request = messages.describe_transactions_request(names, version=version)
            answers = responses.read_describe_transactions(cluster.request(node_id, request, deadline))
        except NodeUnavailableError as error:
            reasons.note(error)
            continue
        for name, answer in answers.items():
            if answer.error_code in COORDINATOR_BUSY:
                reasons.note(f"DescribeTransactions was answered {describe_error(answer.error_code)}")
            else:
                found[name] = _description_or_refusal(answer)
    return found


def _description_or_refusal(answer: DescribedTransaction) -> TransactionDescription | KafkaError:
    try:
        return description_of(answer)
    except KafkaError as refusal:
        return refusal


def _portions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), IDS_PER_REQUEST_MAX):
        yield names[first : first + IDS_PER_REQUEST_MAX]
