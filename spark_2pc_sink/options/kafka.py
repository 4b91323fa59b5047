"""Kafka client properties: the user's mapping, in librdkafka's spelling or Java's, as one frozen value.

Names without a field are those that the sink fixes, and those that belong elsewhere. Sources: Java's
``ProducerConfig`` (Kafka 4.x) and librdkafka's CONFIGURATION.md. A name is listed here when a user who copies a working
producer configuration is likely to use it; each gets the reason and an alternative.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from spark_2pc_sink.options.kafka_security import KERBEROS_TICKETS, SecurityOptions, check_security, read_security
from spark_2pc_sink.options.settings import (
    HIDDEN,
    INT32_MAX,
    Theme,
    as_boolean,
    as_number,
    as_text,
    check_settings,
    check_texts,
    milliseconds,
    nearest,
    options_of,
    refused,
    setting,
    setting_of,
    shown,
    shown_name,
)

#: librdkafka's default; Java has none and refuses an address without a port.
_DEFAULT_PORT: Final = 9092
_PORT_MAX: Final = 65535
_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\],]+)(?::(?P<port>[0-9]{1,5}))?")


def _servers(given: object, name: str) -> tuple[str, ...]:
    """'host:port,host:port', or a list of such texts, as a tuple of 'host:port'."""
    listed = isinstance(given, (list, tuple)) and all(isinstance(part, str) for part in given)
    parts = list(given) if isinstance(given, (list, tuple)) and listed else as_text(name, given).split(",")
    addresses = tuple(_address(part.strip(), name) for part in parts if part.strip())
    if not addresses:
        raise refused(name, given, "it must name at least one broker", "pass 'host:9092,host:9092'")
    return addresses


def _address(text: str, name: str) -> str:
    match = _ADDRESS.fullmatch(text)
    port = int(match["port"] or _DEFAULT_PORT) if match else 0
    if match is None or not 0 < port <= _PORT_MAX:
        rule = "each broker must be 'host:port', with an IPv6 address in square brackets, and without a protocol"
        raise refused(name, text, rule, "pass 'host:9092,host:9092', and the protocol as security.protocol")
    return f"{match['host']}:{port}"


_connect: Final = partial(setting, group=Theme.BROKERS, dotted=True)
_size: Final = partial(setting, group=Theme.SIZES, unit="bytes", bounds=(1, INT32_MAX))
#: A deadline longer than a day is in effect a hang.
_up_to_a_day: Final = partial(milliseconds, group=Theme.WAITS, at_most=86_400_000, dotted=True)


@dataclass(frozen=True, kw_only=True)
class KafkaOptions(SecurityOptions):
    """How to reach the brokers and how to write to them; made by :meth:`parse`. Secrets are not part of the repr."""

    bootstrap_servers: tuple[str, ...] = _connect(
        why="the brokers of the first connection, 'host:port' separated by commas; the default port is 9092",
        properties=("bootstrap.servers", "metadata.broker.list"),
        given="str",
        parse=_servers,
    )
    client_id: str = _connect("spark-2pc-sink", "the client's name in the broker's logs and quotas")
    socket_connection_setup_timeout_ms: int = _up_to_a_day(
        10_000, "time limit of connecting, after which it is retried; Java's default", group=Theme.BROKERS
    )
    reconnect_backoff_ms: int = _up_to_a_day(50, "first pause before reconnecting; Java's default", group=Theme.BROKERS)
    reconnect_backoff_max_ms: int = _up_to_a_day(
        1_000,
        "longest such pause; Java's default, so that a restarted broker is found well within max.block.ms",
        group=Theme.BROKERS,
    )
    metadata_max_age_ms: int = _up_to_a_day(
        300_000, "leaders are refreshed after this even without an error; Java's default", group=Theme.BROKERS
    )
    connections_max_idle_ms: int = _up_to_a_day(
        540_000,
        "idle connections are closed just before the broker would close them (10 minutes); Java's default",
        group=Theme.BROKERS,
        at_least=1_000,
    )
    batch_bytes_max: int = _size(
        1_000_000,
        "uncompressed bytes of records in one record batch; below the broker's default message.max.bytes (1 048 588), "
        "so that the default never causes RECORD_TOO_LARGE. Large, because a task has all its rows available",
        properties=("batch.size",),
    )
    max_request_bytes: int = _size(
        1_048_576,
        "a record larger than batch.size is sent alone, up to this size, uncompressed; Java's default",
        properties=("max.request.size", "message.max.bytes"),
    )
    receive_bytes_max: int = _size(
        100_000_000,
        "a longer response means a broken or foreign peer; librdkafka's default",
        properties=("receive.message.max.bytes",),
        bounds=(1_000, INT32_MAX),
    )
    max_in_flight: int = _size(
        5,
        "a broker remembers the last 5 batches of a producer, so more would lose idempotence (KIP-185)",
        properties=("max.in.flight.requests.per.connection", "max.in.flight"),
        bounds=(1, 5),
        unit="",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting(
        "zstd",
        "the best ratio of size to CPU time of the five",
        group=Theme.SIZES,
        properties=("compression.type", "compression.codec"),
    )
    zstd_level: int = _size(
        1,
        "takes half the time of Kafka's default, 3, for JSON of 110 bytes, with 3 % more bytes (KIP-390)",
        properties=("compression.zstd.level",),
        bounds=(-131_072, 22),
        unit="",
    )
    gzip_level: int = _size(
        -1,
        "0 to 9; -1 is zlib's own default, as with Kafka (KIP-390)",
        properties=("compression.gzip.level",),
        bounds=(-1, 9),
        unit="",
    )
    request_timeout_ms: int = _up_to_a_day(
        30_000,
        "a response that takes longer counts as lost, and the request is sent again; Java's default",
        properties=("request.timeout.ms", "socket.timeout.ms"),
    )
    delivery_timeout_ms: int = _up_to_a_day(
        120_000,
        "a record batch not acknowledged after this, retries included, fails the attempt; Java's default",
        properties=("delivery.timeout.ms", "message.timeout.ms"),
    )
    max_block_ms: int = _up_to_a_day(
        60_000, "deadline of one exchange with the transaction coordinator, and of metadata; Java's default"
    )
    retry_backoff_ms: int = _up_to_a_day(
        100, "first pause before a request is sent again, doubled each time; Java's default"
    )
    retry_backoff_max_ms: int = _up_to_a_day(1_000, "longest such pause; Java's default")
    transaction_timeout_ms: int | None = milliseconds(
        None,
        "how long a transaction outlives a crash if the broker does not grant two-phase commit; None: its maximum",
        group=Theme.WAITS,
        at_least=1_000,
        dotted=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_security(self)
        for low_name, high_name in _ORDERED:
            low, high = (getattr(self, FIELD_OF[name].name) for name in (low_name, high_name))
            if low > high:
                remedy = f"lower {low_name} or raise {high_name}"
                raise refused(low_name, low, f"it must not exceed {high_name}={high}", remedy)

    @classmethod
    def parse(cls, properties: object) -> KafkaOptions:
        """Parse the user's mapping; two spellings of a property must agree. Parsed options are returned unchanged."""
        if isinstance(properties, KafkaOptions):
            return properties
        if not isinstance(properties, Mapping) or not all(isinstance(name, str) for name in properties):
            rule = "it must be a mapping of Kafka client property names to values"
            raise refused("kafka", shown("kafka", properties), rule, "pass kafka={'bootstrap.servers': 'host:9092'}")
        check_texts("kafka", properties)
        plain = _without_fixed(properties)
        security, plain = read_security(plain)
        values: dict[str, Any] = {**security, **_read_plain(plain)}
        if "bootstrap_servers" not in values:
            raise refused("bootstrap.servers", None, "kafka={...} requires it", "add 'bootstrap.servers': 'host:9092'")
        # If one of two ordered properties is given, the other's default yields; two that are given must agree.
        for low_name, high_name in _ORDERED:
            low, high = FIELD_OF[low_name], FIELD_OF[high_name]
            if high.name in values:
                values.setdefault(low.name, min(low.default, values[high.name]))
            elif low.name in values:
                values[high.name] = max(high.default, values[low.name])
        return cls(**values)

    @property
    def compression_level(self) -> int | None:
        """The level of the chosen compression; None if it has no configurable level."""
        return {"zstd": self.zstd_level, "gzip": self.gzip_level}.get(self.compression)

    def login_config(self) -> dict[str, str | None]:
        """Keywords of the login mechanisms in ``kafka.net.sasl``."""
        user = self.sasl_username
        if user is not None and self.sasl_mechanism != "PLAIN":
            # Escaped for SCRAM, which kafka-python does not do (RFC 5802, ``saslname``).
            user = user.replace("=", "=3D").replace(",", "=2C")
        return {
            "security_protocol": self.security_protocol,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": self.sasl_password,
            "sasl_kerberos_service_name": self.kerberos_service_name or "kafka",
        }


#: The field of each property, by each of its names.
FIELD_OF: Final = {
    name: item for item in options_of(KafkaOptions) for name in setting_of(item).properties or (shown_name(item),)
}
#: Supported names without a field.
_SECURITY_ONLY = ("sasl.jaas.config", "sasl.login.callback.handler.class", "ssl.truststore.type", "ssl.keystore.type")


def property_names() -> tuple[str, ...]:
    return (*FIELD_OF, *_SECURITY_ONLY, *FIXED)


def _without_fixed(properties: Mapping[str, object]) -> dict[str, object]:
    """Drop fixed properties that have the fixed value; refuse other values, misplaced and unknown properties."""
    kept: dict[str, object] = {}
    for name, value in properties.items():
        if name in FIXED:
            allowed, why = FIXED[name]
            if str(value).lower() not in allowed:
                raise refused(name, value, why, "leave it out")
        elif name in REFUSED:
            raise refused(name, shown(name, value), "it must not be in kafka={...}", REFUSED[name])
        elif name in FIELD_OF or name in _SECURITY_ONLY:
            kept[name] = value
        else:
            raise refused(name, shown(name, value), "no such property in kafka={...}", _nearest_property(name))
    return kept


def _nearest_property(name: str) -> str:
    bare = name.removeprefix(SPARK_PREFIX)
    if bare != name and bare in FIELD_OF:
        return f"leave out the prefix and write {bare!r}"
    return nearest(bare, property_names(), known_elsewhere=KNOWN_ELSEWHERE)


def _read_plain(properties: Mapping[str, object]) -> dict[str, Any]:
    """Convert each value to the type of its field; two spellings of one field must agree."""
    values: dict[str, Any] = {}
    spelling: dict[str, str] = {}
    for name, raw in properties.items():
        item = FIELD_OF[name]
        about = setting_of(item)
        if about.parse is not None:
            value = about.parse(raw, name)
        elif str(item.type).startswith("int"):
            value = as_number(name, raw)
        elif str(item.type).startswith("bool"):
            value = as_boolean(name, raw, true=("https",), false=("none", ""))
        else:
            value = as_text(name, raw, secret=about.secret)
        if item.name in values and values[item.name] != value:
            rule = f"it is another spelling of {spelling[item.name]!r}, which has a different value"
            raise refused(name, HIDDEN if about.secret else raw, rule, "keep one of the two")
        values[item.name], spelling[item.name] = value, name
    return values


#: Ordered properties: the first must not exceed the second.
_ORDERED = (
    ("request.timeout.ms", "delivery.timeout.ms"),
    ("retry.backoff.ms", "retry.backoff.max.ms"),
    ("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
    ("batch.size", "max.request.size"),
)


#: Spark's Kafka sink passes client properties under this prefix; here they have none.
SPARK_PREFIX: Final = "kafka."
_ACKS: Final = (("all", "-1"), "a transactional producer waits for all in-sync replicas (KIP-98)")
#: The values that match the sink's behaviour, and why it cannot be changed.
FIXED: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "acks": _ACKS,
    "request.required.acks": _ACKS,
    "enable.idempotence": (("true",), "a transactional producer is idempotent (KIP-98)"),
}


#: What to do instead of giving one of these names.
_INSTEAD: Final = {
    "transactional.id": "give it as transactional_id=",
    "transaction.two.phase.commit.enable": (
        "leave it out: the sink finds out what the broker grants; TransactionalWriter has two_phase_commit=True"
    ),
    "key.serializer value.serializer": (
        "give key= and value= as SQL expressions of type string or binary; Spark does the conversion"
    ),
    "linger.ms queue.buffering.max.ms queue.buffering.max.messages queue.buffering.max.kbytes": (
        "leave it out: a task has all its rows available and fills each record batch without waiting"
    ),
    "batch.num.messages": "set batch.size, in bytes",
    "buffer.memory": "leave it out: a task holds at most 32 MiB of batches and 32 MiB of rows",
    "compression.level": "set compression.zstd.level or compression.gzip.level, which are Java's names",
    "compression.lz4.level": "leave it out: lz4 always uses its fastest level",
    "retries message.send.max.retries": "set delivery.timeout.ms: requests are sent again until that deadline",
    "partitioner partitioner.class": (
        "records go where Java's default partitioner puts them (murmur2 of the key); give partition= as a SQL "
        "expression"
    ),
    "interceptor.classes": "there is no JVM producer that could run them",
    "metric.reporters": "there is no JVM producer that could run them; the sink's figures are in its batch reports",
    (
        "sasl.client.callback.handler.class sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class"
    ): "give oauth_cb, a Python function that returns tokens",
    "sasl.login.class": "leave it out: there is no JVM that could run it",
    (
        "sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.retry.backoff.ms "
        "sasl.login.retry.backoff.max.ms"
    ): "leave it out: a token endpoint has 5 s to answer, and is retried until max.block.ms",
    (
        "sasl.login.refresh.window.factor sasl.login.refresh.window.jitter sasl.login.refresh.min.period.seconds "
        "sasl.login.refresh.buffer.seconds"
    ): "leave it out: tokens are renewed when 80 % of their life has passed",
    "sasl.oauthbearer.header.urlencode": (
        "leave it out: id and secret go into the header unchanged; if an issuer requires another form, give oauth_cb"
    ),
    (
        "sasl.kerberos.principal sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin "
        "sasl.kerberos.ticket.renew.window.factor sasl.kerberos.ticket.renew.jitter"
    ): f"leave it out: {KERBEROS_TICKETS}",
    "sasl.oauthbearer.grant.type": (
        "leave it out: a client asks with its id and secret (client_credentials); for another grant give oauth_cb, a "
        "function that returns tokens"
    ),
    (
        "sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file "
        "sasl.oauthbearer.assertion.algorithm"
    ): "give oauth_cb, a function that asks with an assertion and returns the token",
    "sasl.oauthbearer.metadata.authentication.type": (
        "give oauth_cb, a function that asks the metadata service; see docs/logins.md"
    ),
    "enable.sasl.oauthbearer.unsecure.jwt": "leave it out: anyone could forge an unsigned token",
    (
        "https.ca.pem ssl.ca.pem ssl.certificate.pem ssl.key.pem ssl.truststore.certificates "
        "ssl.keystore.certificate.chain ssl.keystore.key"
    ): "write the PEM text to a file that driver and executors can read, and give the ...location property",
    "ssl.truststore.password ssl.keystore.password": (
        "PEM files have no store password; convert the store to PEM and leave this out"
    ),
    "enable.ssl.certificate.verification": "give the broker's certificate authority as ssl.ca.location instead",
    "isolation.level": "it is a consumer property: set read_committed in the readers of the topic",
    "group.id": "it is a consumer property, and the sink does not consume",
}
REFUSED: Final = {name: remedy for names, remedy in _INSTEAD.items() for name in names.split()}

#: Names in other Python clients, letters and digits only.
KNOWN_ELSEWHERE: Final[Mapping[str, str]] = {
    "saslplainusername": "sasl.username",
    "saslplainpassword": "sasl.password",
    "sslcafile": "ssl.ca.location",
    "sslcertfile": "ssl.certificate.location",
    "sslkeyfile": "ssl.key.location",
    "sslpassword": "ssl.key.password",
    "sslcrlfile": "ssl.crl.location",
    "sslcheckhostname": "ssl.endpoint.identification.algorithm",
    "brokers": "bootstrap.servers",
    "brokerlist": "bootstrap.servers",
}
