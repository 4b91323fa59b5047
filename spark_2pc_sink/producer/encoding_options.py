"""The options and limits by which records are encoded. Small: tasks get them with their plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import RecordRefusedError, RecordTooLargeError

if TYPE_CHECKING:
    from spark_2pc_sink.ids import TopicPartition
    from spark_2pc_sink.options import KafkaOptions

_LACKS_KEY: Final = "the topic is compacted (cleanup.policy), and takes no record without a key"
#: Characters of a key or a value in an error.
_CHARACTERS_MAX: Final = 80


@dataclass(frozen=True)
class TopicLimits:
    """The limits of a topic; None where the broker does not tell us (no DESCRIBE_CONFIGS permission).

    Args:
        message_bytes_max: the largest record batch, compressed (max.message.bytes, or segment.bytes where it is less).
        create_time: True where records keep the timestamp that the producer gave them.
        bytes_limit: what says ``message_bytes_max``.
        needs_keys: True where the topic is compacted, and takes no record without a key.
    """

    message_bytes_max: int | None
    create_time: bool | None
    bytes_limit: str = ""
    needs_keys: bool = False


@dataclass(frozen=True)
class EncodingOptions:
    """The Kafka client properties by which records are encoded; no address and no secret is among them.

    Attributes:
        batch_bytes_max: uncompressed bytes of records in one batch (batch.size).
        max_request_bytes: the largest record that travels alone, uncompressed (max.request.size).
        compression: none, gzip, snappy, lz4 or zstd.
        compression_level: of gzip and zstd; None for the others.
    """

    batch_bytes_max: int
    max_request_bytes: int
    compression: str
    compression_level: int | None

    @classmethod
    def of(cls, kafka: KafkaOptions) -> EncodingOptions:
        """Those of all properties."""
        return cls(
            batch_bytes_max=kafka.batch_bytes_max,
            max_request_bytes=kafka.max_request_bytes,
            compression=kafka.compression,
            compression_level=kafka.compression_level,
        )


def record_too_large(partition: TopicPartition, row_key: str, record_bytes: int, limit: str) -> RecordTooLargeError:
    """The error for a record that does not fit, ``limit`` saying what."""
    return RecordTooLargeError(
        topic=partition.topic,
        partition=partition.partition,
        row_key=row_key,
        record_bytes=record_bytes,
        limit=limit,
    )


def record_lacks_key(partition: TopicPartition, value: bytes | None) -> RecordRefusedError:
    """The error for a record without a key, by its value."""
    return RecordRefusedError(
        topic=partition.topic,
        partition=partition.partition,
        record=f"value {printable_key(value)}",
        reason=_LACKS_KEY,
        lacks_key=True,
    )


def printable_key(key: bytes | None) -> str:
    """The key of a record: as text where it is text, else in hexadecimal; cut to a readable length."""
    if key is None:
        return "null"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    shown = text if text.isprintable() and (text or not key) else "0x" + key.hex()
    return shown if len(shown) <= _CHARACTERS_MAX else shown[:_CHARACTERS_MAX] + "…"
