"""A broker with a listener for each protocol, certificates of each kind of fault, and one that asks for a password."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.testing import KafkaBroker, ReferenceCoordinator, free_port

PLAIN_USER, PLAIN_PASSWORD = "alice", f"plain{secrets.token_hex(8)}"
SESSION_MS = 1_000
_MODULES: Final = "org.apache.kafka.common.security"
_DAY: Final = timedelta(days=1)
#: A listener whose certificate has expired, and one whose certificate is not valid yet: days from now.
_DATED: Final = {"EXPIRED": (-20, -10), "FUTURE": (10, 20)}


def add_listener(
    server: KafkaBroker | ReferenceCoordinator,
    name: str,
    *,
    protocol: str = "SASL_PLAINTEXT",
    host: str = "127.0.0.1",
    advertised: str | None = None,
) -> str:
    """Give a broker that has not started a listener beside its own; its address for clients.

    Args:
        advertised: the host by which clients know it, where that is another one.
    """
    port = free_port()
    address = f"{advertised or host}:{port}"
    server.properties["listeners"] += f",{name}://{host}:{port}"
    server.properties["advertised.listeners"] += f",{name}://{address}"
    server.properties["listener.security.protocol.map"] += f",{name}:{protocol}"
    return address


class SecureKafka:
    """A broker with a listener for each protocol, all of the name localhost and of no other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = trustme.CA()
        self._make_certificates()
        self.broker = KafkaBroker(two_phase_commit=True)
        # Not the address: what is compared with the certificate is the name in the answer to Metadata, too.
        listeners = {name: name for name in ("SASL_PLAINTEXT", "SASL_SSL", "SSL")}
        listeners |= {"SESSIONS": "SASL_PLAINTEXT", **dict.fromkeys(_DATED, "SSL")}
        self.ports = {
            name: int(add_listener(self.broker, name, protocol=protocol, advertised="localhost").rpartition(":")[2])
            for name, protocol in listeners.items()
        }
        properties = self.broker.properties
        plain = f'{_MODULES}.plain.PlainLoginModule required user_{PLAIN_USER}="{PLAIN_PASSWORD}";'
        properties |= {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "authority.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
            # Its own client would have to trust a certificate whose dates are wrong.
            **{f"listener.name.{name.lower()}.ssl.keystore.location": str(folder / f"{name}.pem") for name in _DATED},
            "listener.name.sessions.plain.connections.max.reauth.ms": str(SESSION_MS),
        }
        for name in ("sasl_plaintext", "sasl_ssl", "sessions"):
            properties[f"listener.name.{name}.plain.sasl.jaas.config"] = plain
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                jaas = f"{_MODULES}.scram.ScramLoginModule required;"
                properties[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = jaas

    def _make_certificates(self) -> None:
        authority, stranger = self._authority, trustme.CA()
        authority.cert_pem.write_to_path(self.folder / "authority.pem")
        stranger.cert_pem.write_to_path(self.folder / "stranger.pem")
        self._write("server", authority.issue_cert("localhost", common_name="the broker"))
        self._write("client", authority.issue_cert("client@example.org"))
        self._write("strange_client", stranger.issue_cert("client@example.org"))
        now = datetime.now(timezone.utc)
        for name, (first, last) in _DATED.items():
            issued = authority.issue_cert(
                "localhost", common_name=name, not_before=now + first * _DAY, not_after=now + last * _DAY
            )
            self._write(name, issued)

    def date(self, name: str, last: datetime) -> None:
        """Make another certificate for a listener, which the broker has from its next start on."""
        begin = datetime.now(timezone.utc) - _DAY
        self._write(name, self._authority.issue_cert("localhost", common_name=name, not_before=begin, not_after=last))

    def _write(self, name: str, issued: trustme.LeafCert) -> None:
        write_certificate(self.folder / f"{name}.pem", issued)

    def properties(self, listener: str, *, host: str = "localhost", **properties: str | int) -> dict[str, str | int]:
        """Properties of a client of a listener, which trusts the broker's authority where there is TLS.

        Args:
            host: by which the client knows the broker.
            **properties: of Kafka's client, with underscores for dots.
        """
        protocol = {"SESSIONS": "SASL_PLAINTEXT", **dict.fromkeys(_DATED, "SSL")}.get(listener, listener)
        given = {"security_protocol": protocol, **properties}
        if str(given["security_protocol"]).endswith("SSL"):
            given.setdefault("ssl_ca_location", str(self.folder / "authority.pem"))
        port = self.ports.get(listener, self.broker.port)
        dotted = {name.replace("_", "."): value for name, value in given.items()}
        return {"bootstrap.servers": f"{host}:{port}", **dotted}

    def options(self, listener: str, **properties: Any) -> KafkaOptions:
        return KafkaOptions.parse(self.properties(listener, **properties))


def write_certificate(path: Path, issued: trustme.LeafCert) -> None:
    """The key and its certificate; the key in PKCS #8, as Kafka wants it."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(pem + b"".join(part.bytes() for part in issued.cert_chain_pems))


def plain_login(**changes: str) -> dict[str, str]:
    return {"sasl_mechanism": "PLAIN", "sasl_username": PLAIN_USER, "sasl_password": PLAIN_PASSWORD, **changes}


#: A password with characters that SCRAM and the text of JAAS might take for their own.
USER, PASSWORD = "alice", "pa,ss=word"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM)


class LoginBroker:
    """A broker with a listener SASL_PLAINTEXT beside the plain one, and one user."""

    def __init__(self, server: KafkaBroker | ReferenceCoordinator) -> None:
        self.server = server
        self.address = add_listener(server, "LOGIN")
        users = f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        server.properties |= {
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.login.plain.sasl.jaas.config": users,
        }
        if isinstance(server, KafkaBroker):
            module = f"{_MODULES}.scram.ScramLoginModule required;"
            names = (f"listener.name.login.{mechanism.lower()}.sasl.jaas.config" for mechanism in SCRAM)
            server.properties |= dict.fromkeys(names, module)

    def properties(self, mechanism: str, *, user: str = USER, password: str = PASSWORD) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
