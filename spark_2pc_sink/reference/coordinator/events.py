"""Events of the coordinator: client requests, partition leaders' answers, and timeouts.

Every event is a frozen value. The request events contain the fields of the Kafka message, its version if an answer
depends on it, and `Access`, the requesting principal's ACLs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Protocol

from spark_2pc_sink.ids import NO_PRODUCER_ID, TopicPartition
from spark_2pc_sink.reference.coordinator.states import NO_EPOCH, Pair


class AclOperation(Enum):
    """ACL operations required by some API; the values are Kafka's ``AclOperation`` codes."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    TWO_PHASE_COMMIT = 15


class Resource(IntEnum):
    """Resource types of ACLs; the values are Kafka's ``ResourceType`` codes. No API here needs the last two."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


#: The only resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


class Access(Protocol):
    """The ACLs at the time of the request; must answer without waiting."""

    def allows(self, operation: AclOperation, resource: Resource, name: str) -> bool: ...

    def allows_any(self, operation: AclOperation, resource: Resource) -> bool:
        """True if the principal may do it to at least one resource of the kind."""


class FullAccess:
    def allows(self, _operation: AclOperation, _resource: Resource, _name: str) -> bool:
        return True

    def allows_any(self, _operation: AclOperation, _resource: Resource) -> bool:
        return True


#: Without an authorizer.
FULL_ACCESS = FullAccess()


@dataclass(frozen=True, kw_only=True)
class TransactionEvent:
    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def pair(self) -> Pair:
        return Pair(self.producer_id, self.producer_epoch)


@dataclass(frozen=True, kw_only=True)
class InitProducerId:
    """InitProducerId v0 to v6 (KIP-939: enable2Pc, keepPreparedTxn). forceTerminateTransaction sends it without flags.

    ``timeout_ms`` is ignored with ``enable_2pc``; the pair is the one held before, or -1 and -1.
    """

    transactional_id: str | None
    timeout_ms: int = 60_000
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    enable_2pc: bool = False
    keep_prepared: bool = False
    version: int = 6
    access: Access = FULL_ACCESS

    @property
    def held(self) -> Pair | None:
        return Pair(self.producer_id, self.producer_epoch) if self.producer_id != NO_PRODUCER_ID else None


@dataclass(frozen=True, kw_only=True)
class AddPartitionsToTxn(TransactionEvent):
    """One transaction of AddPartitionsToTxn v0 to v5: from a client (v0 to v3), or from a broker (v4, v5).

    The implicit add of a produce request v12 and of TxnOffsetCommit v5 is this event with ``version=5``; their
    verification is ``verify_only``. Those of ``partitions`` that do not exist are ``unknown``.
    """

    partitions: tuple[TopicPartition, ...]
    version: int = 5
    verify_only: bool = False
    unknown: frozenset[TopicPartition] = frozenset()
    access: Access = FULL_ACCESS


@dataclass(frozen=True, kw_only=True)
class AddOffsetsToTxn(TransactionEvent):
    """AddOffsetsToTxn v0 to v4: adds the group's partition of ``__consumer_offsets``."""

    group_id: str
    version: int = 4
    access: Access = FULL_ACCESS


@dataclass(frozen=True, kw_only=True)
class EndTxn(TransactionEvent):
    """EndTxn v0 to v5; from v5 on the transaction ends with an epoch bump (KIP-890)."""

    commit: bool
    version: int = 5
    access: Access = FULL_ACCESS


@dataclass(frozen=True, kw_only=True)
class MarkersAnswered(TransactionEvent):
    """Partition leaders have answered WriteTxnMarkers.

    The identifying fields are those of the `SendMarkers` effect; an answer to an earlier one is ignored. ``results``
    has an error code per partition, 0 if it needs no marker any more: it is written, or the partition was deleted.
    """

    results: Mapping[TopicPartition, int]


@dataclass(frozen=True, kw_only=True)
class AbortTimedOut:
    transactional_id: str
    producer_id: int


@dataclass(frozen=True, kw_only=True)
class ExpireTransactionalId:
    transactional_id: str


Event = InitProducerId | TransactionEvent | AbortTimedOut | ExpireTransactionalId
