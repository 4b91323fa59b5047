"""PostgreSQL in a container."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import psycopg2

from spark_2pc_sink.testing import TcpProxy, free_port
from tests.harness.containers import ContainerServer, require_image
from tests.harness.providers import GivenDatabase

IMAGE_VARIABLE = "SPARK_2PC_POSTGRES_IMAGE"
IMAGE_DEFAULT = "postgres:17"
_PORT = 5432
_USER = "postgres"
# Data of a test need not survive a power failure; they survive every SIGKILL without fsync.
_SETTINGS = {"fsync": "off", "jit": "off", "max_connections": "200"}


class ContainerPostgres(ContainerServer):
    """One PostgreSQL server.

    Args:
        settings: more of ``postgresql.conf``, or other values of those set here.
    """

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self._password = secrets.token_hex(8)
        self._clients = GivenDatabase(url=self._url("127.0.0.1", self.port, "postgres"))
        arguments = [f"-c{name}={value}" for name, value in {**_SETTINGS, **(settings or {})}.items()]
        super().__init__(
            require_image(IMAGE_VARIABLE, IMAGE_DEFAULT),
            ports={_PORT: self.port},
            environment={"POSTGRES_PASSWORD": self._password, "POSTGRES_INITDB_ARGS": "--no-sync"},
            command=["postgres", *arguments],
            alias="postgres",
        )

    @property
    def url(self) -> str:
        """SQLAlchemy's URL of the database ``postgres``, for making others."""
        return self._clients.url

    def database_url(self, name: str, *, port: int | None = None) -> str:
        """SQLAlchemy's URL of a database, through another port if one is given (a proxy's)."""
        return self._clients.database_url(name, port=port)

    def direct_url(self, name: str) -> str:
        """The URL of a database by the container's own address, for this machine only."""
        return self._url(self.address, _PORT, name)

    def create_database(self, name: str) -> str:
        """Create a database and return its URL."""
        return self._clients.create_database(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is still connected to it."""
        self._clients.drop_database(name)

    def proxy(self) -> TcpProxy:
        """A proxy in front of this server, not yet started; reach a database through it by ``database_url(port=…)``."""
        return TcpProxy(target_port=self.port)

    def _url(self, host: str, port: int, name: str) -> str:
        return f"postgresql+psycopg2://{_USER}:{self._password}@{host}:{port}/{name}"

    def _serves(self) -> bool:
        try:
            psycopg2.connect(
                host="127.0.0.1",
                port=self.port,
                user=_USER,
                password=self._password,
                dbname="postgres",
                connect_timeout=5,
            ).close()
        except psycopg2.OperationalError:
            return False
        return True
