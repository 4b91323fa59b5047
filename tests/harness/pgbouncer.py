"""PgBouncer as a local process, in front of a PostgreSQL server, from Debian's package ``pgbouncer``."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg2
import trustme
from sqlalchemy import make_url

from spark_2pc_sink.testing.errors import CapabilityError, ServerError
from spark_2pc_sink.testing.ports import free_port
from spark_2pc_sink.testing.postgres import run_as
from spark_2pc_sink.testing.processes import Lifetime, ServerProcess
from spark_2pc_sink.testing.wait import poll_until

START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 10.0


class PgBouncer(Lifetime):
    """A pooler on 127.0.0.1 for every database of one server, which one user reaches through it.

    Args:
        user: who connects, to the pooler as to the server.
        settings: more of ``pgbouncer.ini``, or other values of those set here.
    """

    def __init__(
        self,
        pool_mode: str,
        *,
        host: str,
        port: int,
        user: str,
        password: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        # Where Debian has it is not always on the path of a user.
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            raise CapabilityError("no PgBouncer: apt-get install pgbouncer")
        self.port = free_port()
        self._program = program
        self._user, self._password = user, password
        self._database = f"host={host} port={port}"
        self._run_as = run_as()
        self._folder = Path(tempfile.mkdtemp(prefix="spark-2pc-pgbouncer-"))
        self._settings = {
            "pool_mode": pool_mode,
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": str(self._folder / "users"),
            "admin_users": user,
            **(settings or {}),
        }
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start it and wait until it lets clients in."""
        lines = ["[databases]", f"* = {self._database}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in self._settings.items()]
        (self._folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        (self._folder / "users").write_text(f'"{self._user}" "{self._password}"\n')
        if self._run_as is not None:
            # It does not run as root.
            for path in (self._folder, *self._folder.iterdir()):
                os.chown(path, *self._run_as)
        process = self._process = ServerProcess(
            [self._program, str(self._folder / "pgbouncer.ini")],
            log=self._folder / "pgbouncer.log",
            folder=self._folder,
            user=self._run_as,
        )

        def serves() -> bool:
            if not process.running:
                raise ServerError(f"PgBouncer ended by itself. Its log ends:\n{process.log_tail()}")
            return self._serves()

        if not poll_until(serves, deadline_s=START_DEADLINE_S):
            raise ServerError(f"PgBouncer did not serve within {START_DEADLINE_S} s:\n{process.log_tail()}")

    def close(self) -> None:
        """End it and remove what it kept."""
        if self._process is not None:
            self._process.end(signal.SIGINT, deadline_s=STOP_DEADLINE_S)
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serves(self) -> bool:
        try:
            # Its console, which needs no server behind it.
            psycopg2.connect(
                host="127.0.0.1", port=self.port, user=self._user, password=self._password, dbname="pgbouncer"
            ).close()
        except psycopg2.OperationalError:
            return False
        return True


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
    direct = make_url(url)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    issued = authority.issue_cert(address)
    with TemporaryDirectory() as name:
        own = Path(name)
        issued.private_key_pem.write_to_path(own / "key.pem")
        (own / "certificate.pem").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        for path in (own, *own.iterdir()):
            if (user := run_as()) is not None:  # the pooler's
                os.chown(path, *user)
        pooler = PgBouncer(
            "session",
            host=str(direct.host),
            port=direct.port or 5432,
            user=str(direct.username),
            password=str(direct.password),
            settings={
                "listen_addr": f"127.0.0.1,{address}",
                "client_tls_sslmode": "allow",
                "client_tls_key_file": str(own / "key.pem"),
                "client_tls_cert_file": str(own / "certificate.pem"),
            },
        )
        with closing(pooler):
            pooler.start()
            yield direct.set(host=address, port=pooler.port).render_as_string(hide_password=False)
