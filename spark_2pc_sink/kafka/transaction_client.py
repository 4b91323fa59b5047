"""The transaction coordinator of one transactional id: InitProducerId, EndTxn, and DescribeTransactions.

The client sends, retries what cannot have taken effect or may safely be sent again, and reports. It never guesses: a
final answer to EndTxn is returned as it is, because only the caller, which knows the other side of a
dual write, can interpret it (apache/kafka KAFKA-9346 and related; Java's javadoc of ``commitTransaction``: after a
time-out the commit may be repeated, aborting instead is not possible).

On transaction.version 2 (KIP-890) every EndTxn bumps the epoch, so that a pair identifies one transaction. Below, it
does not: the caller takes a new pair with `TransactionClient.init_producer_id` before every transaction, adds
partitions with `TransactionClient.add_partitions`, and aborts with InitProducerId too, whose markers have the next
epoch and so fence stragglers, unlike those of EndTxn v4.

InitProducerId has two optional features: two-phase commit, and keeping a prepared transaction (KIP-939). If a
coordinator does not offer one, or refuses it, this is remembered until the cluster's features are refreshed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaTimeoutError, OutcomeUnknownError
from spark_2pc_sink.ids import (
    EPOCH_BUMP_VERSION,
    TIMEOUT_NEVER_MS,
    PreparedTxnState,
    ProducerIdAndEpoch,
    TopicPartition,
    check_transactional_id,
)
from spark_2pc_sink.kafka.cluster import UNKNOWN_TOPIC_REFRESHES_MAX, BrokerFeatures, Cluster, unknown_topic
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.kafka.coordinator_calls import (
    KEEP_REFUSED,
    CoordinatorCalls,
    InitializedProducer,
    TransactionDescription,
)
from spark_2pc_sink.kafka.error_policy import BUSY_BACKOFF_MS, COMMIT_REFUSED, COORDINATOR_BUSY, TWO_CAUSES, kafka_error
from spark_2pc_sink.kafka.log_reader import LogReader
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.api_versions import Api, choose_version
from spark_2pc_sink.wire.framed_request import EndTxnResponse, RequestTemplate, end_txn_request, pair_of
from spark_2pc_sink.wire.messages import ConfigResource, KafkaResponse, describe_error

_log = sink_log(__name__)

#: Kafka's default of transaction.max.timeout.ms, used if we may not read the broker's own, and by its own tool.
DEFAULT_MAX_TIMEOUT_MS: Final = 900_000
_TIMEOUT_OPTION: Final = "transaction.timeout.ms"
_MAX_TIMEOUT_CONFIG: Final = "transaction.max.timeout.ms"
#: EndTxn bumps the epoch from this version on (KIP-890).
_BUMPING_END_VERSION: Final = 5


@dataclass(frozen=True)
class EndTxnAnswer:
    """The answer to EndTxn: a code, 0 if done and durable; and the next transaction's pair (transaction.version 2)."""

    code: int
    name: str
    producer: ProducerIdAndEpoch | None

    def __str__(self) -> str:
        """The name, followed by the possible causes if it refuses a commit."""
        return f"{self.name} ({TWO_CAUSES})" if self.code in COMMIT_REFUSED else self.name


#: Waits for the answer to a sent EndTxn; None if it must be sent again.
EndTxnLater: TypeAlias = "Callable[[], EndTxnAnswer | None]"


class TransactionClient(LogReader):
    """Client for the coordinator of one transactional id, and for the logs. Construction does no I/O.

    Args:
        two_phase_commit: None requests it if the coordinator offers it, and continues without it if refused;
            True treats a refusal as an error, and False does not request it (KIP-939, "Client Configuration Changes").
        features_age_ms_max: largest age of a broker's feature report when a transaction begins or ends.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        options: KafkaOptions,
        *,
        two_phase_commit: bool | None = None,
        features_age_ms_max: int = 0,
    ) -> None:
        super().__init__(cluster)
        self.transactional_id: str = check_transactional_id(transactional_id)
        self._options = options
        self._features_age_ms_max = features_age_ms_max
        self._calls = CoordinatorCalls(cluster, transactional_id)
        self._features: BrokerFeatures | None = None
        self._two_phase_wanted = two_phase_commit
        self._two_phase_refused = False
        self._keep_refused = False

    @property
    def cluster_id(self) -> str:
        return self._known_features().cluster_id

    @property
    def transaction_version(self) -> int:
        """The finalized transaction.version, as of the first use, or the last `refresh` or `refresh_features`."""
        return self._known_features().transaction_version

    @property
    def offers_keep_prepared(self) -> bool:
        """True if the coordinator offers InitProducerId v6 and has not refused keepPreparedTxn."""
        return not self._keep_refused and self._offers_two_phase(self._deadline())

    def refresh(self) -> None:
        """Request versions and features again, and forget refusals: a cluster may change during a job."""
        self._cluster.forget_features()
        self._calls.forget()
        self._two_phase_refused = self._keep_refused = False
        self._features = self._cluster.features()

    def prefetch_features(self) -> None:
        """Send the request for `refresh_features` and `end` ahead; they use the answer within a second."""
        self._cluster.prefetch_features()

    def refresh_features(self) -> None:
        """Request the features again, as required before every transaction (KIP-890, "Client Changes")."""
        self._features = self._cluster.features(age_ms_max=self._features_age_ms_max)

    def ends_with_bump(self) -> bool:
        """Whether EndTxn bumps the epoch: the transaction began at transaction.version 2, and the level is still 2.

        Kafka 4.4.0 answers EndTxn v5 at level 0 with UNSUPPORTED_VERSION, and the id then stays blocked.
        """
        began = self.transaction_version >= EPOCH_BUMP_VERSION
        return began and self._bumps(self._cluster.features(age_ms_max=self._features_age_ms_max))

    def init_producer_id(self, *, keep_prepared: bool = False) -> InitializedProducer:
        """Take the next pair, which fences every older one (KIP-98, KIP-939).

        An explicit transaction timeout applies only without two-phase commit. No pair is sent: the call always
        takes over the id.

        Args:
            keep_prepared: keep an ongoing transaction. Otherwise it is aborted.

        Raises:
            KafkaError: ``keep_prepared`` is not supported (code 35), or any other refusal. Nothing was changed.
            ConfigurationError: the broker does not allow the transaction timeout (code 50).
            AuthorizationError: no WRITE on the transactional id.
            KafkaTimeoutError: no usable answer within ``max_block_ms``. An epoch may have been used up.
        """
        deadline = self._deadline()
        offered = self._offers_two_phase(deadline)
        for wanted, what in ((keep_prepared, "keepPreparedTxn"), (self._two_phase_wanted, "two-phase commit")):
            if wanted and not offered:
                reason = f"the broker offers no version with {what}"
                raise kafka_error("InitProducerId", Code.UNSUPPORTED_VERSION, reason)
        # By default the broker's maximum: a crash may last as long as the transaction's timeout.
        timeout_ms = self._options.transaction_timeout_ms
        if timeout_ms is None:
            allowed = self._broker_max_timeout_ms(deadline)
            timeout_ms = DEFAULT_MAX_TIMEOUT_MS if allowed is None else allowed
        two_phase = offered and not self._two_phase_refused and self._two_phase_wanted is not False
        reply = self._send_init(deadline, timeout_ms, two_phase=two_phase, keep_prepared=keep_prepared)
        # 53: no TWO_PHASE_COMMIT permission, or transaction.two.phase.commit.enable is off. Nothing was changed.
        # 35 is about keepPreparedTxn if that was requested too.
        refused = reply.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED or (
            reply.error_code == Code.UNSUPPORTED_VERSION and not keep_prepared
        )
        if two_phase and refused and self._two_phase_wanted is None:
            self._two_phase_refused, two_phase = True, False
            reply = self._send_init(deadline, timeout_ms, two_phase=False, keep_prepared=keep_prepared)
        producer = messages.initialized_pair(reply)
        if reply.error_code != Code.NONE or producer is None:
            raise self._init_error(reply.error_code, timeout_ms, deadline, keep_prepared=keep_prepared)
        kept = pair_of(reply.ongoing_txn_producer_id, reply.ongoing_txn_producer_epoch)
        ongoing = PreparedTxnState() if kept is None else PreparedTxnState.of(kept)
        if two_phase:
            # The coordinator's stored value is the proof: force-terminate, for one, resets the timeout.
            timeout_ms = self.describe().timeout_ms
        never, own = timeout_ms == TIMEOUT_NEVER_MS, timeout_ms == self._options.transaction_timeout_ms
        return InitializedProducer(producer, ongoing, never, timeout_ms, own_timeout=own)

    def usable_producer(self) -> InitializedProducer:
        """Take a pair that can begin a transaction, aborting an ongoing one."""
        # Not at epoch 32766 or more: ending would rotate the producer id, and the pair stored in a database would no
        # longer match the coordinator's (KIP-890, "Epoch overflow").
        # A pair at epoch 32766 is replaced by (new id, 0) at the next InitProducerId, so two calls always suffice.
        initialized = self.init_producer_id()
        if initialized.producer.exhausted:
            initialized = self.init_producer_id()
        if initialized.producer.exhausted:
            detail = f"answered {initialized.producer}, whose epochs are exhausted"
            raise kafka_error("InitProducerId", Code.UNKNOWN_SERVER_ERROR, detail)
        return initialized

    def describe(self) -> TransactionDescription:
        """Describe the transaction; changes nothing. "No such transactional id" is a state, not an error."""
        return self._calls.describe(self._deadline())

    def add_partitions(self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction, all or none; for transaction.version 0 and 1 (KIP-98)."""
        wanted = tuple(sorted(set(partitions)))
        if not wanted:
            return
        deadline = self._deadline()
        partition, code = wanted[0], int(Code.UNKNOWN_TOPIC_OR_PARTITION)
        for attempt in range(UNKNOWN_TOPIC_REFRESHES_MAX):
            if attempt:
                deadline.pause()
            partition, code = self._calls.ask(
                messages.add_partitions_request(self.transactional_id, producer, wanted),
                deadline,
                # The one that explains a refusal: not OPERATION_NOT_ATTEMPTED, a mere consequence.
                read=lambda response: min(
                    messages.added_partitions(response).items(),
                    key=lambda item: (item[1] == Code.NONE, item[1] == Code.OPERATION_NOT_ATTEMPTED, item),
                ),
                code_of=lambda found: found[1],
            )
            if code != Code.UNKNOWN_TOPIC_OR_PARTITION:
                break
        if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            raise unknown_topic(
                partition.topic, f"partition {partition.partition} does not exist; create the topic if it was deleted"
            )
        if code != Code.NONE:
            raise kafka_error("AddPartitionsToTxn", code, f"partition {partition}, producer {producer}")

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        """Send the same EndTxn until it is answered, and return the answer without interpreting it.

        "The coordinator moved", "markers are still being written", a lost connection and a time-out are not answers.
        Everything else is, including INVALID_TXN_STATE, which may mean that it was done long ago, or that the opposite
        was.

        Raises:
            OutcomeUnknownError: no answer within ``max_block_ms``. Only the coordinator can tell what happened.
        """
        deadline = self._deadline()
        kind = "commit" if commit else "abort"
        try:
            request = self._end_request(producer, commit=commit, bumps=self.ends_with_bump())
            reply = self._calls.ask(request, deadline)
        except KafkaTimeoutError as error:
            operation = f"EndTxn({kind}) of {producer} of {self.transactional_id!r}"
            raise OutcomeUnknownError.of(error, operation) from error
        return _answer_of(reply)

    def begin_end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnLater | None:
        """Send EndTxn once, immediately; returns what waits for the answer, and must be called before other requests.

        That returns None if `end` must continue. None if another request is needed first, or it could not be sent.
        """
        features = self._cluster.fresh_features(self._features_age_ms_max)
        if features is None:
            return None
        request = self._end_request(producer, commit=commit, bumps=self._bumps(features))
        asked = self._calls.begin(request, self._deadline())
        if asked is None:
            return None

        def answer() -> EndTxnAnswer | None:
            try:
                reply = asked()
            except NodeUnavailableError as error:
                _log.info("EndTxn of %s: %s", producer, error)
                return None
            return None if reply.error_code in COORDINATOR_BUSY else _answer_of(reply)

        return answer

    def _deadline(self) -> Deadline:
        """``max_block_ms``, with short first pauses: usually markers are being written, which is quick."""
        return self._cluster.deadline(backoff_ms=min(BUSY_BACKOFF_MS, self._options.retry_backoff_ms))

    def _known_features(self) -> BrokerFeatures:
        if self._features is None:
            self._features = self._cluster.features()
        return self._features

    def _end_request(self, producer: ProducerIdAndEpoch, *, commit: bool, bumps: bool) -> RequestTemplate:
        request = end_txn_request(self.transactional_id, producer, commit=commit)
        if bumps:  # ended without the bump, the pair would no longer identify one transaction
            return request._replace(version_min=_BUMPING_END_VERSION)
        return request._replace(version_max=_BUMPING_END_VERSION - 1)

    def _bumps(self, features: BrokerFeatures) -> bool:
        return min(self.transaction_version, features.transaction_version) >= EPOCH_BUMP_VERSION

    def _send_init(self, deadline: Deadline, timeout_ms: int, *, two_phase: bool, keep_prepared: bool) -> KafkaResponse:
        request = messages.init_producer_id_request(
            self.transactional_id, timeout_ms=timeout_ms, enable_two_phase_commit=two_phase, keep_prepared=keep_prepared
        )
        return self._calls.ask(request, deadline)

    def _init_error(self, code: int, timeout_ms: int, deadline: Deadline, *, keep_prepared: bool) -> Exception:
        if keep_prepared and code in KEEP_REFUSED:
            self._keep_refused = True
        if code == Code.INVALID_TRANSACTION_TIMEOUT:
            allowed = self._broker_max_timeout_ms(deadline)
            limit = "less" if allowed is None else f"{allowed} ms"
            rule = f"the broker's {_MAX_TIMEOUT_CONFIG} allows {limit}"
            remedy = f"lower {_TIMEOUT_OPTION} in kafka={{...}}, or raise {_MAX_TIMEOUT_CONFIG} of the brokers"
            return refused(_TIMEOUT_OPTION, timeout_ms, rule, remedy)
        detail = f"transactional id {self.transactional_id!r}"
        if keep_prepared and code == Code.INVALID_REQUEST:
            detail = f"{detail}: this coordinator keeps a prepared transaction for clients with two-phase commit only"
        return kafka_error("InitProducerId", code, detail)

    def _offers_two_phase(self, deadline: Deadline) -> bool:
        """Whether the coordinator supports InitProducerId v6; asked there, because brokers may differ."""
        newest = self._calls.at_coordinator(
            "versions of the coordinator",
            lambda node_id: choose_version(self._cluster.api_versions(node_id, deadline), Api.INIT_PRODUCER_ID),
            deadline,
        )
        return newest >= messages.TWO_PHASE_COMMIT_VERSION

    def _broker_max_timeout_ms(self, deadline: Deadline) -> int | None:
        """The coordinator's transaction.max.timeout.ms, None without permission to read it (DESCRIBE_CONFIGS)."""

        def ask(node_id: int) -> Mapping[str, str | None] | None:
            request = messages.describe_configs_request(ConfigResource.BROKER, str(node_id), [_MAX_TIMEOUT_CONFIG])
            return messages.config_values(self._cluster.request(node_id, request, deadline), str(node_id))

        found = self._calls.at_coordinator(Api.DESCRIBE_CONFIGS.name, ask, deadline)
        value = None if found is None else found.get(_MAX_TIMEOUT_CONFIG)
        return None if value is None else int(value)


def _answer_of(reply: EndTxnResponse) -> EndTxnAnswer:
    producer = pair_of(reply.producer_id, reply.producer_epoch)
    return EndTxnAnswer(reply.error_code, describe_error(reply.error_code).name, producer)
