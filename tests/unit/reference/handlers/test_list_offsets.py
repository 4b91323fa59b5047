"""ListOffsets and OffsetForLeaderEpoch from message to message."""

from __future__ import annotations

from unittest import mock

import pytest
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, AclOperation, Resource
from spark_2pc_sink.reference.protocol.api import handlers_of
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.coordinator.access import denied
from tests.unit.reference.node import START_MS, Node, batch, exchange, node
from tests.unit.reference.seeds import known

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)


async def _list(
    running: Node,
    *wanted: tuple[str, int, int],
    version: int = 11,
    isolation: int = 0,
    epoch: int = -1,
    access: Access = FULL_ACCESS,
) -> list[tuple[int, int, int, int]]:
    """(code, offset, timestamp, leader epoch) of each (topic, partition, timestamp)."""
    topic = ListOffsetsRequest.ListOffsetsTopic
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            topic(
                name=name,
                partitions=[
                    topic.ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=timestamp)
                ],
            )
            for name, index, timestamp in wanted
        ],
        timeout_ms=1000,
    )
    response = await exchange(running.partitions.list_offsets, request, ListOffsetsResponse, version, access=access)
    assert response.throttle_time_ms == 0
    return [
        (each.error_code, each.offset, each.timestamp, each.leader_epoch)
        for topic in response.topics
        for each in topic.partitions
    ]


async def _times(running: Node, *offsets_ms: int) -> None:
    for offset_ms in offsets_ms:
        records = batch(b"v", timestamp_ms=START_MS + offset_ms)
        assert (await running.produce({("t", 0): records}, tid=None))["t", 0].error_code == 0


@pytest.mark.parametrize("version", range(1, 12))
async def test_the_ends_of_a_log(version: int) -> None:
    async with node(known()) as running:
        offered = handlers_of(running.partitions)[Api.LIST_OFFSETS]
        assert (offered.version_min, offered.version_max) == (1, 11)
        await _times(running, 10, 30, 20)
        epoch = 1 if version >= 4 else -1
        assert await _list(running, ("t", 0, LATEST), version=version) == [(0, 3, -1, epoch)]
        assert await _list(running, ("t", 0, EARLIEST), version=version) == [(0, 0, -1, epoch)]
        unsupported = (Code.UNSUPPORTED_VERSION, -1, -1, -1)
        for timestamp, first_version, found in (
            (MAX_TIMESTAMP, 7, (0, 1, START_MS + 30, epoch)),
            (EARLIEST_LOCAL, 8, (0, 0, -1, epoch)),
            (LATEST_TIERED, 9, (0, -1, -1, -1)),
            (EARLIEST_PENDING, 11, (0, -1, -1, -1)),
            (-7, 99, unsupported),
        ):
            expected = found if version >= first_version else unsupported
            assert await _list(running, ("t", 0, timestamp), version=version) == [expected]


async def test_the_first_record_at_or_after_a_time() -> None:
    async with node(known()) as running:
        await _times(running, 10, 30, 20)
        for offset_ms, expected in (
            (0, (0, 0, START_MS + 10, 1)),
            (11, (0, 1, START_MS + 30, 1)),
            (31, (0, -1, -1, -1)),
        ):
            assert await _list(running, ("t", 0, START_MS + offset_ms)) == [expected]
        assert await _list(running, ("t", 1, START_MS), ("t", 1, MAX_TIMESTAMP)) != []
        assert await _list(running, ("t", 1, START_MS)) == [(0, -1, -1, -1)]
        assert await _list(running, ("t", 1, MAX_TIMESTAMP)) == [(0, -1, -1, -1)]


async def test_errors_of_list_offsets() -> None:
    async with node(known()) as running:
        access = denied((AclOperation.DESCRIBE, Resource.TOPIC, "u"))
        found = await _list(
            running, ("t", 0, LATEST), ("t", 9, LATEST), ("missing", 0, LATEST), ("u", 0, LATEST), access=access
        )
        assert [row[0] for row in found] == [0, 3, 3, Code.TOPIC_AUTHORIZATION_FAILED]
        assert {row[1:] for row in found[1:]} == {(-1, -1, -1)}
        twice = await _list(running, ("t", 0, LATEST), ("t", 1, LATEST), ("t", 0, EARLIEST))
        assert [row[0] for row in twice] == [Code.INVALID_REQUEST, 0]
        assert [(await _list(running, ("t", 0, LATEST), epoch=epoch))[0][0] for epoch in (0, 1, 2)] == [74, 0, 75]


async def test_a_disk_that_cannot_be_read() -> None:
    async with node(known()) as running:
        log = running.cluster.log("t", 0)
        with mock.patch.object(log, "offset_for_timestamp", side_effect=OSError("input/output error")):
            assert await _list(running, ("t", 0, 0)) == [(Code.KAFKA_STORAGE_ERROR, -1, -1, -1)]


async def test_a_batch_that_cannot_be_looked_into() -> None:
    async with node(known()) as running:
        records = batch(b"v", codec=4)  # says zstd, and is not
        assert (await running.produce({("t", 0): records}, tid=None))["t", 0].error_code == 0
        assert (await _list(running, ("t", 0, 0)))[0] == (Code.CORRUPT_MESSAGE, -1, -1, -1)


@pytest.mark.parametrize("version", range(2, 5))
async def test_where_an_epoch_ends(version: int) -> None:
    async with node(known()) as running:
        access = denied((AclOperation.DESCRIBE, Resource.TOPIC, "u"))
        await _times(running, 0, 0)

        async def ends(current: int, *wanted: tuple[str, int, int]) -> list[tuple[int, int, int]]:
            topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
            request = OffsetForLeaderEpochRequest(
                replica_id=-1,
                topics=[
                    topic(
                        topic=name,
                        partitions=[
                            topic.OffsetForLeaderPartition(
                                partition=index, current_leader_epoch=current, leader_epoch=epoch
                            )
                        ],
                    )
                    for name, index, epoch in wanted
                ],
            )
            response = await exchange(
                running.partitions.offset_for_leader_epoch,
                request,
                OffsetForLeaderEpochResponse,
                version,
                access=access,
            )
            return [
                (each.error_code, each.leader_epoch, each.end_offset)
                for topic in response.topics
                for each in topic.partitions
            ]

        assert await ends(1, ("t", 0, 1), ("t", 0, 5)) == [(0, 1, 2), (0, -1, -1)]
        assert await ends(-1, ("t", 9, 1), ("missing", 0, 1), ("u", 0, 1)) == [
            (3, -1, -1),
            (3, -1, -1),
            (Code.TOPIC_AUTHORIZATION_FAILED, -1, -1),
        ]
        assert [(await ends(current, ("t", 0, 1)))[0] for current in (0, 2)] == [(74, -1, -1), (75, -1, -1)]
