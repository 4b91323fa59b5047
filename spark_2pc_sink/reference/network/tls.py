"""TLS of the listeners: certificates from PEM files (KIP-651), and who a client's certificate says that it is."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.protocol.api import ANONYMOUS

_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
#: Attributes of a distinguished name that RFC 2253 has short names for; Java writes others as numbers.
_SHORT_NAMES: Final[Mapping[str, str]] = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED: Final = frozenset(',+"\\<>;')


def server_context(properties: BrokerProperties) -> ssl.SSLContext:
    """What the TLS listeners need.

    Raises:
        ConfigurationError: a file cannot be read or does not hold what it should.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A key without a password must not make OpenSSL ask for one at the terminal.
    password = properties.ssl_key_password or ""
    location = properties.ssl_keystore_location
    assert location is not None, "checked with the properties"
    try:
        context.load_cert_chain(location, password=password)
    except (OSError, ssl.SSLError) as error:
        rule = f"it is a PEM file with a private key and its certificates: {error}"
        remedy = "correct the file; ssl.key.password is for an encrypted key"
        raise ConfigurationError(option="ssl.keystore.location", value=location, rule=rule, remedy=remedy) from error
    context.verify_mode = _CLIENT_AUTH[properties.ssl_client_auth]
    trusted = properties.ssl_truststore_location
    if trusted is not None:
        try:
            context.load_verify_locations(trusted)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                option="ssl.truststore.location",
                value=trusted,
                rule=f"it is a PEM file with certificates: {error}",
                remedy="correct the file",
            ) from error
    return context


def certificate_principal(certificate: Mapping[str, Any] | None) -> str:
    """The principal of a client: its distinguished name as RFC 2253 writes it, as in Kafka's default principal builder.

    Args:
        certificate: as ``SSLSocket.getpeercert`` gives it; without one the client is anonymous.
    """
    subject = (certificate or {}).get("subject", ())
    if not subject:
        return ANONYMOUS
    parts = ("+".join(f"{_SHORT_NAMES.get(key, key)}={_escape(value)}" for key, value in each) for each in subject)
    return f"User:{','.join(reversed(list(parts)))}"


def _escape(value: str) -> str:
    escaped = "".join(f"\\{character}" if character in _ESCAPED else character for character in value)
    return f"\\{escaped}" if escaped.startswith(("#", " ")) else escaped
