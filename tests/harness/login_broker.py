"""A broker with a listener that asks for a user and a password."""

from __future__ import annotations

from typing import Any

from spark_2pc_sink.testing import KafkaBroker, ReferenceCoordinator, free_port

#: A password with characters that SCRAM and the text of JAAS might take for their own.
USER, PASSWORD = "alice", "pa,ss=word"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM)
_MODULES = "org.apache.kafka.common.security"


class LoginBroker:
    """A broker with a listener SASL_PLAINTEXT beside the plain one, and one user.

    Args:
        server: not started.
    """

    def __init__(self, server: KafkaBroker | ReferenceCoordinator) -> None:
        self.server = server
        self.address = f"127.0.0.1:{free_port()}"
        for name, value in {
            "listeners": f"LOGIN://{self.address}",
            "advertised.listeners": f"LOGIN://{self.address}",
            "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT",
        }.items():
            server.properties[name] += f",{value}"
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
        """Properties of a client."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
