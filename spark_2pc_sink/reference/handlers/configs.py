"""DescribeConfigs and IncrementalAlterConfigs, of topics and of this broker.

Most broker properties are fixed at the start; those in `properties.DYNAMIC` can be altered (KIP-226). Configs of
groups, client metrics and loggers do not exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsResponse, IncrementalAlterConfigsResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.properties import DYNAMIC, FIXED, ROWS, dynamic_fault
from spark_2pc_sink.reference.config.topic_configs import (
    TOPIC_CONFIGS,
    ConfigEntry,
    Kind,
    Source,
    check_topic_configs,
    list_elements,
    note_topic_configs,
    property_entry,
    topic_entries,
)
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, Access, AclOperation, Resource
from spark_2pc_sink.reference.handlers.cluster import MALFORMED
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.catalog_state import name_fault
from spark_2pc_sink.reference.protocol import RefusedError, RequestContext, serves
from spark_2pc_sink.wire.api_versions import Api

_Result: Final = DescribeConfigsResponse.DescribeConfigsResult
_Altered: Final = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
_Config: Final = _Result.DescribeConfigsResourceResult

# Types of resources (Kafka: ConfigResource.Type).
_TOPIC, _BROKER = 2, 4
_OTHER_TYPES: Final = {8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
# Operations (Kafka: AlterConfigOp.OpType).
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


class ConfigHandlers:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @serves(Api.DESCRIBE_CONFIGS, 1, 4)
    async def describe_configs(self, context: RequestContext, request: Any) -> Any:
        """Every config, or the requested ones, with all sources of its value (KIP-226, KIP-569)."""
        known = {_TOPIC, _BROKER, *_OTHER_TYPES}
        malformed = any(resource.resource_type not in known for resource in request.resources)
        results = []
        for resource in request.resources:
            result = _Result(resource_type=resource.resource_type, resource_name=resource.resource_name)
            try:
                keys, fixed = resource.configuration_keys, resource.resource_type == _BROKER and resource.resource_name
                result.configs = [
                    _config(each, request, read_only=bool(fixed) and each.name not in DYNAMIC)
                    for each in self._described(context.access, resource, malformed=malformed)
                    if not keys or each.name in keys
                ]
            except RefusedError as error:
                result.error_code, result.error_message = error.code, error.message
            results.append(result)
        return DescribeConfigsResponse(results=results)

    def _described(self, access: Access, resource: Any, *, malformed: bool) -> Iterable[ConfigEntry]:
        if malformed:
            raise RefusedError(Code.INVALID_REQUEST, MALFORMED)
        _check_access(access, AclOperation.DESCRIBE_CONFIGS, resource)
        name = resource.resource_name
        if resource.resource_type == _TOPIC:
            if fault := name_fault(name):
                raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, fault)
            topic = self._catalog.topic(name)
            if topic is None:
                raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, "")
            return topic_entries(topic.configs, self._catalog.properties)
        if resource.resource_type != _BROKER:
            text = f"The server has no configs of {_OTHER_TYPES[resource.resource_type]}."
            raise RefusedError(Code.INVALID_REQUEST, text)
        return self._broker_entries(name)

    def _broker_entries(self, name: str) -> list[ConfigEntry]:
        configs = self._catalog.state.broker_configs
        if not name:
            source = Source.DYNAMIC_DEFAULT_BROKER_CONFIG
            return [
                ConfigEntry(key, Kind.BOOLEAN, text.strip().lower(), source, ((key, text, source),), "")
                for key, text in sorted(configs.get("", {}).items())
            ]
        self._check_node(name, f"expected {self._catalog.node_id} or empty string, but received", "Broker")
        places = (str(self._catalog.node_id), Source.DYNAMIC_BROKER_CONFIG), ("", Source.DYNAMIC_DEFAULT_BROKER_CONFIG)
        found = []
        for entry in (property_entry(self._catalog.started_with, each) for each in sorted((*ROWS, *FIXED))):
            altered = [(configs[at][entry.name], each) for at, each in places if entry.name in configs.get(at, {})]
            if altered:
                text, source = altered[0]
                synonyms = (*((entry.name, *each) for each in altered), *entry.synonyms)
                entry = replace(entry, value=text.strip().lower(), source=source, synonyms=synonyms)  # noqa: PLW2901
            found.append(entry)
        return found

    def _check_node(self, name: str, expected: str, what: str) -> None:
        try:
            node_id = int(name)
        except ValueError:
            raise RefusedError(Code.INVALID_REQUEST, f"{what} id must be an integer, but it is: {name}") from None
        if node_id != self._catalog.node_id:
            raise RefusedError(Code.INVALID_REQUEST, f"Unexpected broker id, {expected} {name}")

    @serves(Api.INCREMENTAL_ALTER_CONFIGS, 0, 1)
    async def incremental_alter_configs(self, context: RequestContext, request: Any) -> Any:
        """Alter each resource as a whole or not at all (KIP-339; ConfigAdminManager, ConfigurationControlManager)."""
        counts = Counter((each.resource_type, each.resource_name) for each in request.resources)
        responses = []
        for resource in request.resources:
            kind, name = resource.resource_type, resource.resource_name
            response = _Altered(resource_type=kind, resource_name=name, error_message=None)
            try:
                _check_form(resource, count=counts[kind, name])
                await self._alter(context.access, resource, validate_only=request.validate_only)
            except RefusedError as error:
                response.error_code, response.error_message = error.code, error.message
            responses.append(response)
        return IncrementalAlterConfigsResponse(responses=responses)

    async def _alter(self, access: Access, resource: Any, *, validate_only: bool) -> None:
        _check_access(access, AclOperation.ALTER_CONFIGS, resource)
        name, operations = resource.resource_name, resource.configs
        if resource.resource_type == _BROKER:
            self._check_broker(name, operations)
            if not validate_only:
                changes = {each.name: each.value if each.config_operation == _SET else None for each in operations}
                await self._catalog.alter_broker_configs(name, changes)
            return
        if not name:
            raise RefusedError(Code.INVALID_REQUEST, "Default topic resources are not allowed.")
        if fault := name_fault(name):
            raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, fault)
        defaults = {entry.name: entry.value or "" for entry in topic_entries({}, self._catalog.properties)}
        topic = self._catalog.topic(name)
        _altered_configs(topic.configs if topic else {}, operations, defaults)
        altered = topic
        if topic is not None and not validate_only:
            # From the configs at the time of the change: another request may come first.
            altered = await self._catalog.alter_configs(name, lambda now: _altered_configs(now, operations, defaults))
        if altered is None:
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        if not validate_only:
            named = {config.name for config in operations}
            note_topic_configs(name, {key: altered.configs[key] for key in named & altered.configs.keys()})

    def _check_broker(self, name: str, operations: Iterable[Any]) -> None:
        if name:
            self._check_node(name, f"expected {self._catalog.node_id}, but received", "Node")
        if fixed := ", ".join(config.name for config in operations if config.name not in DYNAMIC):
            raise RefusedError(Code.INVALID_REQUEST, f"Cannot update these configs dynamically: [{fixed}]")
        for each in operations:
            if wrong := dynamic_fault(each.name, each.config_operation, each.value):
                raise RefusedError(*wrong)


def config_fault(error: ConfigurationError) -> str:
    """The client's message for a topic config that `check_topic_config` refused, in Kafka's words."""
    if error.option not in TOPIC_CONFIGS:
        return f"Unknown topic config name: {error.option}"
    return f"Invalid value {error.value} for configuration {error.option}: {error.rule}"


def _altered_configs(now: Mapping[str, str], operations: Iterable[Any], defaults: Mapping[str, str]) -> dict[str, str]:
    """The configs of a topic after the operations; an element is appended once (KIP-339)."""
    configs = dict(now)
    for each in operations:
        if each.config_operation in {_APPEND, _SUBTRACT}:
            appends = each.config_operation == _APPEND
            config = TOPIC_CONFIGS.get(each.name)
            if config is None or config.kind is not Kind.LIST:
                operation = "APPEND" if appends else "SUBTRACT"
                message = f"Can't {operation} to key {each.name} because its type is not LIST."
                raise RefusedError(Code.INVALID_CONFIG, message)
            old = list_elements(configs.get(each.name, defaults[each.name]))
            named = list_elements(each.value)
            kept = [element for element in old if appends or element not in named]
            added = [element for element in named if appends and element not in old]
            configs[each.name] = ",".join([*kept, *added])
        elif each.config_operation == _DELETE:
            configs.pop(each.name, None)
        else:
            configs[each.name] = each.value
    try:
        return check_topic_configs(configs)
    except ConfigurationError as error:
        raise RefusedError(Code.INVALID_CONFIG, config_fault(error)) from error


def _check_form(resource: Any, *, count: int) -> None:
    """Refuse errors in the request that do not depend on its resources."""
    names, kind = [config.name for config in resource.configs], resource.resource_type
    nothing = [each.name for each in resource.configs if each.config_operation != _DELETE and each.value is None]
    faults = (
        (count > 1, "Each resource must appear at most once."),
        (len(set(names)) < len(names), "Error due to duplicate config keys"),
        (nothing, f"Null value not supported for : {', '.join(nothing)}"),
        (kind in _OTHER_TYPES, f"The server has no configs of {_OTHER_TYPES.get(kind)}."),
        (kind not in {_TOPIC, _BROKER}, f"Unknown resource type {kind}"),
    )
    if text := next((text for found, text in faults if found), None):
        raise RefusedError(Code.INVALID_REQUEST, text)
    if any(config.config_operation not in {_SET, _DELETE, _APPEND, _SUBTRACT} for config in resource.configs):
        raise RefusedError(Code.UNKNOWN_SERVER_ERROR)  # Kafka has a null pointer error here


def _check_access(access: Access, operation: AclOperation, resource: Any) -> None:
    if resource.resource_type == _TOPIC:
        if not access.allows(operation, Resource.TOPIC, resource.resource_name):
            raise RefusedError(Code.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    elif not access.allows(operation, Resource.CLUSTER, CLUSTER_NAME):
        raise RefusedError(Code.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


def _config(entry: ConfigEntry, request: Any, *, read_only: bool) -> Any:
    return _Config(
        name=entry.name,
        value=entry.value,
        read_only=read_only,
        config_source=entry.source.value,
        is_sensitive=entry.kind is Kind.PASSWORD,
        synonyms=[
            _Config.DescribeConfigsSynonym(name=name, value=value, source=source.value)
            for name, value, source in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=entry.kind.value,
        documentation=(entry.doc or None) if request.include_documentation else None,
    )
