"""librdkafka's settings for the sink's Kafka options, and its errors as this package's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final

from spark_2pc_sink.errors import (
    AuthorizationError,
    ConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicError,
)
from spark_2pc_sink.extras import extra
from spark_2pc_sink.logins.tokens import confluent_callback, token_source
from spark_2pc_sink.options import KafkaOptions

with extra("verify"):
    from confluent_kafka import KafkaError as LibraryError
    from confluent_kafka import KafkaException, libversion
    from confluent_kafka.admin import AdminClient

_TOKENS_SINCE: Final = (2, 13)
_NO_ANSWER = frozenset(
    {
        LibraryError._TIMED_OUT,  # noqa: SLF001 - the public name of a local error begins with an underscore
        LibraryError._TRANSPORT,  # noqa: SLF001
        LibraryError._ALL_BROKERS_DOWN,  # noqa: SLF001
        LibraryError._RESOLVE,  # noqa: SLF001
    }
)
_REFUSED = frozenset(
    {
        LibraryError.TOPIC_AUTHORIZATION_FAILED,
        LibraryError.GROUP_AUTHORIZATION_FAILED,
        LibraryError.CLUSTER_AUTHORIZATION_FAILED,
        LibraryError._AUTHENTICATION,  # noqa: SLF001
        LibraryError.SASL_AUTHENTICATION_FAILED,
    }
)
#: There is no such topic or partition.
NO_TOPIC = frozenset(
    {LibraryError.UNKNOWN_TOPIC_OR_PART, LibraryError._UNKNOWN_TOPIC, LibraryError._UNKNOWN_PARTITION}  # noqa: SLF001
)


def client_settings(options: KafkaOptions) -> dict[str, Any]:
    """What librdkafka has to know to reach and to be let in by the same brokers.

    Tokens come from where the sink's come from, and not from librdkafka's own client of a token endpoint.

    Raises:
        ConfigurationError: tokens are needed, and the library is too old for them; or Kerberos, and it has none.
    """
    if options.sasl_mechanism == "GSSAPI":
        _check_kerberos()
    source = token_source(options)
    if source is not None:
        _check_library()
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(options.bootstrap_servers),
        "client.id": f"{options.client_id}-verify",
        "security.protocol": options.security_protocol,
        "socket.timeout.ms": max(options.request_timeout_ms, 10),
        "socket.connection.setup.timeout.ms": max(options.socket_connection_setup_timeout_ms, 1_000),
        "reconnect.backoff.ms": options.reconnect_backoff_ms,
        "reconnect.backoff.max.ms": options.reconnect_backoff_max_ms,
        "sasl.mechanism": options.sasl_mechanism,
        "sasl.username": options.sasl_username,
        "sasl.password": options.sasl_password,
        "sasl.kerberos.service.name": options.kerberos_service_name,
        "oauth_cb": None if source is None else confluent_callback(source),
        "ssl.ca.location": options.ssl_ca_location,
        "ssl.certificate.location": options.ssl_certificate_location,
        # Where the certificate's file holds the key too, librdkafka has to be told so.
        "ssl.key.location": options.ssl_key_location or options.ssl_certificate_location,
        "ssl.key.password": options.ssl_key_password,
        "ssl.crl.location": options.ssl_crl_location,
        "ssl.endpoint.identification.algorithm": None if options.ssl_check_hostname else "none",
    }
    return {name: value for name, value in settings.items() if value is not None}


def _check_library() -> None:
    """Clients of before get a token only in calls of ``poll``, which an admin client never makes."""
    installed = version("confluent-kafka")
    if tuple(int(part) for part in installed.split(".")[:2]) < _TOKENS_SINCE:
        raise ConfigurationError(
            option="sasl.mechanism",
            value="OAUTHBEARER",
            rule=f"topics are read by confluent-kafka, here {installed}, and only 2.13 gets tokens without help",
            remedy="pip install 'confluent-kafka>=2.13'",
        )


def _check_kerberos() -> None:
    """The library says what it was built with only to those who want it."""
    try:
        AdminClient({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"})
    except KafkaException as error:
        raise ConfigurationError(
            option="sasl.mechanism",
            value="GSSAPI",
            rule=f"topics are read by confluent-kafka {version('confluent-kafka')}, whose librdkafka {libversion()[0]} "
            "was built without Kerberos, as in its wheels",
            remedy="give verify a --command-config with another login of the same brokers, or build librdkafka with "
            "libsasl2 and confluent-kafka from source (pip install --no-binary confluent-kafka)",
        ) from error


@contextmanager
def translated(operation: str, *, deadline_ms: int) -> Iterator[None]:
    """Let errors of librdkafka leave the block as errors of this package.

    Args:
        operation: for messages.
        deadline_ms: how long the operation may take.
    """
    try:
        yield
    except KafkaException as error:
        raise as_error(operation, error.args[0], deadline_ms=deadline_ms) from error


def as_error(operation: str, error: LibraryError, *, deadline_ms: int) -> KafkaError | KafkaTimeoutError:
    """An error of librdkafka as one of this package."""
    code, text = error.code(), error.str()
    if code in _NO_ANSWER:
        return KafkaTimeoutError(operation=operation, deadline_ms=deadline_ms, last_error=f"{error.name()}: {text}")
    kind = UnknownTopicError if code in NO_TOPIC else AuthorizationError if code in _REFUSED else KafkaError
    return kind(api=operation, code=code, name=error.name(), detail=text)
