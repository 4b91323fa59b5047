"""From a frame to its handler and back, and what ApiVersions says."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.handlers.features import ApiVersionsHandlers
from spark_2pc_sink.reference.network.request_channel import OTHER_REQUEST_BYTES_MAX, Dispatcher, join
from spark_2pc_sink.reference.protocol.api import Handler, Handlers, RequestContext, handlers_of
from spark_2pc_sink.reference.protocol.codec import ApiVersionsRequest, ApiVersionsResponse
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.net import (
    PRODUCE_VERSION,
    catalog_at,
    dispatcher,
    empty_metadata,
    metadata,
    metadata_request,
    produce,
    produce_request,
)
from tests.unit.reference.protocol.test_codec import frame_of
from tests.unit.reference.waiting import present


async def answer(found: Dispatcher, frame: bytes) -> bytes:
    call = found.read(frame)
    reply = present(await found.answer(call, RequestContext(version=call.request.head.version)))
    return b"".join(reply)[4:]


def init_producer_id(version_max: int) -> Handlers:
    return {Api.INIT_PRODUCER_ID: Handler(0, version_max, empty_metadata, only_reads=True)}


@pytest.mark.parametrize(("unstable", "version_max"), [(False, 5), (True, 6)])
def test_versions_that_kafka_has_not_released_need_a_property(unstable: bool, version_max: int) -> None:
    (handler,) = join([init_producer_id(6)], unstable_versions=unstable).values()
    assert (handler.version_min, handler.version_max, handler.only_reads) == (0, version_max, True)
    (lower,) = join([init_producer_id(3)], unstable_versions=unstable).values()
    assert lower.version_max == 3


def test_only_produce_may_be_long() -> None:
    found = dispatcher(metadata(empty_metadata), produce(empty_metadata))
    fits = frame_of(metadata_request(), 0)
    filling = bytes(OTHER_REQUEST_BYTES_MAX - len(fits))
    assert found.read(fits + filling).api is Api.METADATA
    with pytest.raises(RemoteProtocolError, match=f"METADATA of {OTHER_REQUEST_BYTES_MAX + 1} bytes"):
        found.read(fits + filling + b"x")
    assert found.read(frame_of(produce_request(filling + filling), PRODUCE_VERSION)).api is Api.PRODUCE


@pytest.mark.parametrize("version", [6, -1])
async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(version: int) -> None:
    """KIP-511: the broker answers with version 0, UNSUPPORTED_VERSION and the versions of ApiVersions."""
    frame = struct.pack(">hhih", 18, version, 3, -1) + b"whatever"
    response = ApiVersionsResponse.decode(await answer(dispatcher(), frame), version=0, header=True)
    assert response.error_code == 35
    assert [(each.api_key, each.min_version, each.max_version) for each in response.api_keys] == [(18, 0, 5)]


async def api_versions(version: int, *, level: int = 2) -> Any:
    others = join([metadata(empty_metadata)], unstable_versions=False)
    versions = ApiVersionsHandlers(others, catalog_at(level, 6))
    request = ApiVersionsRequest(client_software_name="me", client_software_version="1", cluster_id=None, node_id=-1)
    reply = await answer(Dispatcher({**others, **handlers_of(versions)}), frame_of(request, version))
    return ApiVersionsResponse.decode(reply, version=version, header=True)


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("version", [3, 4])
async def test_features_are_those_of_kafka(version: int, level: int) -> None:
    """Apache Kafka 4.4.0 names a feature that begins at level 0 from version 4 on (KIP-1022), and no level 0."""
    response = await api_versions(version, level=level)
    supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
    assert supported["metadata.version"] == (7, 33)
    assert supported.get("transaction.version") == ((0, 2) if version >= 4 else None)
    finalized = {each.name: (each.min_version_level, each.max_version_level) for each in response.finalized_features}
    assert finalized.pop("metadata.version") == (33, 33)
    assert finalized == ({"transaction.version": (level, level)} if level else {})
    assert response.finalized_features_epoch == 6
