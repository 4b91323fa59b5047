"""DeleteRecords: what is gone for readers, what is refused, and that a restart brings nothing back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kafka.protocol.admin import DeleteRecordsResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, AclOperation
from spark_2pc_sink.reference.handlers.partitions import PartitionHandlers
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from spark_2pc_sink.reference.log.log_values import Isolation
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol.api import handlers_of
from spark_2pc_sink.reference.storage.errors import OffsetOutOfRangeError
from spark_2pc_sink.wire.api_versions import Api
from tests.conformance.leader_operations import DeleteRecords
from tests.unit.reference.coordinator.access import denying
from tests.unit.reference.node import exchange
from tests.unit.reference.waiting import present

RECORDS = 5
EVERYTHING = -1


@asynccontextmanager
async def filled(directory: Path | None = None) -> AsyncIterator[Catalog]:
    """A catalog with a topic of one partition that has `RECORDS` records, unless its directory has it already."""
    catalog = await Catalog.open(directory, BrokerProperties.from_mapping({}))
    await catalog.ensure_internal_topics()
    if await catalog.create_topic("t", 1, {}):
        log = log_of(catalog)
        for number in range(RECORDS):
            log.append_records([(b"k", b"%d" % number)], now_ms=1000 + number)
        await log.sync()
    try:
        yield catalog
    finally:
        await catalog.close()


def log_of(catalog: Catalog) -> PartitionLog:
    return present(catalog.log("t", 0))


async def delete(
    catalog: Catalog, topic: str, partition: int, offset: int, *, version: int = 2, access: Access = FULL_ACCESS
) -> tuple[int, int]:
    """Code and low watermark of the answer."""
    operation = DeleteRecords(partition=(topic, partition), offset=offset)
    function = handlers_of(PartitionHandlers(catalog))[Api.DELETE_RECORDS].function
    answer = await exchange(function, operation.request(), DeleteRecordsResponse, version, access=access)
    code, start = operation.result(answer)
    return code, start


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(("offset", "start"), [(0, 0), (3, 3), (RECORDS, RECORDS), (EVERYTHING, RECORDS)])
async def test_what_is_deleted_is_no_longer_read(version: int, offset: int, start: int) -> None:
    async with filled() as catalog:
        assert await delete(catalog, "t", 0, offset, version=version) == (Code.NONE, start)
        log = log_of(catalog)
        assert log.earliest().offset == log.log_start_offset == start
        assert log.last_stable_offset == RECORDS
        found = await log.offset_for_timestamp(0, Isolation.READ_COMMITTED)
        assert found.offset == (start if start < RECORDS else -1)
        if start:
            with pytest.raises(OffsetOutOfRangeError):
                log.read(start - 1, max_bytes=1000, isolation=Isolation.READ_COMMITTED, min_one=True)


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
    async with filled() as catalog:
        assert await delete(catalog, topic, partition, offset) == (code, -1)
        denied = await delete(catalog, "t", 0, 1, access=denying(AclOperation.DELETE))
        assert denied == (Code.TOPIC_AUTHORIZATION_FAILED, -1)
        assert log_of(catalog).log_start_offset == 0


@pytest.mark.parametrize("policy", ["compact,delete", "delete", ""])
async def test_where_not_only_compaction_removes_records_a_client_may(policy: str) -> None:
    """ReplicaManager.deleteRecordsOnLocalLog; what a topic with ``compact`` alone answers is a row of conformance."""
    async with filled() as catalog:
        await catalog.alter_configs("t", lambda _: {"cleanup.policy": policy})
        assert await delete(catalog, "t", 0, 1) == (Code.NONE, 1)


async def test_a_smaller_offset_and_a_restart_bring_nothing_back(tmp_path: Path) -> None:
    async with filled(tmp_path) as catalog:
        await delete(catalog, "t", 0, 3)
        assert await delete(catalog, "t", 0, 2) == (Code.NONE, 3)
    async with filled(tmp_path) as again:
        assert (log_of(again).log_start_offset, log_of(again).end_offset) == (3, RECORDS)
