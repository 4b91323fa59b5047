"""Broker properties: Kafka's names, defaults and bounds, and a few of our own.

Every supported property is one row below; the attribute is the name with its dots as underscores. A property without
a row is refused, never ignored. Sources: ``KafkaConfig`` and the configuration classes of Apache Kafka 4.4.0.

As in Kafka, a listener's protocol is selected by its name: ``listeners=SASL_SSL://host:port``, with
``listener.security.protocol.map`` for names that are not protocols. Its users are set by
``listener.name.<name>.plain.sasl.jaas.config``.

Some can be altered while the node runs (KIP-226), for one broker or as the default of all: the broker's own value
has priority, then the default of all, then the property from the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeAlias

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION
from spark_2pc_sink.options.settings import (
    HIDDEN,
    INT32_MAX,
    as_boolean,
    as_number,
    check_settings,
    nearest,
    refusal,
    refused,
    setting,
    setting_of,
    shown_name,
)

PLAIN: Final = "PLAIN"
#: Supported login mechanisms, if enabled by ``sasl.enabled.mechanisms``.
MECHANISMS: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")
#: The login module of Kafka's PLAIN mechanism. Only it has users with passwords; here they serve all mechanisms.
PLAIN_LOGIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: Prefix of a JAAS option that defines a user.
_USER_PREFIX: Final = "user_"
_ENDPOINT: Final = re.compile(r"(?P<name>\w+)://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\],]*):(?P<port>[0-9]{1,5})")
_PROTOCOL_MAP: Final = "listener.security.protocol.map"
_EVERY_INTERFACE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - refused, not bound
_JAAS_LOGIN: Final = re.compile(r"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)\b(?P<options>.*);\s*", re.DOTALL)
_JAAS_OPTION: Final = re.compile(r"""\s+(?P<key>\w+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s";]+))""")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_PORT_MAX: Final = 65_535


class SecurityProtocol(Enum):
    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def has_sasl(self) -> bool:
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


#: Default ``listener.security.protocol.map``: each protocol is a listener name too.
DEFAULT_PROTOCOL_MAP: Final = ",".join(f"{each.value}:{each.value}" for each in SecurityProtocol)


def address_text(host: str, port: int) -> str:
    """``HOST:PORT`` for clients, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Listener(NamedTuple):
    """One ``NAME://HOST:PORT`` and its protocol; its address in Metadata is the bound one unless ``advertised``.

    An empty host is every interface, and port 0 lets the system choose.
    """

    name: str
    host: str
    port: int
    protocol: SecurityProtocol
    advertised: tuple[str, int] | None


def parse_endpoints(text: str, *, option: str) -> dict[str, tuple[str, int]]:
    endpoints: dict[str, tuple[str, int]] = {}
    for part in text.split(","):
        match = _ENDPOINT.fullmatch(part.strip())
        if match is None or int(match["port"]) > _PORT_MAX or match["name"].upper() in endpoints:
            remedy = "pass 'PLAINTEXT://127.0.0.1:9092'; put an IPv6 address in square brackets"
            raise refused(option, text, "must be a list of NAME://HOST:PORT, each name once", remedy)
        endpoints[match["name"].upper()] = match["host"].strip("[]"), int(match["port"])
    return endpoints


def parse_listeners(listeners: str, *, advertised: str | None, protocol_map: str) -> tuple[Listener, ...]:
    endpoints = parse_endpoints(listeners, option="listeners")
    option = "advertised.listeners"
    public = {} if advertised is None else parse_endpoints(advertised, option=option)
    for name in public.keys() - endpoints.keys():
        rule = f"{name} is not the name of a listener"
        raise refused(option, advertised, rule, f"the listeners are {', '.join(endpoints)}")
    protocols = _parse_protocol_map(protocol_map)
    found = []
    for name, bound in endpoints.items():
        if name not in protocols:
            remedy = f"name the listener as one of {', '.join(protocols)}, or add {name}:PROTOCOL"
            raise refused(_PROTOCOL_MAP, name, "must have a protocol for each listener", remedy)
        host, port = public.get(name, bound)
        if host in _EVERY_INTERFACE:
            rule = "clients cannot connect to an address that means every interface"
            remedy = f"give {name}://HOST:PORT with a host that clients can reach"
            value = f"{name}://{address_text(host, port)}"
            raise ConfigurationError(option=option, value=value, rule=rule, remedy=remedy)
        found.append(Listener(name, *bound, protocols[name], public.get(name)))
    return tuple(found)


def _parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    known: dict[str, SecurityProtocol] = {}
    for entry in text.split(","):
        name, _, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not name or protocol not in SecurityProtocol.__members__:
            rule = f"must be a list of NAME:PROTOCOL; a protocol is one of {', '.join(SecurityProtocol.__members__)}"
            raise refused(_PROTOCOL_MAP, text, rule, nearest(protocol, SecurityProtocol.__members__))
        known[name] = SecurityProtocol[protocol]
    return known


@dataclass(frozen=True)
class Users:
    """Passwords by user name, for any mechanism; they are not part of the repr."""

    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str, *, option: str) -> Users:
        """Parse Kafka's SASL/PLAIN format: ``…PlainLoginModule required user_alice="secret" user_bob="other";``.

        The options ``username`` and ``password`` are a broker's login to other brokers, which do not exist here.
        """
        login = _JAAS_LOGIN.fullmatch(text)
        options = "" if login is None else login["options"].rstrip()
        users: dict[str, str] = {}
        others: set[str] = set()
        read = ""
        for found in _JAAS_OPTION.finditer(options):
            read += found[0]
            if found["key"].startswith(_USER_PREFIX):
                value = found["bare"] if found["quoted"] is None else _ESCAPED.sub(r"\1", found["quoted"])
                users[found["key"].removeprefix(_USER_PREFIX)] = value
            else:
                others.add(found["key"])
        required = login is not None and (login["module"], login["flag"].lower()) == (PLAIN_LOGIN_MODULE, "required")
        if not required or not users or read != options or others - {"username", "password", "serviceName"}:
            rule = "must be one PLAIN login with a user_NAME for each user and a semicolon at the end"
            raise refused(option, HIDDEN, rule, f"pass '{PLAIN_LOGIN_MODULE} required user_NAME=\"PASSWORD\";'")
        return cls(users)


class FixedProperty(NamedTuple):
    value: str
    rule: str
    kind: str


_ONE_REPLICA: Final = "there is one node, so a partition has one replica"
_NO_RETENTION: Final = "the server deletes no records by age or size"
#: Accepted with this value only, which describes the actual behaviour.
FIXED: Final[dict[str, FixedProperty]] = {
    "process.roles": FixedProperty("broker,controller", "the one node is both broker and controller", "LIST"),
    "default.replication.factor": FixedProperty("1", _ONE_REPLICA, "INT"),
    "offsets.topic.replication.factor": FixedProperty("1", _ONE_REPLICA, "SHORT"),
    "transaction.state.log.replication.factor": FixedProperty("1", _ONE_REPLICA, "SHORT"),
    "transaction.state.log.min.isr": FixedProperty("1", _ONE_REPLICA, "INT"),
    "min.insync.replicas": FixedProperty("1", _ONE_REPLICA, "INT"),
    "log.retention.ms": FixedProperty("-1", _NO_RETENTION, "LONG"),
    "log.retention.bytes": FixedProperty("-1", _NO_RETENTION, "LONG"),
    "log.message.timestamp.type": FixedProperty(
        "CreateTime", "records keep the time that the producer gave them", "STRING"
    ),
    "compression.type": FixedProperty("producer", "record batches are stored as the producer sent them", "STRING"),
    "delete.topic.enable": FixedProperty("true", "topics can be deleted", "BOOLEAN"),
    "log.index.interval.bytes": FixedProperty("4096", "the bytes between two entries of an index are fixed", "INT"),
    "ssl.client.auth": FixedProperty("none", "clients log in by SASL, not by certificate", "STRING"),
    "group.coordinator.rebalance.protocols": FixedProperty("classic", "groups speak the classic protocol", "LIST"),
}

#: Names that users are likely to try, letters and digits only, to the supported alternative.
KNOWN_ELSEWHERE: Final[dict[str, str]] = {
    "brokerid": "node.id",
    **dict.fromkeys(("logdir", "logdirs", "metadatalogdir"), "--data-dir"),
    **dict.fromkeys(("host", "port", "securityinterbrokerprotocol", "interbrokerlistenername"), "listeners"),
    **dict.fromkeys(("logretentionhours", "logretentionminutes"), "log.retention.ms"),
}


#: The largest 64-bit integer: Kafka's LONG.
INT64_MAX: Final = 2**63 - 1
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
#: The only supported authorizer (KIP-801).
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
#: Kafka 4.4.0 has levels up to 2. Other implementations of KIP-939 request 3.
TRANSACTION_VERSION_MAX: Final = 3
_JAAS_NAME: Final = re.compile(r"listener\.name\.(?P<listener>\w+)\.(?P<mechanism>[\w-]+)\.sasl\.jaas\.config")


def _count(default: int, why: str, *, unit: str = "", at_least: int = 1, at_most: int = INT32_MAX) -> Any:
    return setting(default, dotted=True, why=why, unit=unit, bounds=(at_least, at_most))


_ms: Final = partial(_count, unit="ms")
_bytes: Final = partial(_count, unit="bytes")


def _row(default: object, why: str, *, secret: bool = False) -> Any:
    return setting(default, dotted=True, why=why, secret=secret)


@dataclass(frozen=True, kw_only=True)
class BrokerProperties:
    """One broker's properties; ``users`` by listener name, ``given`` are the names that were set explicitly."""

    node_id: int = _count(1, "the id of the node in Metadata", at_least=0)
    listeners: str = _row("PLAINTEXT://127.0.0.1:9092", "where to listen, NAME://HOST:PORT,…")
    advertised_listeners: str | None = _row(None, "the addresses in Metadata; None: those of listeners")
    listener_security_protocol_map: str = _row(DEFAULT_PROTOCOL_MAP, "the protocol of each listener, by its name")
    max_connections: int = _count(INT32_MAX, "most connections at a time; further ones are refused")
    connections_max_idle_ms: int = _ms(10 * _MINUTE_MS, "an idle connection ends after this", at_most=INT64_MAX)
    socket_request_max_bytes: int = _bytes(104_857_600, "the longest request; a longer one ends its connection")
    queued_max_request_bytes: int = _bytes(
        536_870_912, "memory for the requests of all connections; Kafka's default is unlimited", at_most=INT64_MAX
    )
    socket_listen_backlog_size: int = _count(50, "most connections that wait to be accepted")
    connection_failed_authentication_delay_ms: int = _ms(
        100, "a failed login ends the connection after this", at_least=0
    )
    unstable_api_versions_enable: bool = _row(default=False, why="offer unreleased versions (InitProducerId 6)")

    num_partitions: int = _count(1, "partitions of a topic that is created without a number of them")
    auto_create_topics_enable: bool = _row(default=True, why="Metadata creates the missing topics that it names")
    message_max_bytes: int = _bytes(1_048_588, "the largest record batch accepted", at_least=0)
    log_segment_bytes: int = _bytes(1_073_741_824, "a segment file is rolled at this size", at_least=1_048_576)

    transaction_version: int = _count(
        2,
        "finalized level of the feature in a new data directory (KIP-890); Kafka sets it by kafka-storage",
        at_least=0,
        at_most=TRANSACTION_VERSION_MAX,
    )
    transaction_keep_prepared_enable: bool = _row(
        default=False, why="InitProducerId keeps prepared transactions (KIP-939)"
    )
    transaction_keep_prepared_form: Literal["bump", "unchanged"] = _row(
        "bump", "what keeping does: hand out the next epoch (apache/kafka#21735), or nothing (apache/kafka#22704)"
    )
    transaction_keep_prepared_version: int = _count(
        EPOCH_BUMP_VERSION,
        "the level of transaction.version from which a prepared transaction is kept; the highest level there is",
        at_least=EPOCH_BUMP_VERSION,
        at_most=TRANSACTION_VERSION_MAX,
    )
    transaction_late_commit_fenced_enable: bool = _row(
        default=False,
        why="a commit after the coordinator's own abort is PRODUCER_FENCED (KAFKA-20785), not INVALID_TXN_STATE",
    )
    transaction_two_phase_commit_enable: bool = _row(default=False, why="producers may use enable2Pc (KIP-939)")
    transaction_partition_verification_enable: bool = _row(default=True, why="old clients are verified (KIP-890)")
    transaction_max_timeout_ms: int = _ms(900_000, "the longest transaction.timeout.ms of a producer")
    transactional_id_expiration_ms: int = _ms(7 * _DAY_MS, "an id that is not used for this long is forgotten")
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _ms(
        10_000, "pause between searches for transactions that have timed out"
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _ms(
        _HOUR_MS, "pause between searches for expired transactional ids"
    )
    transaction_state_log_num_partitions: int = _count(50, "initial number of partitions of __transaction_state")
    transaction_state_log_segment_bytes: int = _bytes(104_857_600, "size of a segment file of __transaction_state")
    add_partitions_to_txn_retry_backoff_ms: int = _ms(
        20, "the longest pause between a leader's attempts to add a partition to a transaction"
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = _ms(
        100, "how long a leader tries to add a partition while the previous transaction is completed", at_least=0
    )
    producer_id_expiration_ms: int = _ms(_DAY_MS, "a leader forgets a producer id that is not used for this long")
    producer_id_expiration_check_interval_ms: int = _ms(600_000, "pause between searches for expired producer ids")

    offsets_topic_num_partitions: int = _count(50, "initial number of partitions of __consumer_offsets")
    offsets_topic_segment_bytes: int = _bytes(104_857_600, "size of a segment file of __consumer_offsets")
    offset_metadata_max_bytes: int = _bytes(4096, "the longest text that may be committed with an offset", at_least=0)
    group_min_session_timeout_ms: int = _ms(6000, "the shortest session timeout of a member", at_least=0)
    group_max_session_timeout_ms: int = _ms(1_800_000, "the longest session timeout of a member", at_least=0)
    group_initial_rebalance_delay_ms: int = _ms(3000, "how long an empty group waits for further members", at_least=0)
    group_max_size: int = _count(INT32_MAX, "most members of a group")

    sasl_enabled_mechanisms: str = _row(PLAIN, f"how clients may log in, one or more of {', '.join(MECHANISMS)}")
    sasl_server_max_receive_size: int = _count(524_288, "the longest request before the login is done, in bytes")
    ssl_keystore_type: Literal["PEM"] = _row("PEM", "the format of the keystore; PEM is the only one")
    ssl_keystore_location: str | None = _row(None, "a PEM file: private key and certificates")
    ssl_key_password: str | None = _row(None, "the password of an encrypted private key", secret=True)
    authorizer_class_name: Literal["org.apache.kafka.metadata.authorizer.StandardAuthorizer"] | None = _row(
        None, "the authorizer; None allows everything to everyone"
    )
    super_users: str | None = _row(None, "principals without restrictions, User:a;User:b")
    allow_everyone_if_no_acl_found: bool = _row(default=False, why="resources without an ACL are open to everyone")

    users: tuple[tuple[str, Users], ...] = setting((), why="read from the JAAS properties", secret=True)
    given: frozenset[str] = setting(frozenset(), why="what DescribeConfigs calls a static value")

    def __post_init__(self) -> None:
        check_settings(self)
        _check_together(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, str]) -> BrokerProperties:
        """Read the texts of a properties file, by Kafka's names; an unknown name is refused with the nearest one."""
        stripped = {name.strip(): value.strip() for name, value in values.items()}
        read: dict[str, Any] = {}
        users: dict[str, Users] = {}
        for name, value in stripped.items():
            if name in FIXED:
                if value.lower() != FIXED[name].value.lower():
                    raise refused(name, value, FIXED[name].rule, f"set {FIXED[name].value}, or leave it out")
            elif name in ROWS:
                read[ROWS[name].name] = _read(ROWS[name], value)
            elif login := _JAAS_NAME.fullmatch(name):
                listener = login["listener"]
                if login["mechanism"].upper() != PLAIN:  # it would never be used
                    remedy = f"leave it out, and give listener.name.{listener}.plain.sasl.jaas.config"
                    raise refused(name, HIDDEN, "the users of all mechanisms are those of PLAIN", remedy)
                users[listener.upper()] = Users.parse(value, option=name)
            else:
                raise _unknown(name, value)
        properties = cls(**read, users=tuple(users.items()), given=frozenset(stripped))
        _check_all_take_effect(properties)
        return properties

    @property
    def listening(self) -> tuple[Listener, ...]:
        return parse_listeners(
            self.listeners, advertised=self.advertised_listeners, protocol_map=self.listener_security_protocol_map
        )

    def users_of(self, listener: Listener) -> Users:
        return dict(self.users).get(listener.name, Users())

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.sasl_enabled_mechanisms.split(","))

    @property
    def super_user_principals(self) -> frozenset[str]:
        return frozenset(filter(None, (part.strip() for part in (self.super_users or "").split(";"))))


#: Kafka's name of a property to the field that holds it.
ROWS: Final = {shown_name(item): item for item in fields(BrokerProperties) if setting_of(item).dotted}


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Parse ``name=value`` texts, as given to ``--set``; a later duplicate wins."""
    values: dict[str, str] = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign or not name.strip():
            raise refused("--set", assignment, "must be NAME=VALUE", "pass for example --set num.partitions=3")
        values[name.strip()] = value
    return values


def _unknown(name: str, value: str) -> ConfigurationError:
    remedy = nearest(name, (*ROWS, *FIXED), known_elsewhere=KNOWN_ELSEWHERE)
    # The value of a misspelt name may be a password.
    meant_secret = any(repr(known) in remedy for known, item in ROWS.items() if setting_of(item).secret)
    shown = HIDDEN if meant_secret or re.search(r"password|jaas", name, re.IGNORECASE) else value
    return refused(name, shown, "the server does not have this property", remedy)


def _read(item: Field[Any], value: str) -> object:
    name = shown_name(item)
    if str(item.type) == "int":
        return as_number(name, value)
    if str(item.type) == "bool":
        return as_boolean(name, value, true=("true",), false=("false",))
    # Kafka reads an empty text as "not set" if that is the default.
    return None if not value and item.default is None else value


def _refuse(properties: BrokerProperties, name: str, rule: str, remedy: str) -> NoReturn:
    raise refusal(ROWS[name], getattr(properties, ROWS[name].name), rule, remedy)


def _check_together(properties: BrokerProperties) -> None:
    if any(each.protocol.has_tls for each in properties.listening) and properties.ssl_keystore_location is None:
        remedy = "name a PEM file with private key and certificates"
        _refuse(properties, "ssl.keystore.location", "a listener with TLS needs a certificate", remedy)
    for mechanism in properties.mechanisms:
        if mechanism not in MECHANISMS:
            rule = f"must be a list of mechanisms, each one of {', '.join(MECHANISMS)}"
            _refuse(properties, "sasl.enabled.mechanisms", rule, nearest(mechanism, MECHANISMS))
    if properties.group_min_session_timeout_ms > properties.group_max_session_timeout_ms:
        rule = f"must be at most group.max.session.timeout.ms ({properties.group_max_session_timeout_ms})"
        _refuse(properties, "group.min.session.timeout.ms", rule, "lower it")
    if properties.queued_max_request_bytes < properties.socket_request_max_bytes:
        rule = f"must be at least socket.request.max.bytes ({properties.socket_request_max_bytes})"
        _refuse(properties, "queued.max.request.bytes", rule, "raise it")
    if not all(":" in principal for principal in properties.super_user_principals):
        rule = "must be a list of principals, Type:name, separated by semicolons"
        _refuse(properties, "super.users", rule, "write User:name")


def check_level(properties: BrokerProperties, level: int) -> None:
    """Refuse a level of ``transaction.version`` above the one that keeps, or below it, where keeping has no effect."""
    wanted = properties.transaction_keep_prepared_version
    if level > wanted:
        rule = f"must be at least the finalized level of transaction.version, which is {level}"
        _refuse(properties, "transaction.keep.prepared.version", rule, f"set it to {level}")
    if properties.transaction_keep_prepared_enable and level < wanted:
        rule = f"a prepared transaction is kept from transaction.version {wanted} on; the finalized level is {level}"
        remedy = f"upgrade with kafka-features.sh first, or set transaction.version={wanted}, or leave it out"
        _refuse(properties, "transaction.keep.prepared.enable", rule, remedy)


def _check_all_take_effect(properties: BrokerProperties) -> None:
    """Refuse what was configured and would have no effect, security above all: the user believes to be protected."""
    if not properties.transaction_keep_prepared_enable and "transaction.keep.prepared.form" in properties.given:
        remedy = "set transaction.keep.prepared.enable=true, or leave it out"
        _refuse(properties, "transaction.keep.prepared.form", "no prepared transaction is kept", remedy)
    if properties.transaction_keep_prepared_enable and not properties.unstable_api_versions_enable:
        rule = "clients request it in InitProducerId 6, which is offered with unstable.api.versions.enable=true only"
        remedy = "set unstable.api.versions.enable=true, or leave it out"
        _refuse(properties, "transaction.keep.prepared.enable", rule, remedy)
    listening = properties.listening
    wanting = {each.name for each in listening if each.protocol.has_sasl}
    for name in sorted(wanting ^ dict(properties.users).keys()):
        option = f"listener.name.{name.lower()}.plain.sasl.jaas.config"
        if name in wanting:
            remedy = f'give it: {PLAIN_LOGIN_MODULE} required user_NAME="PASSWORD";'
            raise refused(option, None, "this listener requires a login", remedy)
        rule = "no listener of this name requires a login"
        raise refused(option, HIDDEN, rule, "give the listener a SASL protocol, or leave it out")
    has_tls = any(each.protocol.has_tls for each in listening)
    for name in sorted(properties.given & ROWS.keys()):
        if name.startswith("ssl.") and not has_tls:
            _refuse(properties, name, "no listener uses TLS", "choose SSL or SASL_SSL for a listener, or leave it out")
        if name in {"super.users", "allow.everyone.if.no.acl.found"} and properties.authorizer_class_name is None:
            remedy = f"set authorizer.class.name={STANDARD_AUTHORIZER}, or leave it out"
            _refuse(properties, name, "without an authorizer everything is allowed to everyone", remedy)


#: Altered configs, by the broker's id as a text; '' for the default of all brokers.
BrokerConfigs: TypeAlias = Mapping[str, Mapping[str, str]]

#: Alterable properties. All are booleans, and none is a secret.
DYNAMIC: Final = frozenset({"transaction.partition.verification.enable"})
_BOOLEANS: Final = {"true": True, "false": False}
#: Operations on lists (Kafka: AlterConfigOp.OpType).
_LIST_OPERATIONS: Final = {2: "append", 3: "subtract"}


def dynamic_fault(name: str, operation: int, value: str | None) -> tuple[Code, str] | None:
    """What is wrong with one operation on one of `DYNAMIC`, in Kafka's words; None if it is valid."""
    if operation in _LIST_OPERATIONS:
        return Code.INVALID_CONFIG, f"Config value {_LIST_OPERATIONS[operation]} is not allowed for config key: {name}"
    if value is not None and value.strip().lower() not in _BOOLEANS:
        text = f"Invalid value {value} for configuration {name}: Expected value to be either true or false"
        return Code.INVALID_REQUEST, text
    return None


def with_configs(properties: BrokerProperties, configs: BrokerConfigs) -> BrokerProperties:
    found = {**configs.get("", {}), **configs.get(str(properties.node_id), {})}
    changes = {ROWS[name].name: _BOOLEANS[text.strip().lower()] for name, text in found.items()}
    return replace(properties, **changes)  # type: ignore[arg-type]
