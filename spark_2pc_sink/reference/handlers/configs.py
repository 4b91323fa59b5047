"""DescribeConfigs and IncrementalAlterConfigs, of topics and of this broker.

Of the broker's properties, which are given at its start, those of `dynamic_configs` can be altered. There are no
configs of groups, client metrics and loggers.

Configs of this broker as DescribeConfigs shows them, with what was altered while it runs (KIP-226).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsResponse, IncrementalAlterConfigsResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.properties import DYNAMIC, BrokerConfigs, dynamic_fault
from spark_2pc_sink.reference.config.topic_configs import (
    TOPIC_CONFIGS,
    ConfigEntry,
    Kind,
    PropertyEntry,
    Source,
    check_topic_configs,
    list_elements,
    note_topic_configs,
    property_entries,
    topic_entries,
)
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, Access, Operation, Resource
from spark_2pc_sink.reference.handlers.cluster import MALFORMED
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.catalog_state import name_fault
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext

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
    source = Source.DYNAMIC_DEFAULT_BROKER_CONFIG
    return Config(
        name=name,
        value=text.strip().lower(),
        config_source=source.value,
        synonyms=synonyms([(name, text, source)], request),
        config_type=Kind.BOOLEAN.value,
        documentation=None,
    )


def synonyms(found: Iterable[tuple[str, str | None, Source]], request: Any) -> list[Any]:
    """The places as a client sees them that asked for them."""
    if not request.include_synonyms:
        return []
    return [_Synonym(name=name, value=value, source=source.value) for name, value, source in found]


_Result: Final = DescribeConfigsResponse.DescribeConfigsResult
_Altered: Final = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse

# Types of resources (Kafka: ConfigResource.Type).
_TOPIC, _BROKER = 2, 4
_OTHER_TYPES: Final = {8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
# Operations (Kafka: AlterConfigOp.OpType).
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


@dataclass(frozen=True)
class _Outcome:
    """A code with its text, and what was found or is to be set."""

    code: Code
    message: str | None
    configs: Any = ()


class ConfigHandlers:
    """DescribeConfigs, IncrementalAlterConfigs.

    Args:
        catalog: has the topics, and the broker's properties.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def handlers(self) -> Handlers:
        return {
            Api.DESCRIBE_CONFIGS: Handler(1, 4, self.describe_configs),
            Api.INCREMENTAL_ALTER_CONFIGS: Handler(0, 1, self.incremental_alter_configs),
        }

    # --- DescribeConfigs ---------------------------------------------------------------------------------------------

    async def describe_configs(self, context: RequestContext, request: Any) -> Any:
        """Every config, or those that are named, with the places its value could come from (KIP-226, KIP-569)."""
        known = {_TOPIC, _BROKER, *_OTHER_TYPES}
        if any(resource.resource_type not in known for resource in request.resources):
            outcomes = [_Outcome(Code.INVALID_REQUEST, MALFORMED) for _ in request.resources]
        else:
            outcomes = [self._described(context.access, resource, request) for resource in request.resources]
        results = [
            _Result(
                error_code=outcome.code,
                error_message=outcome.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=list(outcome.configs),
            )
            for resource, outcome in zip(request.resources, outcomes, strict=True)
        ]
        return DescribeConfigsResponse(results=results)

    def _described(self, access: Access, resource: Any, request: Any) -> _Outcome:
        denied = _denied(access, Operation.DESCRIBE_CONFIGS, resource)
        if denied is not None:
            return denied
        keys = set(resource.configuration_keys or ())

        def wanted(name: str) -> bool:
            return not keys or name in keys

        if resource.resource_type == _TOPIC:
            return self._described_topic(resource.resource_name, request, wanted)
        if resource.resource_type == _BROKER:
            return self._described_broker(resource.resource_name, request, wanted)
        return _unsupported(resource.resource_type)

    def _described_topic(self, name: str, request: Any, wanted: Callable[[str], bool]) -> _Outcome:
        fault = name_fault(name)
        if fault is not None:
            return _Outcome(Code.INVALID_TOPIC_EXCEPTION, fault)
        topic = self._catalog.topic(name)
        if topic is None:
            return _Outcome(Code.UNKNOWN_TOPIC_OR_PARTITION, "")
        entries = topic_entries(topic.configs, self._catalog.properties, wanted)
        return _Outcome(Code.NONE, "", [_topic_config(each, request) for each in entries])

    def _described_broker(self, name: str, request: Any, wanted: Callable[[str], bool]) -> _Outcome:
        if not name:
            altered = sorted(self._catalog.broker_configs.get("", {}).items())
            return _Outcome(Code.NONE, "", [default_config(*each, request) for each in altered if wanted(each[0])])
        fault = self._other_node(name, f"expected {self._catalog.node_id} or empty string, but received", "Broker")
        if fault is not None:
            return fault
        entries = (each for each in property_entries(self._catalog.started_with) if wanted(each.name))
        configs, node_id = self._catalog.broker_configs, self._catalog.node_id
        return _Outcome(Code.NONE, "", [broker_config(each, configs, node_id, request) for each in entries])

    def _other_node(self, name: str, expected: str, what: str) -> _Outcome | None:
        try:
            node_id = int(name)
        except ValueError:
            return _Outcome(Code.INVALID_REQUEST, f"{what} id must be an integer, but it is: {name}")
        if node_id == self._catalog.node_id:
            return None
        return _Outcome(Code.INVALID_REQUEST, f"Unexpected broker id, {expected} {name}")

    # --- IncrementalAlterConfigs -------------------------------------------------------------------------------------

    async def incremental_alter_configs(self, context: RequestContext, request: Any) -> Any:
        """Alter each resource as a whole or not at all (KIP-339; ConfigAdminManager, ConfigurationControlManager)."""
        counts = Counter((each.resource_type, each.resource_name) for each in request.resources)
        responses = []
        for resource in request.resources:
            if counts[resource.resource_type, resource.resource_name] > 1:
                outcome = _Outcome(Code.INVALID_REQUEST, "Each resource must appear at most once.")
            else:
                outcome = await self._altered(context.access, resource, validate_only=request.validate_only)
            responses.append(
                _Altered(
                    error_code=outcome.code,
                    error_message=outcome.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return IncrementalAlterConfigsResponse(responses=responses)

    async def _altered(self, access: Access, resource: Any, *, validate_only: bool) -> _Outcome:
        refusal = _malformed(resource) or _denied(access, Operation.ALTER_CONFIGS, resource)
        refusal = refusal or self._broker_refusal(resource) or _topic_name_refusal(resource)
        if refusal is not None:
            return refusal
        if resource.resource_type == _BROKER:
            if not validate_only:
                changes = {
                    each.name: each.value if each.config_operation == _SET else None for each in resource.configs
                }
                await self._catalog.alter_broker_configs(resource.resource_name, changes)
            return _Outcome(Code.NONE, None)
        defaults = self._defaults()
        topic = self._catalog.topic(resource.resource_name)
        outcome = _altered_configs(topic.configs if topic else {}, resource.configs, defaults)
        if topic is None and outcome.code is Code.NONE:
            return _unknown_topic(resource.resource_name)
        if outcome.code is Code.NONE and not validate_only:
            # From the configs as they are when its turn comes: another request may be ahead.
            altered = await self._catalog.alter_configs(
                resource.resource_name, lambda now: _altered_configs(now, resource.configs, defaults).configs
            )
            if altered is None:
                return _unknown_topic(resource.resource_name)
            named = {config.name for config in resource.configs}
            note_topic_configs(altered.name, {name: altered.configs[name] for name in named & altered.configs.keys()})
        return outcome

    def _broker_refusal(self, resource: Any) -> _Outcome | None:
        if resource.resource_type != _BROKER:
            return None
        if resource.resource_name:
            fault = self._other_node(resource.resource_name, f"expected {self._catalog.node_id}, but received", "Node")
            if fault is not None:
                return fault
        names = ", ".join(config.name for config in resource.configs if config.name not in DYNAMIC)
        if names:
            return _Outcome(Code.INVALID_REQUEST, f"Cannot update these configs dynamically: [{names}]")
        for each in resource.configs:
            wrong = dynamic_fault(each.name, each.config_operation, each.value)
            if wrong is not None:
                return _Outcome(*wrong)
        return None

    def _defaults(self) -> dict[str, str]:
        return {entry.config.name: entry.value for entry in topic_entries({}, self._catalog.properties)}


def config_fault(error: ConfigurationError) -> str:
    """What a client is told of a topic config that `check_topic_config` refused, in Kafka's words."""
    if error.option not in TOPIC_CONFIGS:
        return f"Unknown topic config name: {error.option}"
    return f"Invalid value {error.value} for configuration {error.option}: {error.rule}"


def _altered_configs(now: Mapping[str, str], operations: Iterable[Any], defaults: Mapping[str, str]) -> _Outcome:
    """The configs of a topic after the operations; an element is appended once (KIP-339)."""
    configs = dict(now)
    for each in operations:
        if each.config_operation in {_APPEND, _SUBTRACT}:
            config = TOPIC_CONFIGS.get(each.name)
            if config is None or config.kind is not Kind.LIST:
                verb = "APPEND" if each.config_operation == _APPEND else "SUBTRACT"
                message = f"Can't {verb} to key {each.name} because its type is not LIST."
                return _Outcome(Code.INVALID_CONFIG, message)
            old = list_elements(configs.get(each.name, defaults[each.name]))
            named = list_elements(each.value)
            kept = [element for element in old if each.config_operation == _APPEND or element not in named]
            added = [element for element in named if element not in old] if each.config_operation == _APPEND else []
            configs[each.name] = ",".join([*kept, *added])
        elif each.config_operation == _DELETE:
            configs.pop(each.name, None)
        else:
            configs[each.name] = each.value
    try:
        return _Outcome(Code.NONE, None, check_topic_configs(configs))
    except ConfigurationError as error:
        return _Outcome(Code.INVALID_CONFIG, config_fault(error))


def _malformed(resource: Any) -> _Outcome | None:
    """What is wrong with the request, whatever it is about."""
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        return _Outcome(Code.INVALID_REQUEST, "Error due to duplicate config keys")
    nothing = [
        config.name for config in resource.configs if config.config_operation != _DELETE and config.value is None
    ]
    if nothing:
        return _Outcome(Code.INVALID_REQUEST, f"Null value not supported for : {', '.join(nothing)}")
    if resource.resource_type in _OTHER_TYPES:
        return _unsupported(resource.resource_type)
    if resource.resource_type not in {_TOPIC, _BROKER}:
        return _Outcome(Code.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
    if any(config.config_operation not in {_SET, _DELETE, _APPEND, _SUBTRACT} for config in resource.configs):
        return _Outcome(Code.UNKNOWN_SERVER_ERROR, None)  # Kafka runs into a null pointer here
    return None


def _denied(access: Access, operation: Operation, resource: Any) -> _Outcome | None:
    if resource.resource_type == _TOPIC:
        if access.allows(operation, Resource.TOPIC, resource.resource_name):
            return None
        return _Outcome(Code.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    if access.allows(operation, Resource.CLUSTER, CLUSTER_NAME):
        return None
    return _Outcome(Code.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


def _topic_name_refusal(resource: Any) -> _Outcome | None:
    name = resource.resource_name
    if resource.resource_type != _TOPIC:
        return None
    if not name:
        return _Outcome(Code.INVALID_REQUEST, "Default topic resources are not allowed.")
    fault = name_fault(name)
    return None if fault is None else _Outcome(Code.INVALID_TOPIC_EXCEPTION, fault)


def _unsupported(resource_type: int) -> _Outcome:
    return _Outcome(Code.INVALID_REQUEST, f"The server has no configs of {_OTHER_TYPES[resource_type]}.")


def _unknown_topic(name: str) -> _Outcome:
    return _Outcome(Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _topic_config(entry: ConfigEntry, request: Any) -> Any:
    return Config(
        name=entry.config.name,
        value=entry.value,
        config_source=entry.source.value,
        synonyms=synonyms(entry.synonyms, request),
        config_type=entry.config.kind.value,
        documentation=entry.config.doc if request.include_documentation else None,
    )
