"""The records of ``__transaction_state``: TransactionLogKey and TransactionLogValue as bytes.

The layout follows the schema in Kafka 4.4.0 (``TransactionLogValue.json``), not KIP-939: NextProducerEpoch is tag 3
there, because tag 2 had become ClientTransactionVersion before. A tag at its default is not written. Partitions are
null for Empty and only for Empty, and are written in order of topic and partition, so that equal states have equal
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from spark_2pc_sink.errors import LocalProtocolError, RemoteProtocolError
from spark_2pc_sink.ids import NO_PRODUCER_ID, TopicPartition
from spark_2pc_sink.reference.coordinator.fields import Reader, encode_length, encode_string, encode_tags
from spark_2pc_sink.reference.coordinator.states import NO_EPOCH, TRANSIENT, TransactionMetadata, TransactionState

#: The only version of TransactionLogKey, "coordinator-key" 0.
KEY_VERSION = 0
#: TransactionLogValue with tagged fields; written from transaction.version 1 on (KIP-890, Transaction Feature Version).
FLEXIBLE_VERSION = 1

_TAG_PREVIOUS_PRODUCER_ID = 0
_TAG_NEXT_PRODUCER_ID = 1
_TAG_CLIENT_TRANSACTION_VERSION = 2
_TAG_NEXT_PRODUCER_EPOCH = 3


@dataclass(frozen=True, kw_only=True)
class TransactionLogValue:
    """The value of a record; the fields in the order of Kafka's schema, tags last.

    Args:
        partitions: None for Empty.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] | None
    last_update_ms: int
    start_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = 0
    next_producer_epoch: int = NO_EPOCH

    @classmethod
    def of(cls, metadata: TransactionMetadata, *, version: int) -> TransactionLogValue:
        """What a record of ``version`` keeps of a transactional id; version 0 has no room for the pairs in tags."""
        empty = metadata.state is TransactionState.EMPTY
        tagged = version >= FLEXIBLE_VERSION
        return cls(
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            timeout_ms=metadata.timeout_ms,
            state=metadata.state,
            partitions=None if empty else metadata.partitions,
            last_update_ms=metadata.last_update_ms,
            start_ms=metadata.start_ms,
            previous_producer_id=metadata.previous_producer_id if tagged else NO_PRODUCER_ID,
            next_producer_id=metadata.next_producer_id if tagged else NO_PRODUCER_ID,
            client_transaction_version=metadata.client_transaction_version,
            next_producer_epoch=metadata.next_producer_epoch,
        )

    def fits(self, version: int) -> bool:
        """False where ``version`` would silently lose what the transaction needs.

        That is a client on transaction.version 2 (Kafka refuses it with UNSUPPORTED_VERSION), or a kept transaction.
        """
        return version >= FLEXIBLE_VERSION or not self._tags()

    def encode(self, version: int) -> bytes:
        """The bytes of the value, with the version in front.

        Raises:
            LocalProtocolError: the value does not fit the version.
        """
        if not self.fits(version):
            raise LocalProtocolError(
                operation=f"TransactionLogValue v{version}", state=self.state.label, rule="tagged fields need version 1"
            )
        compact = version >= FLEXIBLE_VERSION
        return b"".join(
            (
                struct.pack(">hqhib", version, *self._head()),
                _encode_partitions(self.partitions, compact=compact),
                struct.pack(">qq", self.last_update_ms, self.start_ms),
                encode_tags(self._tags()) if compact else b"",
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> TransactionLogValue:
        """The value in ``data``, version in front; unknown tags of a later Kafka are skipped (KIP-915).

        Raises:
            RemoteProtocolError: unknown version or state, or bytes that do not fit the schema.
        """
        reader = Reader(data)
        version = reader.integer(2)
        if version not in (0, FLEXIBLE_VERSION):
            raise RemoteProtocolError(peer="the transaction state log", detail=f"TransactionLogValue v{version}")
        compact = version >= FLEXIBLE_VERSION
        producer_id, producer_epoch, timeout_ms = reader.integer(8), reader.integer(2), reader.integer(4)
        state = _stored_state(reader.integer(1))
        partitions = _decode_partitions(reader, compact=compact)
        last_update_ms, start_ms = reader.integer(8), reader.integer(8)
        tags = reader.tags() if compact else {}
        reader.finish()
        return cls(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timeout_ms=timeout_ms,
            state=state,
            partitions=partitions,
            last_update_ms=last_update_ms,
            start_ms=start_ms,
            previous_producer_id=_tag(tags, _TAG_PREVIOUS_PRODUCER_ID, NO_PRODUCER_ID),
            next_producer_id=_tag(tags, _TAG_NEXT_PRODUCER_ID, NO_PRODUCER_ID),
            client_transaction_version=_tag(tags, _TAG_CLIENT_TRANSACTION_VERSION, 0),
            next_producer_epoch=_tag(tags, _TAG_NEXT_PRODUCER_EPOCH, NO_EPOCH),
        )

    def _head(self) -> tuple[int, int, int, int]:
        return self.producer_id, self.producer_epoch, self.timeout_ms, self.state

    def _tags(self) -> list[tuple[int, bytes]]:
        candidates = (
            (_TAG_PREVIOUS_PRODUCER_ID, ">q", self.previous_producer_id, NO_PRODUCER_ID),
            (_TAG_NEXT_PRODUCER_ID, ">q", self.next_producer_id, NO_PRODUCER_ID),
            (_TAG_CLIENT_TRANSACTION_VERSION, ">h", self.client_transaction_version, 0),
            (_TAG_NEXT_PRODUCER_EPOCH, ">h", self.next_producer_epoch, NO_EPOCH),
        )
        return [(tag, struct.pack(form, value)) for tag, form, value, default in candidates if value != default]


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """One record for one partition of ``__transaction_state``.

    Args:
        partition: of ``__transaction_state``.
        value: None for a tombstone, which removes the id.
        version: of TransactionLogValue, from the transaction.version of the cluster.
    """

    partition: int
    transactional_id: str
    value: TransactionLogValue | None
    version: int = FLEXIBLE_VERSION

    @property
    def key_bytes(self) -> bytes:
        """TransactionLogKey v0."""
        return encode_key(self.transactional_id)

    @property
    def value_bytes(self) -> bytes | None:
        """TransactionLogValue, or None for a tombstone."""
        return None if self.value is None else self.value.encode(self.version)

    @classmethod
    def decode(cls, partition: int, key: bytes, value: bytes | None) -> LogRecord:
        """A record read back from the log.

        Raises:
            RemoteProtocolError: the bytes are not a key and value of the transaction log.
        """
        transactional_id = decode_key(key)
        if value is None:
            return cls(partition=partition, transactional_id=transactional_id, value=None)
        version = int.from_bytes(value[:2], "big", signed=True)
        decoded = TransactionLogValue.decode(value)
        return cls(partition=partition, transactional_id=transactional_id, value=decoded, version=version)


def encode_key(transactional_id: str) -> bytes:
    """TransactionLogKey v0 with its version in front."""
    return struct.pack(">h", KEY_VERSION) + encode_string(transactional_id, compact=False)


def key_version(data: bytes) -> int:
    """The version of a record's key. A record of any but KEY_VERSION is not for this coordinator, and skipped.

    Raises:
        RemoteProtocolError: the bytes are too few to have a version.
    """
    return Reader(data).integer(2)


def decode_key(data: bytes) -> str:
    """The transactional id in a TransactionLogKey.

    Raises:
        RemoteProtocolError: another key version, or bytes that do not fit.
    """
    reader = Reader(data)
    version = reader.integer(2)
    if version != KEY_VERSION:
        raise RemoteProtocolError(peer="the transaction state log", detail=f"TransactionLogKey v{version}")
    transactional_id = reader.string(compact=False)
    reader.finish()
    return transactional_id


def _encode_partitions(partitions: Iterable[TopicPartition] | None, *, compact: bool) -> bytes:
    if partitions is None:
        return encode_length(None, compact=compact)
    topics = [(topic, list(group)) for topic, group in groupby(sorted(partitions), key=lambda each: each.topic)]
    parts = [encode_length(len(topics), compact=compact)]
    for topic, members in topics:
        parts += [encode_string(topic, compact=compact), encode_length(len(members), compact=compact)]
        parts += [struct.pack(">i", member.partition) for member in members]
        parts.append(encode_tags(()) if compact else b"")
    return b"".join(parts)


def _decode_partitions(reader: Reader, *, compact: bool) -> frozenset[TopicPartition] | None:
    topic_count = reader.length(compact=compact)
    if topic_count is None:
        return None
    partitions: set[TopicPartition] = set()
    for _ in range(topic_count):
        topic = reader.string(compact=compact)
        members = range(reader.length(compact=compact) or 0)
        partitions.update(TopicPartition(topic, reader.integer(4)) for _ in members)
        if compact:
            reader.tags()
    return frozenset(partitions)


def _stored_state(number: int) -> TransactionState:
    if number not in TransactionState.__members__.values() or TransactionState(number) in TRANSIENT:
        raise RemoteProtocolError(peer="the transaction state log", detail=f"state {number} is never stored")
    return TransactionState(number)


def _tag(tags: dict[int, bytes], tag: int, default: int) -> int:
    return int.from_bytes(tags[tag], "big", signed=True) if tag in tags else default
