"""Requests to transaction coordinators: retries, InitProducerId, and descriptions (KIP-664).

InitProducerId has two optional features: two-phase commit, and keeping a prepared transaction (KIP-939). If a
coordinator does not offer one, or refuses it, this is remembered until the cluster's features are refreshed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError, FencedError, KafkaError, KafkaTimeoutError
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, PreparedTxnState, ProducerIdAndEpoch, TopicPartition, TransactionState
from spark_2pc_sink.kafka.broker_connections import AnswerLater, LastFailure
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.kafka.error_policy import COORDINATOR_BUSY, COORDINATOR_MOVED, TWO_CAUSES, kafka_error
from spark_2pc_sink.wire import messages, responses
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.error_codes import describe_error
from spark_2pc_sink.wire.framed_request import pair_of
from spark_2pc_sink.wire.messages import ConfigResource, KafkaRequest
from spark_2pc_sink.wire.responses import KafkaPart, KafkaResponse

_log = sink_log(__name__)

_Reply = TypeVar("_Reply")


class _CoordinatorBusyError(NodeUnavailableError):
    """The right broker asked for a retry."""


class CoordinatorCalls:
    """Finds the coordinator, and finds it again if it has moved, is loading, or does not answer."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id

    def forget(self) -> None:
        self._cluster.forget_coordinator(self._transactional_id)

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
        api: Api,
        build: Callable[[int], KafkaRequest],
        deadline: Deadline,
        *,
        read: Callable[[KafkaResponse], Any] = lambda response: response,
        code_of: Callable[[Any], int] = lambda found: found.error_code,
        version_max: int | None = None,
    ) -> Any:
        """Send a request until the answer no longer asks for a retry.

        Raises:
            KafkaTimeoutError: no final answer within the deadline; the last request may have been carried out.
        """

        def attempt(node_id: int) -> Any:
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
        """Send a request at once; the answer is awaited later. See `Cluster.begin`.

        None if another request or a new connection is needed first, or the request could not be sent.
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


#: Kafka's default of transaction.max.timeout.ms, used if we may not read the broker's own.
DEFAULT_MAX_TIMEOUT_MS: Final = 900_000
_TIMEOUT_OPTION: Final = "transaction.timeout.ms"
_MAX_TIMEOUT_CONFIG: Final = "transaction.max.timeout.ms"
#: Answers to keepPreparedTxn from a coordinator without support: released Kafka has none, and with
#: apache/kafka#22704 it requires enable2Pc.
KEEP_REFUSED: Final = frozenset({Code.UNSUPPORTED_VERSION, Code.INVALID_REQUEST})


@dataclass(frozen=True)
class InitializedProducer:
    """The answer to InitProducerId.

    Args:
        ongoing: the kept prepared transaction, '' for none (KIP-939).
        two_phase_commit: True if transactions of this id never time out.
        own_timeout: True if set by the user's transaction.timeout.ms, False if it is the broker's
            maximum.
    """

    producer: ProducerIdAndEpoch
    ongoing: PreparedTxnState
    two_phase_commit: bool
    timeout_ms: int
    own_timeout: bool = False


class ProducerInit:
    """Requests the next pair from the coordinator. Construction does no I/O."""

    def __init__(
        self,
        cluster: Cluster,
        calls: CoordinatorCalls,
        transactional_id: str,
        *,
        timeout_ms: int | None,
        two_phase_commit: bool | None,
    ) -> None:
        self._cluster = cluster
        self._calls = calls
        self._transactional_id = transactional_id
        self._own_timeout_ms = timeout_ms
        self._wanted = two_phase_commit
        self._two_phase_refused = False
        self._keep_refused = False

    def forget(self) -> None:
        """Forget refusals: a cluster may change during a job."""
        self._two_phase_refused = self._keep_refused = False

    def offers_keep_prepared(self, deadline: Deadline) -> bool:
        """True if the coordinator offers InitProducerId v6 and has not refused keepPreparedTxn."""
        return not self._keep_refused and self._offers_two_phase(deadline)

    def ask(
        self, deadline: Deadline, stored_timeout_ms: Callable[[], int], *, keep_prepared: bool
    ) -> InitializedProducer:
        """Take the next pair."""
        offered = self._offers_two_phase(deadline)
        for wanted, what in ((keep_prepared, "keepPreparedTxn"), (self._wanted, "two-phase commit")):
            if wanted and not offered:
                reason = f"the broker offers no version with {what}"
                raise kafka_error("InitProducerId", Code.UNSUPPORTED_VERSION, reason)
        timeout_ms = self._timeout_ms(deadline)
        two_phase = offered and not self._two_phase_refused and self._wanted is not False
        reply = self._init(deadline, timeout_ms, two_phase=two_phase, keep_prepared=keep_prepared)
        refused = two_phase and _refuses_two_phase(reply.error_code, keep_prepared=keep_prepared)
        if refused and self._wanted is None:
            # 53: no TWO_PHASE_COMMIT permission, or transaction.two.phase.commit.enable is off. Nothing was changed.
            self._two_phase_refused, two_phase = True, False
            reply = self._init(deadline, timeout_ms, two_phase=False, keep_prepared=keep_prepared)
        producer = responses.initialized_pair(reply)
        if reply.error_code != Code.NONE or producer is None:
            raise self._refused(reply.error_code, timeout_ms, deadline, keep_prepared=keep_prepared)
        kept = pair_of(reply.ongoing_txn_producer_id, reply.ongoing_txn_producer_epoch)
        ongoing = PreparedTxnState() if kept is None else PreparedTxnState.of(kept)
        if two_phase:
            # The coordinator's stored value is the proof: force-terminate, for one, resets the timeout.
            timeout_ms = stored_timeout_ms()
        never, own = timeout_ms == TIMEOUT_NEVER_MS, timeout_ms == self._own_timeout_ms
        return InitializedProducer(producer, ongoing, never, timeout_ms, own_timeout=own)

    def _init(self, deadline: Deadline, timeout_ms: int, *, two_phase: bool, keep_prepared: bool) -> KafkaResponse:
        return self._calls.ask(
            Api.INIT_PRODUCER_ID,
            lambda version: messages.init_producer_id_request(
                self._transactional_id,
                version=version,
                timeout_ms=timeout_ms,
                enable_two_phase_commit=two_phase,
                keep_prepared=keep_prepared,
            ),
            deadline,
        )

    def _refused(self, code: int, timeout_ms: int, deadline: Deadline, *, keep_prepared: bool) -> Exception:
        if keep_prepared and code in KEEP_REFUSED:
            self._keep_refused = True
        if code == Code.INVALID_TRANSACTION_TIMEOUT:
            allowed = self._broker_max_timeout_ms(deadline)
            limit = "less" if allowed is None else f"{allowed} ms"
            return ConfigurationError(
                option=_TIMEOUT_OPTION,
                value=timeout_ms,
                rule=f"the broker's {_MAX_TIMEOUT_CONFIG} allows {limit}",
                remedy=f"lower {_TIMEOUT_OPTION} in kafka={{...}}, or raise {_MAX_TIMEOUT_CONFIG} of the brokers",
            )
        detail = f"transactional id {self._transactional_id!r}"
        if keep_prepared and code == Code.INVALID_REQUEST:
            detail = f"{detail}: this coordinator keeps a prepared transaction for clients with two-phase commit only"
        return kafka_error("InitProducerId", code, detail)

    def _offers_two_phase(self, deadline: Deadline) -> bool:
        """Whether the coordinator supports InitProducerId v6; asked there, because brokers may differ."""
        newest = self._calls.at_coordinator(
            "versions of the coordinator",
            lambda node_id: self._cluster.version(node_id, Api.INIT_PRODUCER_ID, deadline),
            deadline,
        )
        return newest >= messages.TWO_PHASE_COMMIT_VERSION

    def _timeout_ms(self, deadline: Deadline) -> int:
        """The option, else the broker's maximum: a crash may last as long as the transaction's timeout."""
        if self._own_timeout_ms is not None:
            return self._own_timeout_ms
        allowed = self._broker_max_timeout_ms(deadline)
        return DEFAULT_MAX_TIMEOUT_MS if allowed is None else allowed

    def _broker_max_timeout_ms(self, deadline: Deadline) -> int | None:
        """The coordinator's transaction.max.timeout.ms, None without permission to read it (DESCRIBE_CONFIGS)."""

        def ask(node_id: int) -> Mapping[str, str | None] | None:
            version = self._cluster.version(node_id, Api.DESCRIBE_CONFIGS, deadline)
            request = messages.describe_configs_request(
                ConfigResource.BROKER, str(node_id), [_MAX_TIMEOUT_CONFIG], version=version
            )
            return responses.config_values(self._cluster.request(node_id, request, deadline), str(node_id))

        found = self._calls.at_coordinator(Api.DESCRIBE_CONFIGS.name, ask, deadline)
        value = None if found is None else found.get(_MAX_TIMEOUT_CONFIG)
        return None if value is None else int(value)


def _refuses_two_phase(code: int, *, keep_prepared: bool) -> bool:
    """Whether a refusal is about enable2Pc. 35 is about keepPreparedTxn if that was requested too."""
    return code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED or (
        code == Code.UNSUPPORTED_VERSION and not keep_prepared
    )


#: Ids per request, to bound its size.
IDS_PER_REQUEST_MAX: Final = 500
#: States of an open transaction, as named by ListTransactions.
_OPEN_STATES: Final = (
    TransactionState.ONGOING.value,
    TransactionState.PREPARE_COMMIT.value,
    TransactionState.PREPARE_ABORT.value,
)
#: States of an aborted transaction.
_ABORTED: Final = (TransactionState.PREPARE_ABORT.value, TransactionState.COMPLETE_ABORT.value)


@dataclass(frozen=True)
class TransactionDescription:
    """The coordinator's description of a transactional id (KIP-664, DescribeTransactions).

    Args:
        state: Kafka's name of the state, one of `TransactionState` or a newer one; ``Unknown`` for an id
            unknown to, or forgotten by, the coordinator.
        timeout_ms: 2147483647 for transactions that never time out; 0 for an unknown id.
        partitions: the transaction's partitions without an end marker.
        start_time_ms: when the current or the last transaction began, since 1970 by the coordinator's clock; None if
            there was none.
    """

    state: str
    producer: ProducerIdAndEpoch | None
    timeout_ms: int
    partitions: tuple[TopicPartition, ...] = ()
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
        partitions=responses.transaction_partitions(found),
        start_time_ms=began_ms if began_ms >= 0 else None,
    )


def commit_error(
    code: int, producer: ProducerIdAndEpoch, described: TransactionDescription | None, *, open_ms: int
) -> KafkaError:
    """The error for a refused commit: a `FencedError` for another writer, a plain `KafkaError` for a time-out.

    If the coordinator does not tell them apart, the class is that of the code, and the message names both causes.

    Args:
        open_ms: upper bound of the transaction's age, in milliseconds.
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
    left = sorted(set(transactional_ids))
    reasons = LastFailure(deadline)
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
    """The ids with open transactions that we may describe (DESCRIBE), sorted by name."""
    return sorted({name for node_id in cluster.node_ids(deadline) for name in _open_at(cluster, node_id, deadline)})


def _open_at(cluster: Cluster, node_id: int, deadline: Deadline) -> list[str]:
    response = cluster.call(
        Api.LIST_TRANSACTIONS,
        lambda _: node_id,
        lambda version: messages.list_transactions_request(version=version, states=_OPEN_STATES),
        deadline,
    )
    if response.error_code != Code.NONE:
        raise kafka_error("ListTransactions", response.error_code)
    return [row.transactional_id for row in response.transaction_states]


def _ask_once(
    cluster: Cluster, transactional_ids: Sequence[str], deadline: Deadline, reasons: LastFailure
) -> dict[str, TransactionDescription | KafkaError]:
    """Make one attempt; returns the final answers, which need no retry."""
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
            answers = responses.transactions_of(cluster.request(node_id, request, deadline))
        except NodeUnavailableError as error:
            reasons.note(error)
            continue
        for name, answer in answers.items():
            if answer.error_code in COORDINATOR_BUSY:
                reasons.note(f"DescribeTransactions was answered {describe_error(answer.error_code)}")
            else:
                found[name] = _description_or_refusal(answer)
    return found


def _description_or_refusal(answer: KafkaPart) -> TransactionDescription | KafkaError:
    try:
        return description_of(answer)
    except KafkaError as refusal:
        return refusal


def _portions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), IDS_PER_REQUEST_MAX):
        yield names[first : first + IDS_PER_REQUEST_MAX]
