"""Requests before their version is chosen; Produce and EndTxn, the two of every transaction, encoded and decoded here.

A service sends them a thousand times a second, and kafka-python's objects for them, with their headers, take longer
than the sockets do (benchmarks/tried.md).

Both are *flexible* in every version that this package supports (KIP-482): lengths are varints, one greater than the
count, and each structure ends with its tags.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from spark_2pc_sink.errors import ConfigurationError, RemoteProtocolError
from spark_2pc_sink.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.wire.api_versions import ANY_VERSION, Api
from spark_2pc_sink.wire.batch_format import BITS, LOW_BITS, MORE_FOLLOW, VARINT_BYTES_MAX, Buffer, read_unsigned

#: Message length, API key, version, correlation id, length of the client id.
_HEAD: Final = struct.Struct(">ihhih")
_LENGTH_BYTES: Final = 4
_CORRELATION_BYTES: Final = 4
_NO_TAGS: Final = b"\x00"
_ALL_IN_SYNC_REPLICAS: Final = -1
_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_INDEX: Final = struct.Struct(">i")
#: Producer id, epoch, whether to commit.
_END: Final = struct.Struct(">qh?")
#: Per partition: index, error code, base offset, time of append, start of the log.
_PRODUCED: Final = struct.Struct(">ihqqq")
#: Throttle time, error code; from version 5 on producer id and epoch.
_ENDED: Final = struct.Struct(">ih")
_ENDED_WITH_PAIR: Final = struct.Struct(">ihqh")
_PAIR_IN_END_VERSION: Final = 5


@dataclass(frozen=True)
class ProducedPartition:
    """Result for one partition's batch; code 0 means appended on every in-sync replica, now or by an earlier attempt.

    ``base_offset`` is -1 with an error, and for a duplicate whose offset the broker no longer remembers.
    ``log_append_time_ms`` is -1 on a topic that keeps the producer's timestamps; for a detected duplicate it is the
    timestamp of the batch appended earlier, on any topic. ``record_errors`` has (index in the batch, message) for each
    record that the broker refused.
    """

    error_code: int
    base_offset: int
    log_append_time_ms: int
    error_message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()


class RequestTemplate(NamedTuple):
    """A request before its version is chosen, which depends on the broker that it is sent to.

    ``version_min`` and ``version_max`` are bounds for this request within those of
    `spark_2pc_sink.wire.api_versions.VERSIONS`.
    """

    api: Api
    build: Callable[[int], FramedRequest]
    version_min: int = 0
    version_max: int = ANY_VERSION


class FramedRequest(NamedTuple):
    """A request at one version.

    ``read`` reads an answer with its header, and raises any error for an invalid one. ``flexible`` if the request's
    header has tags (KIP-482).
    """

    api: Api
    version: int
    body: Sequence[Buffer]
    read: Callable[[bytes], Any]
    flexible: bool = True

    def __repr__(self) -> str:
        """Without the body, which may have a password."""
        return f"{self.api.name} version {self.version}"

    def encode(self, *, correlation_id: int, client_id: str) -> bytes:
        """The whole request, with length and header. The answer has the same correlation id."""
        client, tags = client_id.encode(), _NO_TAGS if self.flexible else b""
        length = _HEAD.size - _LENGTH_BYTES + len(client) + len(tags) + sum(map(len, self.body))
        head = _HEAD.pack(length, self.api, self.version, correlation_id, len(client))
        return b"".join((head, client, tags, *self.body))


def produce_request(
    transactional_id: str, batches: Mapping[TopicPartition, Buffer], *, timeout_ms: int
) -> RequestTemplate:
    """Append one record batch per partition, acknowledged by all in-sync replicas within ``timeout_ms``.

    Version 12 adds the partitions to the transaction implicitly, for 11 they were added earlier. The batches are copied
    once, into the frame.
    """
    topics: dict[str, list[tuple[int, Buffer]]] = {}
    for partition, records in batches.items():
        topics.setdefault(partition.topic, []).append((partition.partition, records))
    body: list[Buffer] = [_text(transactional_id), _ACKS_AND_TIMEOUT.pack(_ALL_IN_SYNC_REPLICAS, timeout_ms)]
    body.append(_length(topics))
    for name, of_topic in topics.items():
        body += (_text(name), _length(of_topic))
        for index, records in of_topic:
            body += (_INDEX.pack(index), _length(records), records, _NO_TAGS)
        body.append(_NO_TAGS)
    body.append(_NO_TAGS)
    return RequestTemplate(Api.PRODUCE, lambda version: FramedRequest(Api.PRODUCE, version, body, _read_produced))


def end_txn_request(transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool) -> RequestTemplate:
    """Commit or abort. Version 5 is for transaction.version 2 and returns a bumped pair; 4 and below do not."""
    body = (_text(transactional_id), _END.pack(producer.producer_id, producer.epoch, commit), _NO_TAGS)

    def build(version: int) -> FramedRequest:
        layout = _ENDED_WITH_PAIR if version >= _PAIR_IN_END_VERSION else _ENDED

        def read(data: bytes) -> EndTxnResponse:
            _throttle_ms, *ended = layout.unpack_from(data, _skip_tags(data, _CORRELATION_BYTES))
            return EndTxnResponse(*ended)

        return FramedRequest(Api.END_TXN, version, body, read)

    return RequestTemplate(Api.END_TXN, build)


class EndTxnResponse(NamedTuple):
    """The coordinator's response to EndTxn. Error code 0 means that the outcome is decided and durable.

    The pair is for the next transaction (version 5, KIP-890); -1 below version 5 and with an error.
    """

    error_code: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


def pair_of(producer_id: int, epoch: int) -> ProducerIdAndEpoch | None:
    """The pair, or None if either half is -1: an error, nothing ongoing, or an id that is being created."""
    if producer_id == NO_PRODUCER_ID or epoch == NO_PRODUCER_EPOCH:
        return None
    try:
        return ProducerIdAndEpoch(producer_id, epoch)
    except ConfigurationError as error:
        raise RemoteProtocolError(peer="the transaction coordinator", detail=str(error)) from error


def _read_produced(data: bytes) -> dict[TopicPartition, ProducedPartition]:
    found: dict[TopicPartition, ProducedPartition] = {}
    topics, position = _read_length(data, _skip_tags(data, _CORRELATION_BYTES))
    for _ in range(topics):
        topic, position = _read_text(data, position)
        partitions, position = _read_length(data, position)
        for _ in range(partitions):
            index, code, base_offset, append_time_ms, _ = _PRODUCED.unpack_from(data, position)
            errors, position = _read_record_errors(data, position + _PRODUCED.size)
            message, position = _read_text(data, position)
            position = _skip_tags(data, position)
            found[TopicPartition(topic or "", index)] = ProducedPartition(
                code, base_offset, append_time_ms, message, errors
            )
        position = _skip_tags(data, position)
    return found


def _read_record_errors(data: bytes, position: int) -> tuple[tuple[tuple[int, str | None], ...], int]:
    count, position = _read_length(data, position)
    errors = []
    for _ in range(count):
        (number,) = _INDEX.unpack_from(data, position)
        message, position = _read_text(data, position + _INDEX.size)
        position = _skip_tags(data, position)
        errors.append((number, message))
    return tuple(errors), position


def _length(counted: Sized) -> bytes:
    encoded, rest = bytearray(), len(counted) + 1
    while rest > LOW_BITS:
        encoded.append(rest & LOW_BITS | MORE_FOLLOW)
        rest >>= BITS
    encoded.append(rest)
    return bytes(encoded)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _length(encoded) + encoded


def _read_number(data: bytes, position: int) -> tuple[int, int]:
    if data[position] < MORE_FOLLOW:  # most are small
        return data[position], position + 1
    return read_unsigned(data, position, bytes_max=VARINT_BYTES_MAX)


def _read_length(data: bytes, position: int) -> tuple[int, int]:
    """Decode a length, and where it ends; -1 for null."""
    length, position = _read_number(data, position)
    return length - 1, position


def _read_text(data: bytes, position: int) -> tuple[str | None, int]:
    length, position = _read_length(data, position)
    if length < 0:
        return None, position
    text, position = _read_bytes(data, position, length)
    return text.decode(), position


def _skip_tags(data: bytes, position: int) -> int:
    count, position = _read_number(data, position)
    for _ in range(count):
        _tag, position = _read_number(data, position)
        length, position = _read_number(data, position)
        _, position = _read_bytes(data, position, length)
    return position


def _read_bytes(data: bytes, position: int, length: int) -> tuple[bytes, int]:
    stop = position + length
    if stop > len(data):
        raise IndexError(f"{length} bytes at {position}, the answer has {len(data)}")
    return data[position:stop], stop
