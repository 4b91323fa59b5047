"""Apache Kafka with a listener that asks for Kerberos tickets."""

from __future__ import annotations

from typing import Final

from spark_2pc_sink.testing import KafkaBroker, free_port
from spark_2pc_sink.testing.kafka_broker import QUICK_START_JVM
from tests.harness.kerberos import REALM, KerberosRealm

#: After so long a client has to log in again.
SESSION_MS: Final = 1_000


class KerberosKafka:
    """A broker with a listener for GSSAPI beside the plain one, whose sessions are short.

    Args:
        realm: that runs; it gets the keys of the client ``orders``.

    Attributes:
        address: of the listener.
        client_keytab: the file with the client's keys.
    """

    def __init__(self, realm: KerberosRealm) -> None:
        self.realm = realm
        self.client_keytab = realm.keytab("orders")
        service_keytab = realm.keytab("broker/localhost")
        java = (*QUICK_START_JVM, f"-Djava.security.krb5.conf={realm.configuration}")
        self.broker = KafkaBroker(two_phase_commit=True, jvm_options=java)
        self.address = f"localhost:{free_port()}"
        for name, value in {
            "listeners": f"KERBEROS://{self.address}",
            "advertised.listeners": f"KERBEROS://{self.address}",
            "listener.security.protocol.map": "KERBEROS:SASL_PLAINTEXT",
        }.items():
            self.broker.properties[name] += f",{value}"
        self.broker.properties |= {
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "broker",
            "listener.name.kerberos.gssapi.connections.max.reauth.ms": str(SESSION_MS),
            "listener.name.kerberos.gssapi.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required "
            f'useKeyTab=true storeKey=true keyTab="{service_keytab}" principal="broker/localhost@{REALM}";',
        }

    def properties(self, **properties: str | int) -> dict[str, str | int]:
        """Properties of a client; with underscores for dots."""
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}
        given = {**login, "sasl_kerberos_service_name": "broker", **properties}
        return {"bootstrap.servers": self.address, **{name.replace("_", "."): given[name] for name in given}}
