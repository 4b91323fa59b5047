"""A catalog in memory behind the handlers of clusters, topics and configs, spoken to through the wire format."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access
from spark_2pc_sink.reference.handlers.cluster import ClusterHandlers
from spark_2pc_sink.reference.handlers.configs import ConfigHandlers
from spark_2pc_sink.reference.handlers.topics import TopicHandlers
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol import handlers_of
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.node import exchange


class ClusterNode:
    """The handlers over a catalog that has the coordinators' topics."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.handlers = {
            **handlers_of(ClusterHandlers(catalog)),
            **handlers_of(TopicHandlers(catalog)),
            **handlers_of(ConfigHandlers(catalog)),
        }

    async def ask(self, request: Any, version: int, *, access: Access = FULL_ACCESS) -> Any:
        """Send a request of a version that is offered; the response."""
        handler = self.handlers[Api(request.API_KEY)]
        assert handler.version_min <= version <= handler.version_max
        return await exchange(handler.function, request, version, access=access)


@asynccontextmanager
async def cluster_node(properties: Mapping[str, str] | None = None) -> AsyncIterator[ClusterNode]:
    """A node in memory, ended in an orderly way."""
    given = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "2", **(properties or {})}
    catalog = await Catalog.open(None, BrokerProperties.from_mapping(given))
    await catalog.ensure_internal_topics()
    try:
        yield ClusterNode(catalog)
    finally:
        await catalog.close()
