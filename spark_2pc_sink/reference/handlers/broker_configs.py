"""Configs of this broker as DescribeConfigs shows them, with what was altered while it runs (KIP-226)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsResponse

from spark_2pc_sink.reference.config.dynamic_configs import DYNAMIC, BrokerConfigs
from spark_2pc_sink.reference.config.property_entries import Kind, PropertyEntry, Source

Config: Final = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
_Synonym: Final = Config.DescribeConfigsSynonym


def broker_config(entry: PropertyEntry, configs: BrokerConfigs, node_id: int, request: Any) -> Any:
    """One config of the broker, with every place that has a value of it, the one that counts first.

    Args:
        entry: as the start gave it.
        configs: what was altered since.
        node_id: of the broker.
        request: what the client wants to see.
    """
    places = ((str(node_id), Source.DYNAMIC_BROKER_CONFIG), ("", Source.DYNAMIC_DEFAULT_BROKER_CONFIG))
    altered = [(text, source) for name, source in places if (text := configs.get(name, {}).get(entry.name)) is not None]
    found: list[tuple[str | None, Source]] = [*altered]
    if entry.source is not Source.DEFAULT_CONFIG:
        found.append((entry.value, entry.source))
    if entry.default is not None:
        found.append((entry.default, Source.DEFAULT_CONFIG))
    return Config(
        name=entry.name,
        value=altered[0][0].strip().lower() if altered else entry.value,
        read_only=entry.name not in DYNAMIC,
        config_source=(altered[0][1] if altered else entry.source).value,
        is_sensitive=entry.sensitive,
        synonyms=synonyms(((entry.name, value, source) for value, source in found), request),
        config_type=entry.kind.value,
        documentation=entry.doc if request.include_documentation else None,
    )


def default_config(name: str, text: str, request: Any) -> Any:
    """One config of the default of all brokers."""
    source = Source.DYNAMIC_DEFAULT_BROKER_CONFIG
    return Config(
        name=name,
        value=text.strip().lower(),
        read_only=False,
        config_source=source.value,
        is_sensitive=False,
        synonyms=synonyms([(name, text, source)], request),
        config_type=Kind.BOOLEAN.value,
        documentation=None,
    )


def synonyms(found: Iterable[tuple[str, str | None, Source]], request: Any) -> list[Any]:
    """The places as a client sees them that asked for them."""
    if not request.include_synonyms:
        return []
    return [_Synonym(name=name, value=value, source=source.value) for name, value, source in found]
