"""TLS of connections to brokers, from the user's PEM files.

Left to itself, kafka-python takes an unreadable file for a broker that is not there, cannot read a list of revoked
certificates, and asks at the terminal for the password of an encrypted key.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.sockets import TlsSocket


def client_context(options: KafkaOptions) -> ssl.SSLContext | None:
    """The TLS context of connections; None where ``security.protocol`` has none.

    Raises:
        ConfigurationError: a file cannot be read or does not hold what it should.
    """
    if not options.security_protocol.endswith("SSL"):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = TlsSocket
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = options.ssl_check_hostname
    if options.ssl_ca_location is None:
        context.load_default_certs()
    else:
        with _reading("ssl.ca.location", options.ssl_ca_location, "trusted certificates"):
            context.load_verify_locations(options.ssl_ca_location)
    if options.ssl_crl_location is not None:
        with _reading("ssl.crl.location", options.ssl_crl_location, "revoked certificates"):
            context.load_verify_locations(options.ssl_crl_location)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    certificate, key = options.ssl_certificate_location, options.ssl_key_location
    if certificate is not None:
        files = certificate if key is None else f"{certificate}, with ssl.key.location={key}"
        with _reading("ssl.certificate.location", files, "the client's certificates and their private key"):
            # A key without a password must not make OpenSSL ask for one at the terminal.
            context.load_cert_chain(certificate, key, password=options.ssl_key_password or "")
    return context


@contextmanager
def _reading(option: str, files: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(
            option=option,
            value=files,
            rule=f"it is a PEM file with {what}, and this process cannot read it: {error}",
            remedy="correct the file, on the driver and on executors; ssl.key.password is for an encrypted key",
        ) from error
