"""Programs of others as local processes: PgBouncer, a schema registry, and a Kerberos realm."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg2
import trustme
from sqlalchemy import make_url

from spark_2pc_sink.testing import KafkaBroker, free_port
from spark_2pc_sink.testing.kafka_broker import QUICK_START_JVM
from spark_2pc_sink.testing.postgres import run_as
from spark_2pc_sink.testing.processes import CapabilityError, LocalServer, ServerError, find_java_home
from tests.harness.secure_kafka import SESSION_MS, add_listener

_STOP_DEADLINE_S = 10.0
#: Where Debian has servers, which is not always on the path of a user.
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"


class HelperServer(LocalServer):
    """A program that runs until it is stopped, on 127.0.0.1 and a port that stays the same."""

    def __init__(self, name: str, *, user: tuple[int, int] | None = None) -> None:
        super().__init__(name, prefix="spark-2pc-helper-", user=user)
        self.port: int = free_port()


# --- PgBouncer, from Debian's package ``pgbouncer`` ----------------------------------------------------------------


class PgBouncer(HelperServer):
    """A pooler in front of every database of one server.

    Args:
        url: of one of them, by which its user connects; the pooler lets in the same user alone.
        settings: more of ``pgbouncer.ini``, or other values of those set here.
    """

    _stop_signal = signal.SIGINT

    def __init__(self, url: str, pool_mode: str, settings: Mapping[str, str]) -> None:
        program = shutil.which("pgbouncer", path=_PATH)
        if program is None:
            raise CapabilityError("no PgBouncer: apt-get install pgbouncer")
        super().__init__("PgBouncer", user=run_as())  # it does not run as root
        self._program = program
        self._direct = make_url(url)
        self._settings = {
            "pool_mode": pool_mode,
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": str(self._directory / "users"),
            "admin_users": str(self._direct.username),
            **settings,
        }

    def url(self, host: str = "127.0.0.1") -> str:
        """The URL of the database by the pooler."""
        return self._direct.set(host=host, port=self.port).render_as_string(hide_password=False)

    def _command(self) -> list[str]:
        lines = ["[databases]", f"* = host={self._direct.host} port={self._direct.port or 5432}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in self._settings.items()]
        (self._directory / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        (self._directory / "users").write_text(f'"{self._direct.username}" "{self._direct.password}"\n')
        _give_to_server(self._directory)
        return [self._program, str(self._directory / "pgbouncer.ini")]

    def _serves(self) -> bool:
        try:
            # Its console, which needs no server behind it.
            user, password = self._direct.username, self._direct.password
            psycopg2.connect(host="127.0.0.1", port=self.port, user=user, password=password, dbname="pgbouncer").close()
        except psycopg2.OperationalError:
            return False
        return True


def _give_to_server(folder: Path) -> None:
    if (user := run_as()) is not None:
        for path in (folder, *folder.iterdir()):
            os.chown(path, *user)


#: Of TEST-NET-2 (RFC 5737): nothing is sent there, the kernel only says by which address it would be.
_FAR = ("198.51.100.1", 9)


def own_address() -> str:
    """An address of this machine that is not loopback's."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(_FAR)
        except OSError as error:
            raise CapabilityError(f"this machine has no address but loopback's: {error}") from error
        return str(probe.getsockname()[0])


@contextmanager
def far_postgres(url: str, folder: Path) -> Iterator[str]:
    """The URL of a database by such an address, without sslmode; there TLS may be used, and need not.

    PgBouncer has TLS there, as the server of the wheel was built without. Libpq sees no difference.

    Args:
        folder: where the certificate of its authority is put, authority.pem.
    """
    address = own_address()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    issued = authority.issue_cert(address)
    with TemporaryDirectory() as name:
        own = Path(name)
        issued.private_key_pem.write_to_path(own / "key.pem")
        (own / "certificate.pem").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        _give_to_server(own)
        settings = {
            "listen_addr": f"127.0.0.1,{address}",
            "client_tls_sslmode": "allow",
            "client_tls_key_file": str(own / "key.pem"),
            "client_tls_cert_file": str(own / "certificate.pem"),
        }
        with PgBouncer(url, "session", settings) as pooler:
            yield pooler.url(address)


# --- a schema registry -------------------------------------------------------------------------------------------


class SchemaRegistryServer(HelperServer):
    """Apicurio Registry, by its API that is Confluent's (version 7). It keeps in memory what it is told."""

    def __init__(self) -> None:
        folder = Path(os.environ.get("SPARK_2PC_REGISTRY_HOME", ".cache/apicurio-registry-3.0.9"))
        programs = sorted(folder.glob("*-runner.jar"))
        if not programs:
            raise CapabilityError(f"no schema registry in {folder}: make schema-registry")
        super().__init__("the schema registry")
        self._program = programs[0].resolve()

    @property
    def url(self) -> str:
        """Its address, as ``SchemaRegistryClient`` takes it."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def _command(self) -> list[str]:
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1"]
        options += [f"-Dquarkus.http.port={self.port}", "-Dquarkus.http.host=127.0.0.1"]
        return [str(find_java_home() / "bin" / "java"), *options, "-jar", str(self._program)]

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=1) as answer:  # noqa: S310 - http, made above
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


# --- Kerberos, from Debian's packages krb5-kdc, krb5-admin-server and krb5-user --------------------------------------

REALM = "EXAMPLE.ORG"
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


class KerberosRealm(HelperServer):
    """A key distribution centre.

    Args:
        life_s: seconds that a ticket lives, unless ``kinit`` asks for fewer.

    Attributes:
        environment: variables with which programs of this realm find it.
    """

    def __init__(self, *, life_s: int) -> None:
        self._programs = {name: shutil.which(name, path=_PATH) for name in _PROGRAMS}
        missing = [name for name, found in self._programs.items() if found is None]
        if missing or importlib.util.find_spec("gssapi") is None:
            raise CapabilityError(f"no Kerberos ({', '.join(missing) or 'package gssapi'} missing): run make kerberos")
        super().__init__("the Kerberos centre")
        folder = self._directory
        values = {"realm": REALM, "life_s": life_s, "port": self.port, "folder": folder}
        self.configuration = folder / "krb5.conf"
        self.configuration.write_text(_CLIENT.format(**values))
        (folder / "kdc.conf").write_text(_SERVER.format(**values))
        self.environment: dict[str, str] = {
            "KRB5_CONFIG": str(self.configuration),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{folder / 'tickets'}",
        }

    def keytab(self, principal: str) -> Path:
        """Add a principal, and return the file with its keys."""
        path = self._directory / f"{principal.replace('/', '-')}.keytab"
        self.run("kadmin.local", "addprinc", "-randkey", principal)
        self.run("kadmin.local", "ktadd", "-k", str(path), principal)
        return path

    def run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs[program]), *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=_PROGRAM_DEADLINE_S,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"{program} {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")

    def _command(self) -> list[str]:
        """The realm is made first."""
        self.run("kdb5_util", "create", "-s", "-P", "master")
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return ["env", *variables, str(self._programs["krb5kdc"]), "-n"]

    def _serves(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0


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
        self.address = add_listener(self.broker, "KERBEROS", host="localhost")
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
