"""A Kerberos realm on this machine, from Debian's packages krb5-kdc, krb5-admin-server and krb5-user."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from spark_2pc_sink.testing import KafkaBroker, free_port
from spark_2pc_sink.testing.errors import CapabilityError, ServerError
from spark_2pc_sink.testing.kafka_broker import QUICK_START_JVM
from spark_2pc_sink.testing.processes import Lifetime, ServerProcess
from spark_2pc_sink.testing.wait import poll_until

REALM = "EXAMPLE.ORG"
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 10.0
_PROGRAM_DEADLINE_S = 60.0
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "klist")
#: Names are compared as they are written. A clock that may differ by minutes would let tickets live on for as long.
_CLIENT = """\
[libdefaults]
    default_realm = {realm}
    dns_canonicalize_hostname = false
    dns_lookup_kdc = false
    dns_lookup_realm = false
    rdns = false
    clockskew = 1
    ticket_lifetime = {life_s}s
    udp_preference_limit = 1
[realms]
    {realm} = {{
        kdc = 127.0.0.1:{port}
    }}
[domain_realm]
    localhost = {realm}
"""
_SERVER = """\
[kdcdefaults]
    kdc_listen = ""
    kdc_tcp_listen = 127.0.0.1:{port}
[realms]
    {realm} = {{
        database_name = {folder}/principal
        key_stash_file = {folder}/stash
    }}
"""


class KerberosRealm(Lifetime):
    """A key distribution centre on 127.0.0.1.

    Args:
        life_s: seconds that a ticket lives, unless ``kinit`` asks for fewer.

    Attributes:
        environment: variables with which programs of this realm find it.
    """

    def __init__(self, *, life_s: int) -> None:
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        self._programs = {name: shutil.which(name, path=path) for name in _PROGRAMS}
        missing = [name for name, found in self._programs.items() if found is None]
        if missing or importlib.util.find_spec("gssapi") is None:
            raise CapabilityError(f"no Kerberos ({', '.join(missing) or 'package gssapi'} missing): run make kerberos")
        self._folder = Path(tempfile.mkdtemp(prefix="spark-2pc-kerberos-"))
        self._port = free_port()
        values = {"realm": REALM, "life_s": life_s, "port": self._port, "folder": self._folder}
        self.configuration = self._folder / "krb5.conf"
        self.configuration.write_text(_CLIENT.format(**values))
        (self._folder / "kdc.conf").write_text(_SERVER.format(**values))
        self.environment = {
            "KRB5_CONFIG": str(self.configuration),
            "KRB5_KDC_PROFILE": str(self._folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{self._folder / 'tickets'}",
        }
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Make the realm, and wait until it is served."""
        self.run("kdb5_util", "create", "-s", "-P", "master")
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        program = str(self._programs["krb5kdc"])
        process = self._process = ServerProcess(
            ["env", *variables, program, "-n"], log=self._folder / "kdc.log", folder=self._folder
        )
        if not poll_until(lambda: process.running and self._serves(), deadline_s=START_DEADLINE_S):
            raise ServerError(f"the centre did not serve within {START_DEADLINE_S} s:\n{process.log_tail()}")

    def close(self) -> None:
        """End it and remove what it kept."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, deadline_s=STOP_DEADLINE_S)
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def keytab(self, principal: str) -> Path:
        """Add a principal, and return the file with its keys."""
        path = self._folder / f"{principal.replace('/', '-')}.keytab"
        self.run("kadmin.local", "addprinc", "-randkey", principal)
        self.run("kadmin.local", "ktadd", "-k", str(path), principal)
        return path

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of Kerberos in this realm."""
        done = self._run(program, *arguments)
        if done.returncode != 0:
            raise ServerError(f"{program} {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._programs[program]), *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=_PROGRAM_DEADLINE_S,
            check=False,
        )

    def _serves(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self._port)) == 0


#: After so long a client has to log in again.
SESSION_MS: Final = 1_000


class KerberosKafka:
    """A broker with a listener for GSSAPI beside the plain one, whose sessions are short.

    Args:
        realm: that runs; it gets the keys of the client ``orders``.
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
