"""Broker configs that can be altered while the node runs (KIP-226): for one broker, or as the default of all.

The one that counts is the broker's own, then the default of all, then the property of the start. Texts are kept as a
client gave them, as Kafka keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.config.properties import ROWS, BrokerProperties

#: What is set, by the broker's id as a text; '' for the default of all brokers.
BrokerConfigs: TypeAlias = Mapping[str, Mapping[str, str]]

#: Those that can be altered. All are booleans, and none is a secret.
DYNAMIC: Final = frozenset({"transaction.partition.verification.enable"})
_BOOLEANS: Final = {"true": True, "false": False}
_APPEND, _SUBTRACT = 2, 3
_WORDS: Final = {_APPEND: "append", _SUBTRACT: "subtract"}


def dynamic_fault(name: str, operation: int, value: str | None) -> tuple[Code, str] | None:
    """What is wrong with one operation on one of `DYNAMIC`, in Kafka's words; None when nothing is."""
    if operation in _WORDS:
        return Code.INVALID_CONFIG, f"Config value {_WORDS[operation]} is not allowed for config key: {name}"
    if value is not None and value.strip().lower() not in _BOOLEANS:
        text = f"Invalid value {value} for configuration {name}: Expected value to be either true or false"
        return Code.INVALID_REQUEST, text
    return None


def with_configs(properties: BrokerProperties, configs: BrokerConfigs) -> BrokerProperties:
    """The properties of the start with what was altered since."""
    found = {**configs.get("", {}), **configs.get(str(properties.node_id), {})}
    changes = {ROWS[name].name: _BOOLEANS[text.strip().lower()] for name, text in found.items()}
    return replace(properties, **changes)  # type: ignore[arg-type]
