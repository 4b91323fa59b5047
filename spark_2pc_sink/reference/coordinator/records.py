"""The records of ``__transaction_state``: TransactionLogKey and TransactionLogValue as bytes.

The layout follows the schema in Kafka 4.4.0 (``TransactionLogValue.json``), not KIP-939: NextProducerEpoch is tag 3
there, because tag 2 was already ClientTransactionVersion. A tag at its default is not written. Partitions are
null for Empty and only for Empty, and are written in order of topic and partition, so that equal states have equal
bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from spark_2pc_sink.errors import LocalProtocolError, RemoteProtocolError
from spark_2pc_sink.ids import NO_PRODUCER_ID, TopicPartition
from spark_2pc_sink.reference import internal_topics as schemas
from spark_2pc_sink.reference.coordinator.states import (
    COMPLETION,
    NO_EPOCH,
    SAME_TIMEOUT_MS,
    TRANSIENT,
    StateId,
    TransactionMetadata,
)

#: The only version of TransactionLogKey, "coordinator-key" 0.
KEY_VERSION = 0
#: TransactionLogValue with tagged fields; written from transaction.version 1 on (KIP-890, Transaction Feature Version).
FLEXIBLE_VERSION = 1

_PEER: Final = "the transaction state log"
#: Fields of `TransactionLogValue` and their names in Kafka's schema; the partitions are encoded separately.
_NAMES: Final = {
    "producer_id": "producer_id",
    "producer_epoch": "producer_epoch",
    "timeout_ms": "transaction_timeout_ms",
    "state": "transaction_status",
    "last_update_ms": "transaction_last_update_timestamp_ms",
    "start_ms": "transaction_start_timestamp_ms",
    "previous_producer_id": "previous_producer_id",
    "next_producer_id": "next_producer_id",
    "client_transaction_version": "client_transaction_version",
    "next_producer_epoch": "next_producer_epoch",
    "timeout_after_keep_ms": "timeout_after_keep_ms",
}


@dataclass(frozen=True, kw_only=True)
class TransactionLogValue:
    """The value of a record, in the order of Kafka's schema, tags last; ``partitions`` is None for Empty."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: StateId
    partitions: frozenset[TopicPartition] | None
    last_update_ms: int
    start_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = 0
    next_producer_epoch: int = NO_EPOCH
    timeout_after_keep_ms: int = SAME_TIMEOUT_MS

    @classmethod
    def of(cls, metadata: TransactionMetadata, *, version: int) -> TransactionLogValue:
        """A transactional id's value as stored by a record of ``version``; version 0 lacks the tagged pairs."""
        empty = metadata.state is StateId.EMPTY
        tagged = version >= FLEXIBLE_VERSION
        given = {name: getattr(metadata, name) for name in _NAMES}
        if not tagged:
            given |= {"previous_producer_id": NO_PRODUCER_ID, "next_producer_id": NO_PRODUCER_ID}
        return cls(**given, partitions=None if empty else metadata.partitions)

    def restored(self, transactional_id: str, **memory: Any) -> TransactionMetadata:
        """The metadata of an id read from the log; ``memory``: the fields that records do not store."""
        given = {name: getattr(self, name) for name in _NAMES} | memory
        return TransactionMetadata(
            transactional_id=transactional_id,
            partitions=self.partitions or frozenset(),
            pending=COMPLETION.get(self.state),
            **given,
        )

    def fits(self, version: int) -> bool:
        """False if ``version`` would silently lose data that the transaction needs.

        This is so for a client on transaction.version 2 (Kafka answers UNSUPPORTED_VERSION) or a kept transaction.
        """
        tagged = (
            self.previous_producer_id,
            self.next_producer_id,
            self.client_transaction_version,
            self.next_producer_epoch,
            self.timeout_after_keep_ms,
        )
        return version >= FLEXIBLE_VERSION or tagged == (NO_PRODUCER_ID, NO_PRODUCER_ID, 0, NO_EPOCH, SAME_TIMEOUT_MS)

    def encode(self, version: int) -> bytes:
        if not self.fits(version):
            raise LocalProtocolError(
                operation=f"TransactionLogValue v{version}", state=self.state.label, rule="tagged fields need version 1"
            )
        partitions = None if self.partitions is None else _by_topic(self.partitions)
        given = {theirs: getattr(self, ours) for ours, theirs in _NAMES.items()}
        return schemas.encode_value(schemas.TransactionLogValue(transaction_partitions=partitions, **given), version)

    @classmethod
    def decode(cls, data: bytes) -> TransactionLogValue:
        """Decode a version-prefixed value; unknown tags from a later Kafka are skipped (KIP-915)."""
        found = schemas.decode_value(schemas.TransactionLogValue, data, peer=_PEER)
        state, topics, partitions = found.transaction_status, found.transaction_partitions, None
        if state not in StateId.__members__.values() or StateId(state) in TRANSIENT:
            raise RemoteProtocolError(peer=_PEER, detail=f"state {state} is never stored")
        if topics is not None:
            partitions = frozenset(TopicPartition(each.topic, index) for each in topics for index in each.partition_ids)
        given = {ours: getattr(found, theirs) for ours, theirs in _NAMES.items()}
        return cls(**{**given, "state": StateId(state)}, partitions=partitions)


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """One record for one partition of ``__transaction_state``; without a value a tombstone, which removes the id."""

    partition: int
    transactional_id: str
    value: TransactionLogValue | None
    version: int = FLEXIBLE_VERSION

    @property
    def key_bytes(self) -> bytes:
        return schemas.encode_key(schemas.TransactionLogKey(transactional_id=self.transactional_id))

    @property
    def value_bytes(self) -> bytes | None:
        return None if self.value is None else self.value.encode(self.version)

    @classmethod
    def decode(cls, partition: int, key: bytes, value: bytes | None) -> LogRecord:
        """Decode a record whose key has KEY_VERSION."""
        named = schemas.decode(schemas.TransactionLogKey, key, version=KEY_VERSION, peer=_PEER)
        decoded = None if value is None else TransactionLogValue.decode(value)
        version = FLEXIBLE_VERSION if value is None else schemas.prefix_of(value, peer=_PEER)
        return cls(partition=partition, transactional_id=named.transactional_id, value=decoded, version=version)


def key_version(data: bytes) -> int:
    """The version of a record's key. Records with any but KEY_VERSION are skipped."""
    return schemas.prefix_of(data, peer=_PEER)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[Any]:
    return [
        schemas.TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=[each.partition for each in members])
        for topic, members in groupby(sorted(partitions), key=lambda each: each.topic)
    ]
