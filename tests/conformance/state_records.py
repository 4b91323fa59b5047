"""What a coordinator keeps of a transactional id: the records of ``__transaction_state``."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from spark_2pc_sink.ids import NO_PRODUCER_ID
from spark_2pc_sink.reference.coordinator.states import StateId
from spark_2pc_sink.reference.internal_topics import TransactionLogValue, decode_value
from tests.conformance.leader_operations import Fetch
from tests.conformance.operations import Partition, ProducerId
from tests.unit.reference.batches import seen

TRANSACTION_LOG: Final[Partition] = ("__transaction_state", 0)
_BYTES_MAX: Final = 50_000_000


@dataclass(frozen=True, kw_only=True)
class StateRecords:
    """The records of one transactional id, oldest first; times are told only as whether there is one.

    Each is: version of the value, state, producer id, epoch, timeout, whether there is a start, partitions (None where
    the field is null), tagged fields. None is a tombstone.
    """

    tid: str
    version: int = 12

    def request(self) -> Any:
        return Fetch(partition=TRANSACTION_LOG, offset=0, bytes_max=_BYTES_MAX).request()

    def result(self, response: Any) -> Any:
        found = response.responses[0].partitions[0]
        if found.error_code:
            return found.error_code
        key = struct.pack(">hh", 0, len(self.tid)) + self.tid.encode()
        return [_decoded(each.value) for each in seen(bytes(found.records or b"")) if each.key == key]


def _decoded(data: bytes | None) -> Any:
    if data is None:
        return None
    value = decode_value(TransactionLogValue, data, peer="the server")
    topics = value.transaction_partitions
    partitions = topics and sorted((each.topic, index) for each in topics for index in each.partition_ids)
    tags: dict[str, Any] = {}
    for name, number in (("previous", value.previous_producer_id), ("next", value.next_producer_id)):
        if number != NO_PRODUCER_ID:
            tags[name] = ProducerId(number)
    if value.client_transaction_version:
        tags["client"] = value.client_transaction_version
    return (
        int.from_bytes(data[:2], "big"),
        StateId(value.transaction_status).label,
        ProducerId(value.producer_id),
        value.producer_epoch,
        value.transaction_timeout_ms,
        value.transaction_start_timestamp_ms >= 0,
        partitions,
        tags,
    )
