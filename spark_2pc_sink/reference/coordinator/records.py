"""The records of ``__transaction_state``: TransactionLogKey and TransactionLogValue as bytes.

The layout follows the schema in Kafka 4.4.0 (``TransactionLogValue.json``), not KIP-939: NextProducerEpoch is tag 3
there, because tag 2 was already ClientTransactionVersion. A tag at its default is not written. Partitions are
null for Empty and only for Empty, and are written in order of topic and partition, so that equal states have equal
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Final

from spark_2pc_sink.errors import LocalProtocolError, RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
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
#: Fields of an id and their names in Kafka's schema, in its order, tags last; the partitions are encoded separately.
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


def fits(metadata: TransactionMetadata, version: int) -> bool:
    """False if a value of ``version`` would silently lose data that the transaction needs.

    This is so for a client on transaction.version 2 (Kafka answers UNSUPPORTED_VERSION) or a kept transaction.
    """
    tagged = metadata.client_transaction_version, metadata.next_producer_epoch, metadata.timeout_after_keep_ms
    return version >= FLEXIBLE_VERSION or tagged == (0, NO_EPOCH, SAME_TIMEOUT_MS)


def encode_value(metadata: TransactionMetadata, version: int) -> bytes:
    if not fits(metadata, version):
        raise LocalProtocolError(
            operation=f"TransactionLogValue v{version}", state=metadata.state.label, rule="tagged fields need version 1"
        )
    by_topic = groupby(sorted(metadata.partitions), key=lambda each: each.topic)
    kind = schemas.TransactionLogValue.PartitionsSchema
    partitions = [kind(topic=topic, partition_ids=[each.partition for each in members]) for topic, members in by_topic]
    value = schemas.TransactionLogValue(
        transaction_partitions=None if metadata.state is StateId.EMPTY else partitions,
        **{theirs: getattr(metadata, ours) for ours, theirs in _NAMES.items()},
    )
    return schemas.encode_value(value, version)


def decode_value(transactional_id: str, data: bytes) -> TransactionMetadata:
    """Decode a version-prefixed value; unknown tags from a later Kafka are skipped (KIP-915)."""
    found = schemas.decode_value(schemas.TransactionLogValue, data, peer=_PEER)
    if found.transaction_status not in StateId.__members__.values() or StateId(found.transaction_status) in TRANSIENT:
        raise RemoteProtocolError(peer=_PEER, detail=f"state {found.transaction_status} is never stored")
    given = {ours: getattr(found, theirs) for ours, theirs in _NAMES.items()}
    state = StateId(found.transaction_status)
    topics = found.transaction_partitions or ()
    partitions = frozenset(TopicPartition(each.topic, index) for each in topics for index in each.partition_ids)
    fields = {**given, "state": state, "partitions": partitions, "pending": COMPLETION.get(state)}
    return TransactionMetadata(transactional_id=transactional_id, **fields)


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """One record for one partition of ``__transaction_state``; without a value a tombstone, which removes the id.

    The bytes lack what exists in memory only, and in version 0 the tagged fields.
    """

    partition: int
    transactional_id: str
    value: TransactionMetadata | None
    version: int = FLEXIBLE_VERSION

    @property
    def key_bytes(self) -> bytes:
        return schemas.encode_key(schemas.TransactionLogKey(transactional_id=self.transactional_id))

    @property
    def value_bytes(self) -> bytes | None:
        return None if self.value is None else encode_value(self.value, self.version)

    @classmethod
    def decode(cls, partition: int, key: bytes, value: bytes | None) -> LogRecord:
        """Decode a record whose key has KEY_VERSION."""
        name = schemas.decode(schemas.TransactionLogKey, key, version=KEY_VERSION, peer=_PEER).transactional_id
        if value is None:
            return cls(partition=partition, transactional_id=name, value=None)
        version = schemas.prefix_of(value, peer=_PEER)
        return cls(partition=partition, transactional_id=name, value=decode_value(name, value), version=version)


def key_version(data: bytes) -> int:
    """The version of a record's key. Records with any but KEY_VERSION are skipped."""
    return schemas.prefix_of(data, peer=_PEER)
