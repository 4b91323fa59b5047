"""The user's mapping of Kafka client properties, in librdkafka's spelling or Java's, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.kafka_names import FIXED, KNOWN_ELSEWHERE, REFUSED, SPARK_PREFIX
from spark_2pc_sink.options.kafka_oauth import read_token_function
from spark_2pc_sink.options.kafka_security import SecurityOptions, check_security, read_security
from spark_2pc_sink.options.kafka_values import as_boolean, as_number, as_servers, as_text
from spark_2pc_sink.options.settings import (
    HIDDEN,
    INT32_MAX,
    check_settings,
    milliseconds,
    nearest,
    options_of,
    setting,
    setting_of,
)
from spark_2pc_sink.options.text_checks import check_texts, shown

#: A deadline longer than a day is in effect a hang.
_up_to_a_day = partial(milliseconds, at_most=86_400_000)


@dataclass(frozen=True, kw_only=True)
class KafkaOptions(SecurityOptions):
    """How to reach the brokers and how to write to them.

    Made by :meth:`parse`; every field documents the property names, its default and the reason for it. Secrets are
    not part of the repr.

    Raises:
        ConfigurationError: a value is out of bounds, or two of them contradict each other.
    """

    bootstrap_servers: tuple[str, ...] = setting(
        properties=("bootstrap.servers", "metadata.broker.list"),
        given="str",
        why="where the first connection goes, 'host:port' separated by commas; the port is 9092 unless given",
    )
    client_id: str = setting(
        "spark-2pc-sink", properties=("client.id",), why="the name that the broker's logs and quotas know the client by"
    )
    request_timeout_ms: int = _up_to_a_day(
        30_000,
        properties=("request.timeout.ms", "socket.timeout.ms"),
        why="an answer later than this counts as lost and the request is sent again; Java's default",
    )
    delivery_timeout_ms: int = _up_to_a_day(
        120_000,
        properties=("delivery.timeout.ms", "message.timeout.ms"),
        why="a record batch not acknowledged after this, retries included, fails the attempt; Java's default",
    )
    max_block_ms: int = _up_to_a_day(
        60_000,
        properties=("max.block.ms",),
        why="deadline of one exchange with the transaction coordinator, and of metadata; Java's default",
    )
    retry_backoff_ms: int = _up_to_a_day(
        100,
        properties=("retry.backoff.ms",),
        why="first pause before a request is sent again, doubled each time; Java's default",
    )
    retry_backoff_max_ms: int = _up_to_a_day(
        1_000,
        properties=("retry.backoff.max.ms",),
        why="longest such pause; Java's default",
    )
    batch_bytes_max: int = setting(
        1_000_000,
        properties=("batch.size",),
        unit="bytes",
        at_least=1,
        at_most=INT32_MAX,
        why="uncompressed bytes of records in one record batch; below message.max.bytes of a stock broker (1 048 588), "
        "so that the default never meets RECORD_TOO_LARGE. Big, because a task has all its rows at hand",
    )
    max_request_bytes: int = setting(
        1_048_576,
        properties=("max.request.size", "message.max.bytes"),
        unit="bytes",
        at_least=1,
        at_most=INT32_MAX,
        why="a single record beyond batch.size travels alone up to this size, uncompressed; Java's default",
    )
    receive_bytes_max: int = setting(
        100_000_000,
        properties=("receive.message.max.bytes",),
        unit="bytes",
        at_least=1_000,
        at_most=INT32_MAX,
        why="a longer answer means a broken or foreign peer; librdkafka's default",
    )
    max_in_flight: int = setting(
        5,
        properties=("max.in.flight.requests.per.connection", "max.in.flight"),
        at_least=1,
        at_most=5,
        why="a broker remembers the last 5 batches of a producer, so more would lose idempotence (KIP-185)",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting(
        "zstd",
        properties=("compression.type", "compression.codec"),
        why="the smallest batches of the five for the least processor time over them",
    )
    zstd_level: int = setting(
        1,
        properties=("compression.zstd.level",),
        at_least=-131_072,
        at_most=22,
        why="JSON of 110 bytes takes half of the time that Kafka's default, 3, takes, and 3 % more bytes (KIP-390)",
    )
    gzip_level: int = setting(
        -1,
        properties=("compression.gzip.level",),
        at_least=-1,
        at_most=9,
        why="0 to 9; -1 is what zlib takes by itself, as with Kafka (KIP-390)",
    )
    transaction_timeout_ms: int | None = milliseconds(
        None,
        properties=("transaction.timeout.ms",),
        at_least=1_000,
        why="how long a crash may last where the broker does not grant two-phase commit; None: as long as it allows",
    )
    socket_connection_setup_timeout_ms: int = _up_to_a_day(
        10_000,
        properties=("socket.connection.setup.timeout.ms",),
        why="a connection not made after this is tried again; Java's default",
    )
    reconnect_backoff_ms: int = _up_to_a_day(
        50,
        properties=("reconnect.backoff.ms",),
        why="first pause before connecting again; Java's default",
    )
    reconnect_backoff_max_ms: int = _up_to_a_day(
        1_000,
        properties=("reconnect.backoff.max.ms",),
        why="longest such pause; Java's default, so that a restarted broker is found well within max.block.ms",
    )
    metadata_max_age_ms: int = _up_to_a_day(
        300_000,
        properties=("metadata.max.age.ms",),
        why="leaders are looked up again after this even without an error; Java's default",
    )
    connections_max_idle_ms: int = _up_to_a_day(
        540_000,
        properties=("connections.max.idle.ms",),
        at_least=1_000,
        why="closed by us just before the broker would (10 minutes); Java's default",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_security(self)
        for low_name, high_name in _ORDERED:
            _check_order(self, low_name, high_name)

    @classmethod
    def parse(cls, properties: object) -> KafkaOptions:
        """Parse the user's whole mapping, or refuse it. Parsed options are returned unchanged.

        Args:
            properties: lower-case names as in librdkafka or Java, to texts, numbers or booleans. Two spellings of one
                property are accepted if they agree.

        Raises:
            ConfigurationError: an unknown name (the nearest is named), an invalid value, contradictory values, or a
                property that only the sink may set.
        """
        if isinstance(properties, KafkaOptions):
            return properties
        if not isinstance(properties, Mapping) or not all(isinstance(name, str) for name in properties):
            raise ConfigurationError(
                option="kafka",
                value=shown("kafka", properties),
                rule="it is a mapping of Kafka client property names to values",
                remedy="pass kafka={'bootstrap.servers': 'host:9092'}",
            )
        check_texts("kafka", properties)
        plain = _without_fixed(properties)
        security, plain = read_security(plain)
        values: dict[str, Any] = {**security, **_read_plain(plain)}
        if "bootstrap_servers" not in values:
            raise ConfigurationError(
                option="bootstrap.servers",
                value=None,
                rule="kafka={...} needs it",
                remedy="add 'bootstrap.servers': 'host:9092'",
            )
        _let_defaults_yield(values)
        return cls(**values)

    @property
    def compression_level(self) -> int | None:
        """The level of the chosen compression; None if it has no configurable level."""
        return {"zstd": self.zstd_level, "gzip": self.gzip_level}.get(self.compression)

    def login_config(self) -> dict[str, str | None]:
        """Keywords of the login mechanisms in ``kafka.net.sasl``."""
        return {
            "security_protocol": self.security_protocol,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self._login_name(),
            "sasl_plain_password": self.sasl_password,
            "sasl_kerberos_service_name": self.kerberos_service_name or "kafka",
        }

    def _login_name(self) -> str | None:
        """The user name escaped for SCRAM, which kafka-python does not do (RFC 5802, ``saslname``)."""
        if self.sasl_username is None or self.sasl_mechanism == "PLAIN":
            return self.sasl_username
        return self.sasl_username.replace("=", "=3D").replace(",", "=2C")


_FIELD_OF = {name: item for item in options_of(KafkaOptions) for name in setting_of(item).properties}
#: Supported names without a field.
_SECURITY_ONLY = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "ssl.truststore.type",
    "ssl.keystore.type",
)


def property_names() -> tuple[str, ...]:
    """Every name that ``kafka={...}`` takes."""
    return (*_FIELD_OF, *_SECURITY_ONLY, *FIXED)


def _without_fixed(properties: Mapping[str, object]) -> dict[str, object]:
    """Drop fixed properties that have the fixed value; refuse other values, misplaced and unknown properties."""
    kept: dict[str, object] = {}
    for name, value in properties.items():
        if name in FIXED:
            allowed, why = FIXED[name]
            if str(value).lower() not in allowed:
                raise ConfigurationError(option=name, value=value, rule=why, remedy="leave it out")
        elif name in REFUSED:
            rule = "it is not set in kafka={...}"
            raise ConfigurationError(option=name, value=shown(name, value), rule=rule, remedy=REFUSED[name])
        elif name in _FIELD_OF or name in _SECURITY_ONLY:
            kept[name] = value
        else:
            raise ConfigurationError(
                option=name,
                value=shown(name, value),
                rule="no such property in kafka={...}",
                remedy=_nearest_property(name),
            )
    return kept


def _nearest_property(name: str) -> str:
    bare = name.removeprefix(SPARK_PREFIX)
    if bare != name and bare in _FIELD_OF:
        return f"leave out the prefix and write {bare!r}"
    return nearest(bare, property_names(), known_elsewhere=KNOWN_ELSEWHERE)


def _read_plain(properties: Mapping[str, object]) -> dict[str, Any]:
    """Convert each value to the type of its field; two spellings of one field must agree."""
    values: dict[str, Any] = {}
    spelling: dict[str, str] = {}
    for name, raw in properties.items():
        item = _FIELD_OF[name]
        secret = setting_of(item).secret
        value = _read_value(name, str(item.type), raw, secret=secret)
        if item.name in values and values[item.name] != value:
            raise ConfigurationError(
                option=name,
                value=HIDDEN if secret else raw,
                rule=f"it is another spelling of {spelling[item.name]!r}, which has a different value",
                remedy="keep one of the two",
            )
        values[item.name], spelling[item.name] = value, name
    return values


def _read_value(name: str, kind: str, raw: object, *, secret: bool) -> object:
    if name == "oauth_cb":
        return read_token_function(raw)
    if kind.startswith("tuple"):
        return as_servers(name, raw)
    if kind.startswith("int"):
        return as_number(name, raw)
    if kind.startswith("bool"):
        return as_boolean(name, raw, true=("https",), false=("none", ""))
    text = as_text(name, raw, secret=secret)
    if name == "sasl.oauthbearer.method":
        return text.lower()
    # Both client families ignore the case of these.
    return text.upper() if name in ("security.protocol", "sasl.mechanism", "sasl.mechanisms") else text


#: Ordered properties: the first must not exceed the second.
_ORDERED = (
    ("request.timeout.ms", "delivery.timeout.ms"),
    ("retry.backoff.ms", "retry.backoff.max.ms"),
    ("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
    ("batch.size", "max.request.size"),
)


def _let_defaults_yield(values: dict[str, Any]) -> None:
    """If the user gave one of two ordered properties, adjust the other's default; two that were given must agree."""
    for low_name, high_name in _ORDERED:
        low, high = _FIELD_OF[low_name], _FIELD_OF[high_name]
        if high.name in values:
            values.setdefault(low.name, min(low.default, values[high.name]))
        elif low.name in values:
            values[high.name] = max(high.default, values[low.name])


def _check_order(options: KafkaOptions, low_name: str, high_name: str) -> None:
    low, high = (getattr(options, _FIELD_OF[name].name) for name in (low_name, high_name))
    if low > high:
        raise ConfigurationError(
            option=low_name,
            value=low,
            rule=f"it is not above {high_name}={high}",
            remedy=f"lower {low_name} or raise {high_name}",
        )
