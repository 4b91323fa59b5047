"""InitProducerId for one transactional id: what is asked for, and what a coordinator may refuse of it.

Two things are optional: two-phase commit, and to keep a prepared transaction (KIP-939). A coordinator that offers
neither, or refuses one of them, is remembered until the cluster is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, PreparedTxnState, ProducerIdAndEpoch
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.coordinator_calls import CoordinatorCalls
from spark_2pc_sink.producer.error_policy import kafka_error
from spark_2pc_sink.wire import messages, responses
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.messages import ConfigResource
from spark_2pc_sink.wire.replies import DescribedConfig, InitProducerIdReply

#: Kafka's default of transaction.max.timeout.ms, used where the broker does not let us read its own.
DEFAULT_MAX_TIMEOUT_MS: Final = 900_000
_TIMEOUT_OPTION: Final = "transaction.timeout.ms"
_MAX_TIMEOUT_CONFIG: Final = "transaction.max.timeout.ms"
#: The answers to keepPreparedTxn of a coordinator that does not keep: no released Kafka does, and with
#: apache/kafka#22704 it takes enable2Pc.
KEEP_REFUSED: Final = frozenset({Code.UNSUPPORTED_VERSION, Code.INVALID_REQUEST})


@dataclass(frozen=True)
class InitializedProducer:
    """The answer to InitProducerId.

    Args:
        producer: the pair to use next.
        ongoing: the prepared transaction that was kept, '' for none (KIP-939).
        two_phase_commit: True when transactions of this id never time out.
        timeout_ms: how long a transaction may last before the broker aborts it.
        own_timeout: True where the user's transaction.timeout.ms says so, False where it is the most that the broker
            allows.
    """

    producer: ProducerIdAndEpoch
    ongoing: PreparedTxnState
    two_phase_commit: bool
    timeout_ms: int
    own_timeout: bool = False


class ProducerInit:
    """Asks the coordinator for the next pair. Making one does no I/O.

    Args:
        cluster: connections; not closed by this object.
        calls: to the coordinator of the transactional id.
        transactional_id: whose pair.
        timeout_ms: the user's transaction.timeout.ms; None for the most that the broker allows.
        two_phase_commit: None asks for it where the coordinator offers it, and goes on without where it is refused;
            True takes a refusal for an error, and False does not ask (KIP-939, "Client Configuration Changes").
    """

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
        """Forget what was refused: a cluster changes under a running job."""
        self._two_phase_refused = self._keep_refused = False

    def offers_keep_prepared(self, deadline: Deadline) -> bool:
        """True while the coordinator offers InitProducerId v6 and has not refused keepPreparedTxn."""
        return not self._keep_refused and self._offers_two_phase(deadline)

    def ask(
        self, deadline: Deadline, stored_timeout_ms: Callable[[], int], *, keep_prepared: bool
    ) -> InitializedProducer:
        """Take the next pair.

        Args:
            deadline: when to give up.
            stored_timeout_ms: asks the coordinator for the transaction timeout that it has stored; called where it
                did not refuse two-phase commit.
            keep_prepared: leave an ongoing transaction as it is. Otherwise it is aborted.

        Raises:
            KafkaError: refused, or what the user asks for is not offered. Nothing was changed.
            ConfigurationError: the broker does not allow the transaction timeout (code 50).
            AuthorizationError: no WRITE on the transactional id.
            KafkaTimeoutError: no usable answer. An epoch may have been used up.
        """
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
        if reply.error_code != Code.NONE or reply.producer is None:
            raise self._refused(reply.error_code, timeout_ms, deadline, keep_prepared=keep_prepared)
        ongoing = PreparedTxnState() if reply.ongoing is None else PreparedTxnState.of(reply.ongoing)
        if two_phase:
            # The proof is what the coordinator stored: force-terminate, for one, sets the timeout back.
            timeout_ms = stored_timeout_ms()
        never, own = timeout_ms == TIMEOUT_NEVER_MS, timeout_ms == self._own_timeout_ms
        return InitializedProducer(reply.producer, ongoing, never, timeout_ms, own_timeout=own)

    def _init(
        self, deadline: Deadline, timeout_ms: int, *, two_phase: bool, keep_prepared: bool
    ) -> InitProducerIdReply:
        return self._calls.ask(
            Api.INIT_PRODUCER_ID,
            lambda version: messages.init_producer_id_request(
                self._transactional_id,
                version=version,
                timeout_ms=timeout_ms,
                enable_two_phase_commit=two_phase,
                keep_prepared=keep_prepared,
            ),
            responses.read_init_producer_id,
            lambda found: found.error_code,
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
        """Whether the coordinator speaks InitProducerId v6; asked of it, because brokers may differ."""
        newest = self._calls.at_coordinator(
            "versions of the coordinator",
            lambda node_id: self._cluster.version(node_id, Api.INIT_PRODUCER_ID, deadline),
            deadline,
        )
        return newest >= messages.TWO_PHASE_COMMIT_VERSION

    def _timeout_ms(self, deadline: Deadline) -> int:
        """The option, else as much as the broker allows: a crash may last as long as the transaction may."""
        if self._own_timeout_ms is not None:
            return self._own_timeout_ms
        allowed = self._broker_max_timeout_ms(deadline)
        return DEFAULT_MAX_TIMEOUT_MS if allowed is None else allowed

    def _broker_max_timeout_ms(self, deadline: Deadline) -> int | None:
        """transaction.max.timeout.ms of the coordinator, None where we may not read it (no DESCRIBE_CONFIGS)."""

        def ask(node_id: int) -> DescribedConfig | None:
            version = self._cluster.version(node_id, Api.DESCRIBE_CONFIGS, deadline)
            request = messages.describe_configs_request(
                ConfigResource.BROKER, str(node_id), [_MAX_TIMEOUT_CONFIG], version=version
            )
            return responses.read_describe_configs(self._cluster.request(node_id, request, deadline)).get(str(node_id))

        found = self._calls.at_coordinator(Api.DESCRIBE_CONFIGS.name, ask, deadline)
        value = None if found is None or found.error_code != Code.NONE else found.values.get(_MAX_TIMEOUT_CONFIG)
        return None if value is None else int(value)


def _refuses_two_phase(code: int, *, keep_prepared: bool) -> bool:
    """Whether a refusal is about enable2Pc. 35 is about keepPreparedTxn where that was asked for too."""
    return code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED or (
        code == Code.UNSUPPORTED_VERSION and not keep_prepared
    )
