"""Messages and record batches as clients send them, made by kafka-python: an implementation of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import google_crc32c
from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from spark_2pc_sink.reference.coordinator.states import Pair
from spark_2pc_sink.reference.log.partition_log import Appended, PartitionLog
from spark_2pc_sink.reference.log.producer_state import VerificationGuard
from spark_2pc_sink.reference.protocol import ApiVersionsResponse, DeleteGroupsResponse, TxnOffsetCommitResponse
from spark_2pc_sink.reference.storage.batches import inspect
from spark_2pc_sink.wire.batch_format import CONTROL_BIT

NOW_MS = 1_700_000_000_000
#: What answers a request, by its API key.
RESPONSES: Final[dict[int, Any]] = {
    getattr(module, name).API_KEY: getattr(module, name.removesuffix("Request") + "Response")
    for module in (admin, consumer, metadata, producer, sasl)
    for name in dir(module)
    if name.endswith("Request") and name != "SaslBytesRequest"
} | {each.API_KEY: each for each in (TxnOffsetCommitResponse, ApiVersionsResponse, DeleteGroupsResponse)}


def message(kind: Any, version: int | None = None, **fields: Any) -> Any:
    """A message of this class, whose parts are given as dicts."""
    parts = kind._struct.fields

    def made(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return message(parts[name].data_class, version, **value)
        return [made(name, each) for each in value] if isinstance(value, list) else value

    return kind(version=version, **{name: made(name, value) for name, value in fields.items()})


def client_batch(
    values: Sequence[bytes | None] = (b"value",),
    *,
    keys: Sequence[bytes | None] = (),
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamps_ms: int | Sequence[int] = NOW_MS,
    compression: int = 0,
) -> bytes:
    """One batch with the values as its records, without keys unless they are given.

    Args:
        control: the header says that it is an end marker.
        timestamps_ms: of each record, or of all.
    """
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=transactional,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        batch_size=1 << 24,
    )
    times = [timestamps_ms] * len(values) if isinstance(timestamps_ms, int) else timestamps_ms
    for delta, record in enumerate(zip(times, keys or [None] * len(values), values, strict=True)):
        builder.append(delta, *record, [])
    built = bytearray(builder.build())
    if control:
        built[22] |= CONTROL_BIT
        built[17:21] = google_crc32c.value(bytes(built[21:])).to_bytes(4, "big")
    return bytes(built)


def read_back(data: bytes) -> list[Any]:
    """The batches in ``data`` as kafka-python reads them, with their CRC checked."""
    found = list(iter(MemoryRecords(data).next_batch, None))
    assert all(batch.validate_crc() for batch in found)
    return found


def seen(data: bytes) -> list[Any]:
    """The records in ``data`` as kafka-python reads them."""
    return [each for batch in read_back(data) for each in batch]


def append(
    log: PartitionLog, batch: bytes, *, guard: VerificationGuard | None = None, now_ms: int = NOW_MS
) -> Appended:
    """Append a client's batch as Produce does, without asking the coordinator."""
    return log.append(batch, inspect(batch), now_ms=now_ms, guard=guard)


def append_in_transaction(
    log: PartitionLog, values: Sequence[bytes], *, producer: tuple[int, int], sequence: int
) -> Appended:
    """Append a transactional batch whose partition the coordinator has added, if it has to be."""
    batch = client_batch(values, producer=producer, sequence=sequence, transactional=True)
    started = log.start_verification(Pair(*producer), sequence, supports_epoch_bump=True, now_ms=NOW_MS)
    return append(log, batch, guard=started if isinstance(started, VerificationGuard) else None)
