"""Who provides the servers that tests talk to.

Tests see only the protocols :class:`Broker` and :class:`Database`. A provider makes them: as local processes (the
default), in containers, from addresses given on the command line, or, for another kind, by a class that fulfils
:class:`Provider` and an entry in :data:`PROVIDERS`. What a provider cannot do it refuses with CapabilityError, which
the fixtures turn into a skip with that reason, or into a failure where skips are not allowed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import pytest
from sqlalchemy import make_url

from spark_2pc_sink.testing import CapabilityError, KafkaBroker, PostgresServer, ReferenceCoordinator, TcpProxy
from spark_2pc_sink.testing.kafka_broker import create_topic
from tests.harness.sql import run_sql


@dataclass(frozen=True)
class BrokerRequest:
    """What a test asks of a broker; see KafkaBroker for the meaning."""

    transaction_version: int = 2
    two_phase_commit: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    #: For many tests, which leave it running and unharmed.
    shared: bool = False
    #: Keep no prepared transaction over InitProducerId, as every released Kafka; matters to who can.
    as_released: bool = False


class Server(Protocol):
    """Faults that every kind of server can be asked for.

    `kill` ends it as a crash would, `stop` in an orderly way, and after either `start` has the same data and address.
    `pause` stops it where it is: connections stay open and nothing answers. `close` ends it for good.
    """

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...
    def restart(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...
    def proxy(self) -> TcpProxy:
        """A proxy in front of it, not yet started."""


class Broker(Server, Protocol):
    """A Kafka cluster of one node; the properties are as `KafkaBroker` has them."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def transaction_version(self) -> int: ...
    @property
    def two_phase_commit(self) -> bool: ...
    def create_topic(
        self, name: str, *, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
    ) -> str: ...


class Database(Server, Protocol):
    @property
    def url(self) -> str:
        """SQLAlchemy's URL of a database from which others can be created."""

    def create_database(self, name: str) -> str: ...

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""

    def database_url(self, name: str, *, port: int | None = None) -> str:
        """The URL of a database, through another port if one is given."""


class Provider(Protocol):
    """Starts servers, or refuses with CapabilityError."""

    def start_broker(self, request: BrokerRequest) -> Broker: ...

    def start_postgres(self, settings: Mapping[str, str]) -> Database:
        """A PostgreSQL server that runs, with these settings beside the provider's own."""


#: Kafka's defaults. Those of KafkaBroker are for a broker that is killed and must be taken back soon; their heartbeats
#: are a third of what an idle broker does.
_NEVER_HARMED = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
#: Properties that make other storage of `StorageTool format`.
_FORMATTED_BY = frozenset({"log.dirs", "metadata.log.dir", "unstable.feature.versions.enable"})


class LocalProvider:
    """A server of its own for each call, as the other providers have it too."""

    def __init__(self) -> None:
        #: By transaction.version: a node that never runs, whose storage the others copy.
        self._formatted: dict[int, KafkaBroker] = {}

    def start_broker(self, request: BrokerRequest) -> Broker:
        broker = KafkaBroker(
            transaction_version=request.transaction_version,
            two_phase_commit=request.two_phase_commit,
            properties={**(_NEVER_HARMED if request.shared else {}), **request.properties},
        )
        if _FORMATTED_BY.isdisjoint(request.properties):
            broker.format_as(self._formatted_at(request.transaction_version))
        return broker.__enter__()

    def _formatted_at(self, transaction_version: int) -> KafkaBroker:
        """The tool that formats takes a virtual machine, and a second of processor time, for the same files."""
        if transaction_version not in self._formatted:
            broker = self._formatted[transaction_version] = KafkaBroker(transaction_version=transaction_version)
            weakref.finalize(self, broker.close)
            broker.format()
        return self._formatted[transaction_version]

    def start_postgres(self, settings: Mapping[str, str]) -> Database:
        return PostgresServer(settings=settings).__enter__()


class ReferenceProvider(LocalProvider):
    """The reference coordinator in place of Kafka; with 2PC it also keeps prepared transactions, as no Kafka does."""

    def start_broker(self, request: BrokerRequest) -> Broker:
        return ReferenceCoordinator(
            transaction_version=request.transaction_version,
            two_phase_commit=request.two_phase_commit,
            keep_prepared=not request.as_released,
            properties=request.properties,
        ).__enter__()


class ContainersProvider:
    # testcontainers takes half a second to import, which other providers' tests need not wait for.

    def start_broker(self, request: BrokerRequest) -> Broker:
        from tests.harness.containers import ContainerBroker  # noqa: PLC0415

        return ContainerBroker(
            transaction_version=request.transaction_version,
            two_phase_commit=request.two_phase_commit,
            properties=request.properties,
        ).__enter__()

    def start_postgres(self, settings: Mapping[str, str]) -> Database:
        from tests.harness.containers import ContainerPostgres  # noqa: PLC0415

        return ContainerPostgres(settings=settings).__enter__()


class _Unmanaged:
    """A server that somebody else runs: faults are refused, and closing leaves it alone."""

    def _refuse(self, *_: object) -> NoReturn:
        raise CapabilityError("the server was given by address: it cannot be stopped, paused or put behind a proxy")

    start = kill = stop = restart = pause = resume = proxy = _refuse

    def close(self) -> None:
        """Leave it as it is."""


class TopicsByAddress:
    """A broker that is reached by its address alone."""

    bootstrap: str

    def create_topic(
        self, name: str, *, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        create_topic(self.bootstrap, name, partitions=partitions, replication=replication, config=config)
        return name


@dataclass(frozen=True)
class GivenBroker(_Unmanaged, TopicsByAddress):
    """A broker that somebody else runs; what it can do is as the command line says."""

    bootstrap: str
    transaction_version: int
    two_phase_commit: bool


class DatabasesByUrl:
    """A PostgreSQL server that is reached by its URL alone, by a user who may create databases."""

    url: str

    def create_database(self, name: str) -> str:
        run_sql(self.url, f'CREATE DATABASE "{name}"')
        return self.database_url(name)

    def drop_database(self, name: str) -> None:
        run_sql(self.url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def database_url(self, name: str, *, port: int | None = None) -> str:
        url = make_url(self.url).set(database=name)
        return (url if port is None else url.set(port=port)).render_as_string(hide_password=False)


@dataclass(frozen=True)
class GivenDatabase(_Unmanaged, DatabasesByUrl):
    """A PostgreSQL server that somebody else runs."""

    url: str


@dataclass(frozen=True)
class GivenProvider:
    """Servers by address, from ``--kafka`` and ``--postgres``; one that was not given is started locally."""

    broker: GivenBroker | None
    database: GivenDatabase | None

    def start_broker(self, request: BrokerRequest) -> Broker:
        if self.broker is None:
            return LocalProvider().start_broker(request)
        offered = (self.broker.transaction_version, self.broker.two_phase_commit)
        if request.properties or offered != (request.transaction_version, request.two_phase_commit):
            raise CapabilityError(f"the given broker is {self.broker}, the test asks for {request}")
        return self.broker

    def start_postgres(self, settings: Mapping[str, str]) -> Database:
        """The given server, if no settings are asked for."""
        if self.database is None:
            return LocalProvider().start_postgres(settings)
        if settings:
            raise CapabilityError(f"the given PostgreSQL cannot be started with {dict(settings)}")
        return self.database


def _given(config: pytest.Config) -> Provider:
    kafka, postgres = config.getoption("--kafka"), config.getoption("--postgres")
    return GivenProvider(
        broker=GivenBroker(
            bootstrap=kafka,
            transaction_version=config.getoption("--kafka-transaction-version"),
            two_phase_commit=config.getoption("--kafka-two-phase-commit"),
        )
        if kafka
        else None,
        database=GivenDatabase(url=postgres) if postgres else None,
    )


#: The values of ``--provider``.
PROVIDERS: dict[str, Callable[[pytest.Config], Provider]] = {
    "local": lambda _: LocalProvider(),
    "reference": lambda _: ReferenceProvider(),
    "containers": lambda _: ContainersProvider(),
    "given": _given,
}


class BrokerPool:
    """The brokers of a session: each kind is started when it is first asked for, and ended with the session."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._brokers: dict[tuple[int, bool, bool], Broker] = {}

    def get(self, *, transaction_version: int, two_phase_commit: bool, as_released: bool = False) -> Broker:
        kind = (transaction_version, two_phase_commit, as_released and isinstance(self._provider, ReferenceProvider))
        if kind not in self._brokers:
            self._brokers[kind] = self._provider.start_broker(
                BrokerRequest(
                    transaction_version=transaction_version,
                    two_phase_commit=two_phase_commit,
                    as_released=as_released,
                    shared=True,
                )
            )
        return self._brokers[kind]

    def close(self) -> None:
        while self._brokers:
            self._brokers.popitem()[1].close()
