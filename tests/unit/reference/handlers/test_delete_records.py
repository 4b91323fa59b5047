"""DeleteRecords: what is gone for readers, what is refused, and that a restart brings nothing back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, AclOperation
from spark_2pc_sink.reference.handlers.partitions import PartitionHandlers
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from spark_2pc_sink.reference.log.log_values import Isolation
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol.api import handlers_of
from spark_2pc_sink.reference.storage.errors import OffsetOutOfRangeError
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.coordinator.access import denying
from tests.unit.reference.node import exchange
from tests.unit.reference.waiting import present

RECORDS = 5
EVERYTHING = -1


async def opened(directory: Path | None) -> Catalog:
    catalog = await Catalog.open(directory, BrokerProperties.from_mapping({}))
    await catalog.ensure_internal_topics()
    return catalog


async def filled(directory: Path | None = None) -> Catalog:
    """A catalog with a topic of one partition that has `RECORDS` records."""
    catalog = await opened(directory)
    await catalog.create_topic("t", 1, {})
    log = present(catalog.log("t", 0))
    for number in range(RECORDS):
        log.append_records([(b"k", b"%d" % number)], now_ms=1000 + number)
    await log.sync()
    return catalog


async def delete(
    catalog: Catalog, topic: str, partition: int, offset: int, *, version: int = 2, access: Access = FULL_ACCESS
) -> tuple[int, int]:
    """Code and low watermark of the answer."""
    asked = DeleteRecordsRequest.DeleteRecordsTopic(
        name=topic,
        partitions=[
            DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(partition_index=partition, offset=offset)
        ],
    )
    request = DeleteRecordsRequest(topics=[asked], timeout_ms=1000)
    handler = handlers_of(PartitionHandlers(catalog))[Api.DELETE_RECORDS]
    response: Any = await exchange(handler.function, request, DeleteRecordsResponse, version, access=access)
    (found,) = response.topics[0].partitions
    return found.error_code, found.low_watermark


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(("offset", "start"), [(0, 0), (3, 3), (RECORDS, RECORDS), (EVERYTHING, RECORDS)])
async def test_what_is_deleted_is_no_longer_read(version: int, offset: int, start: int) -> None:
    catalog = await filled()
    assert await delete(catalog, "t", 0, offset, version=version) == (Code.NONE, start)
    log = present(catalog.log("t", 0))
    assert log.earliest().offset == log.log_start_offset == start
    assert log.last_stable_offset == RECORDS
    found = await log.offset_for_timestamp(0, Isolation.READ_COMMITTED)
    assert found.offset == (start if start < RECORDS else -1)
    if start:
        with pytest.raises(OffsetOutOfRangeError):
            log.read(start - 1, max_bytes=1000, isolation=Isolation.READ_COMMITTED, min_one=True)
    await catalog.close()


async def test_a_smaller_offset_brings_nothing_back() -> None:
    catalog = await filled()
    await delete(catalog, "t", 0, 4)
    assert await delete(catalog, "t", 0, 2) == (Code.NONE, 4)
    await catalog.close()


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "code"),
    [
        ("t", 0, RECORDS + 1, Code.OFFSET_OUT_OF_RANGE),
        ("t", 0, -2, Code.OFFSET_OUT_OF_RANGE),
        ("t", 1, 0, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 0, 0, Code.UNKNOWN_TOPIC_OR_PARTITION),
        (GROUP_OFFSETS, 0, 0, Code.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_what_is_refused_deletes_nothing(topic: str, partition: int, offset: int, code: Code) -> None:
    catalog = await filled()
    assert await delete(catalog, topic, partition, offset) == (code, -1)
    log = present(catalog.log("t", 0))
    assert log.log_start_offset == 0
    await catalog.close()


@pytest.mark.parametrize(
    ("policy", "code"),
    [("compact", Code.POLICY_VIOLATION), ("compact,delete", Code.NONE), ("delete", Code.NONE), ("", Code.NONE)],
)
async def test_where_only_compaction_removes_records_nobody_else_does(policy: str, code: Code) -> None:
    """ReplicaManager.deleteRecordsOnLocalLog; as Kafka 4.4.0 answers, an offset beyond the end or not."""
    catalog = await filled()
    await catalog.alter_configs("t", lambda _: {"cleanup.policy": policy})
    assert await delete(catalog, "t", 0, 1) == (code, -1 if code else 1)
    beyond = code or Code.OFFSET_OUT_OF_RANGE
    assert await delete(catalog, "t", 0, RECORDS + 1) == (beyond, -1)
    await catalog.close()


async def test_who_may_not_delete() -> None:
    catalog = await filled()
    denied = await delete(catalog, "t", 0, 1, access=denying(AclOperation.DELETE))
    assert denied == (Code.TOPIC_AUTHORIZATION_FAILED, -1)
    await catalog.close()


async def test_a_restart_brings_nothing_back(tmp_path: Path) -> None:
    catalog = await filled(tmp_path)
    await delete(catalog, "t", 0, 3)
    await catalog.close()
    again = await opened(tmp_path)
    log = present(again.log("t", 0))
    assert (log.log_start_offset, log.end_offset) == (3, RECORDS)
    await again.close()
