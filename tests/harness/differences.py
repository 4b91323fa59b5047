"""Ways in which the two sides of a sink come to differ after their batches were done: by accidents, and by people.

Each is done with the means of whoever does it in earnest: SQL, an admin client, another producer, a file that lost its
end. Nothing here knows the sink's code.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from spark_2pc_sink.testing.local_broker import LocalBroker
from tests.harness.providers import Broker
from tests.harness.written_pair import TABLE, WrittenPair

DEADLINE_S = 60
STATE = "kafka_transaction_state"
HISTORY = f"{STATE}_history"
#: Key and value of a record.
Record = tuple[bytes | None, bytes | None]

#: Of a record batch (Kafka's DefaultRecordBatch): base offset and length in bytes of all that follows them.
_BATCH_HEAD = struct.Struct(">qi")
_LAST_OFFSET_DELTA, _LAST_OFFSET_DELTA_AT = struct.Struct(">i"), 23


# --- the topic ----------------------------------------------------------------------------------------------------


def produce(
    broker: Broker, topic: str, records: Sequence[Record], *, partition: int = 0, transactional_id: str | None = None
) -> None:
    """Let another application write to the topic, in a transaction of its own if an id is given."""
    settings = {"bootstrap.servers": broker.bootstrap}
    producer = Producer(settings if transactional_id is None else settings | {"transactional.id": transactional_id})
    if transactional_id is not None:
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
    for key, value in records:
        producer.produce(topic, key=key, value=value, partition=partition)
    if transactional_id is not None:
        producer.commit_transaction(DEADLINE_S)
    assert producer.flush(DEADLINE_S) == 0


def delete_records(broker: Broker, topic: str, before: dict[int, int]) -> None:
    """Delete from the start of each partition all records before an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    ends = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
    for future in admin.delete_records(ends).values():
        future.result(DEADLINE_S)


def lose_tail(broker: LocalBroker, topic: str, keep: dict[int, int]) -> None:
    """Let partitions lose all from an offset on, as where a leader fails that was ahead of its disk and its followers.

    The broker is killed and started again on what is left.
    """
    broker.kill()
    for partition, offset in keep.items():
        (folder,) = broker._directory.rglob(f"{topic}-{partition}")
        (segment,) = folder.glob("*.log")
        _cut(segment, offset)
        for derived in [*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.snapshot")]:
            derived.unlink()
    broker.start()


def append_batch(broker: LocalBroker, topic: str, batch: bytes, *, partition: int = 0) -> int:
    """Put a batch behind all others of a partition that no broker would take from a producer; its offset.

    The broker is stopped in good order and started again, so that it looks into no segment.
    """
    broker.stop()
    (folder,) = broker._directory.rglob(f"{topic}-{partition}")
    (segment,) = folder.glob("*.log")
    content = segment.read_bytes()
    offset, place = 0, 0
    while place < len(content):
        base, length = _BATCH_HEAD.unpack_from(content, place)
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(content, place + _LAST_OFFSET_DELTA_AT)
        offset, place = base + delta + 1, place + _BATCH_HEAD.size + length
    _, length = _BATCH_HEAD.unpack_from(batch)
    with segment.open("ab") as file:
        file.write(_BATCH_HEAD.pack(offset, length) + batch[_BATCH_HEAD.size :])
    broker.start()
    return int(offset)


def _cut(segment: Path, offset: int) -> None:
    """Keep the record batches of a log file that begin before an offset."""
    content, place = segment.read_bytes(), 0
    while place < len(content):
        base, length = _BATCH_HEAD.unpack_from(content, place)
        if base >= offset:
            break
        place += _BATCH_HEAD.size + length
    assert place < len(content), f"{segment} has nothing from offset {offset} on"
    with segment.open("r+b") as file:
        file.truncate(place)


# --- the database -------------------------------------------------------------------------------------------------


def back_up(pair: WrittenPair) -> None:
    """Keep the table, the state row and its history as they are now."""
    for table in (TABLE, STATE, HISTORY):
        pair.sql(f"CREATE TABLE backup_{table} AS SELECT * FROM {table}")


def restore(pair: WrittenPair, *tables: str) -> None:
    """Put tables back to what `back_up` kept."""
    for table in tables:
        pair.sql(f"DELETE FROM {table}")
        pair.sql(f"INSERT INTO {table} SELECT * FROM backup_{table}")
