"""Broker properties as DescribeConfigs shows them: value, type, and where the value comes from."""

from __future__ import annotations

from dataclasses import Field, dataclass
from enum import Enum
from typing import Any, Final

from spark_2pc_sink.options.settings import INT32_MAX, setting_of, shown_name
from spark_2pc_sink.reference.config.properties import ROWS, BrokerProperties
from spark_2pc_sink.reference.config.property_rules import FIXED

#: Texts that are lists to Kafka.
_LISTS: Final = frozenset({"listeners", "advertised.listeners", "sasl.enabled.mechanisms"})


class Source(Enum):
    """Where the value of a property comes from; the numbers are those of DescribeConfigs (KIP-226)."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class Kind(Enum):
    """Kafka's type of a property; the numbers are those of DescribeConfigs v3 (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


@dataclass(frozen=True, kw_only=True)
class PropertyEntry:
    """One property as DescribeConfigs shows it.

    Args:
        value: its text; None hides a secret one.
        default: its text, None where there is none.
        doc: what it does.
    """

    name: str
    value: str | None
    source: Source
    kind: Kind
    default: str | None
    doc: str

    @property
    def sensitive(self) -> bool:
        """True where the value is a secret."""
        return self.kind is Kind.PASSWORD


def property_entries(properties: BrokerProperties) -> tuple[PropertyEntry, ...]:
    """Every property, set or not, by name."""
    found = (property_entry(properties, name) for name in sorted((*ROWS, *FIXED)))
    return tuple(entry for entry in found if entry is not None)


def property_entry(properties: BrokerProperties, name: str) -> PropertyEntry | None:
    """One property, set or not; None where the server has none of this name."""
    if name in ROWS:
        return _entry(properties, name, ROWS[name])
    fixed = FIXED.get(name)
    if fixed is None:
        return None
    return PropertyEntry(
        name=name,
        value=fixed.value,
        source=_source(properties, name),
        kind=Kind[fixed.kind],
        default=fixed.value,
        doc=fixed.rule,
    )


def _source(properties: BrokerProperties, name: str) -> Source:
    return Source.STATIC_BROKER_CONFIG if name in properties.given else Source.DEFAULT_CONFIG


def _entry(properties: BrokerProperties, name: str, item: Field[Any]) -> PropertyEntry:
    about = setting_of(item)
    return PropertyEntry(
        name=name,
        value=None if about.secret else _text(getattr(properties, item.name)),
        source=_source(properties, name),
        kind=_kind(item),
        default=None if about.secret else _text(item.default),
        doc=about.why,
    )


def _kind(item: Field[Any]) -> Kind:
    about = setting_of(item)
    if about.secret:
        return Kind.PASSWORD
    if str(item.type) == "bool":
        return Kind.BOOLEAN
    if str(item.type) == "int":
        return Kind.INT if (about.at_most or 0) <= INT32_MAX else Kind.LONG
    return Kind.LIST if shown_name(item) in _LISTS else Kind.STRING


def _text(value: object) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)
