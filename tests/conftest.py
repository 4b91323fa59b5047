"""Fixtures: the servers, fresh databases and topics in them, and the Spark session. README.md lists them."""

from __future__ import annotations

import gc
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from spark_2pc_sink.testing import CapabilityError
from spark_2pc_sink.testing.spark import start_spark
from tests.harness import ROOT
from tests.harness.providers import (
    PROVIDERS,
    Broker,
    BrokerPool,
    BrokerRequest,
    ContainersProvider,
    Database,
    Provider,
    ReferenceProvider,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.helper_servers import SchemaRegistryServer

T = TypeVar("T")

# Examples take as long as the machine is busy: no deadline. What failed is tried first in the next run.
settings.register_profile(
    "dev",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=DirectoryBasedExampleDatabase(ROOT / ".cache" / "hypothesis"),
)
# For every change: a slip in the code shows in the first few examples, a rare one in the other profiles.
settings.register_profile("fast", settings.get_profile("dev"), max_examples=10)
# Each run draws others; a hundred of them, the default, would take half a minute more.
settings.register_profile("ci", settings.get_profile("dev"), print_blob=True, max_examples=60)
settings.register_profile("nightly", settings.get_profile("ci"), max_examples=5_000)

#: Files with a slow test: long ones, even where their slow tests are left out.
_SLOW_FILES = pytest.StashKey[set[Path]]()

#: Of `time.monotonic`, in seconds: slow tests do not start later.
_NO_SLOW_TEST_AFTER = pytest.StashKey[float]()

# Fixtures by which a test is recognised to need a server; a marker follows, by which it can be selected.
_MARKERS = {
    "brokers": ("kafka", "java"),
    "start_kafka": ("kafka", "java"),
    "postgres": ("postgres",),
    "start_postgres": ("postgres",),
    "spark": ("spark", "java"),
    "containers": ("containers",),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("spark_2pc_sink")
    group.addoption("--provider", choices=sorted(PROVIDERS), help="who provides servers (default: local processes)")
    group.addoption("--kafka", metavar="HOST:PORT", help="a broker that runs already (implies --provider given)")
    group.addoption("--kafka-transaction-version", type=int, default=2, metavar="N", help="of that broker (default 2)")
    group.addoption("--kafka-two-phase-commit", action="store_true", help="that broker grants enable2Pc")
    group.addoption("--postgres", metavar="URL", help="a server that runs already (implies --provider given)")
    group.addoption("--thorough", action="store_true", help="also tests that repeat others under one more condition")
    group.addoption("--slow-minutes", type=float, metavar="N", help="skip slow tests that would start later than that")
    group.addoption("--no-skips", action="store_true", help="fail where a server is missing (implied by CI=true)")


def pytest_configure(config: pytest.Config) -> None:
    """Choose hypothesis's profile: ``HYPOTHESIS_PROFILE``, else ci in CI, else dev."""
    # Collecting makes millions of objects that stay: a collector would go through them again and again.
    gc.disable()
    if (minutes := config.getoption("--slow-minutes")) is not None:
        config.stash[_NO_SLOW_TEST_AFTER] = time.monotonic() + 60 * minutes
    if hasattr(config, "workerinput"):
        # `make coverage` measures this process. The commands that it starts would each begin a good deal later.
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if _in_ci() else "dev"))


def pytest_collection_finish() -> None:
    """From here on only what tests make is looked through for garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    return f"servers: {_provider_name(config)}; skips {'allowed' if _skips_allowed(config) else 'are failures'}"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests by the servers that they use, and note files with slow tests; before ``-m`` selects by marker."""
    if item.get_closest_marker("slow") is not None:
        item.config.stash.setdefault(_SLOW_FILES, set()).add(item.path)
    for fixture, markers in _MARKERS.items():
        if fixture in getattr(item, "fixturenames", ()):
            for marker in markers:
                item.add_marker(marker)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only containers can do, unless they provide, and repetitions; put tests first that use no server.

    tools/containers.sh runs what is left out for want of containers, and says loudly if it cannot.
    """
    unwanted = {"containers": _provider_name(config) != "containers", "thorough": not config.getoption("--thorough")}
    left_out = [item for item in items if any(unwanted.get(marker.name) for marker in item.iter_markers())]
    if left_out:
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=left_out)
    # A slip shows in seconds then. Stable, and after pytest-randomly: the order within each part stays random. By
    # files, which xdist keeps together; those with slow tests last, for which the time may be limited, and of these the
    # long ones first, so that at the end no process waits for the other's.
    slow = config.stash.get(_SLOW_FILES, set())
    servers = {marker for markers in _MARKERS.values() for marker in markers}
    with_servers = slow | {item.path for item in items if any(mark.name in servers for mark in item.iter_markers())}
    limits_s = _limits_s(items)
    items.sort(key=lambda item: (item.path in with_servers, item.path in slow, -limits_s.get(item.path, 0)))


def _limits_s(items: list[pytest.Item]) -> dict[Path, float]:
    """The files with a test that has a limit of its own, because it may take long; the longest limit of each."""
    limits_s: dict[Path, float] = {}
    for item in items:
        for marker in item.iter_markers("timeout"):
            limits_s[item.path] = max(limits_s.get(item.path, 0), *marker.args)
    return limits_s


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a slow test when the time for them is over: a slow machine runs fewer of them, and says how many."""
    no_later_than = item.config.stash.get(_NO_SLOW_TEST_AFTER, float("inf"))
    if time.monotonic() > no_later_than and item.get_closest_marker("slow") is not None:
        pytest.skip("the time for slow tests (--slow-minutes) was over")


def _in_ci() -> bool:
    return os.environ.get("CI", "") not in ("", "0", "false")


def _skips_allowed(config: pytest.Config) -> bool:
    return not (config.getoption("--no-skips") or _in_ci())


def _provider_name(config: pytest.Config) -> str:
    given = config.getoption("--kafka") or config.getoption("--postgres")
    return config.getoption("--provider") or ("given" if given else "local")


def _skip(config: pytest.Config, reason: str) -> NoReturn:
    if _skips_allowed(config):
        pytest.skip(reason)
    pytest.fail(f"skips are not allowed in this run: {reason}", pytrace=False)


def or_skip(config: pytest.Config, start: Callable[[], T]) -> T:
    """What ``start`` makes; where this machine cannot: a skip with the reason, or a failure where none is allowed."""
    try:
        return start()
    except CapabilityError as error:
        _skip(config, str(error))


# --- servers ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def provider(pytestconfig: pytest.Config) -> Provider:
    return PROVIDERS[_provider_name(pytestconfig)](pytestconfig)


@pytest.fixture(scope="session")
def containers(provider: Provider) -> ContainersProvider:
    """The provider, for tests of faults that only containers have; they run with ``--provider containers`` alone."""
    assert isinstance(provider, ContainersProvider)
    return provider


@pytest.fixture(scope="session")
def brokers(provider: Provider) -> Iterator[BrokerPool]:
    with closing(BrokerPool(provider)) as pool:
        yield pool


@pytest.fixture(scope="session")
def reference_brokers() -> Iterator[BrokerPool]:
    """Reference coordinators that keep no prepared transaction where that is asked for, as no released Kafka does."""
    with closing(BrokerPool(ReferenceProvider())) as pool:
        yield pool


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config, brokers: BrokerPool) -> Broker:
    """A broker at transaction.version 2 that grants enable2Pc. Shared: leave it running and unharmed."""
    return or_skip(pytestconfig, lambda: brokers.get(transaction_version=2, two_phase_commit=True))


@pytest.fixture(scope="session")
def kafka_as_released(pytestconfig: pytest.Config, brokers: BrokerPool) -> Broker:
    """As ``kafka``, but one that keeps no prepared transaction over InitProducerId, whoever provides it. Shared."""
    return or_skip(pytestconfig, lambda: brokers.get(transaction_version=2, two_phase_commit=True, as_released=True))


@pytest.fixture(scope="session")
def kafka_without_2pc(pytestconfig: pytest.Config, brokers: BrokerPool) -> Broker:
    """A broker at transaction.version 2 as it is shipped: enable2Pc is refused. Shared."""
    return or_skip(pytestconfig, lambda: brokers.get(transaction_version=2, two_phase_commit=False))


def _versions(of_tv0: pytest.MarkDecorator) -> list[Any]:
    """Each transaction.version. 1 differs from 0 in the coordinator's log alone, which tests/conformance compares."""
    marks: dict[int, Any] = {0: of_tv0, 1: pytest.mark.thorough, 2: ()}
    return [pytest.param(version, id=f"tv{version}", marks=mark) for version, mark in marks.items()]


@pytest.fixture(scope="session", params=_versions(pytest.mark.slow))
def kafka_each_version(request: pytest.FixtureRequest, brokers: BrokerPool) -> Broker:
    """A broker at each transaction.version, without 2PC: the test runs once with each. Shared."""
    version: int = request.param
    return or_skip(request.config, lambda: brokers.get(transaction_version=version, two_phase_commit=False))


@pytest.fixture(scope="session", params=_versions(pytest.mark.thorough))
def kafka_any_version(request: pytest.FixtureRequest, brokers: BrokerPool) -> Broker:
    """As kafka_each_version, where older versions decide nothing: they are for ``--thorough``. Shared."""
    version: int = request.param
    return or_skip(request.config, lambda: brokers.get(transaction_version=version, two_phase_commit=False))


#: The type of the fixture start_kafka.
StartKafka = Callable[..., Broker]


@pytest.fixture
def start_kafka(pytestconfig: pytest.Config, provider: Provider) -> Iterator[StartKafka]:
    """Start brokers of the test's own, to be killed and paused; they end with the test."""
    with ExitStack() as started:

        def start(
            *, transaction_version: int = 2, two_phase_commit: bool = False, properties: Mapping[str, str] | None = None
        ) -> Broker:
            request = BrokerRequest(transaction_version, two_phase_commit, properties or {})
            broker = or_skip(pytestconfig, lambda: provider.start_broker(request))
            started.callback(broker.close)
            return broker

        yield start


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config, provider: Provider) -> Iterator[Database]:
    """A PostgreSQL server. Shared: leave it running and unharmed."""
    server = or_skip(pytestconfig, lambda: provider.start_postgres({}))
    yield server
    server.close()


@pytest.fixture
def start_postgres(pytestconfig: pytest.Config, provider: Provider) -> Iterator[Callable[..., Database]]:
    """Start PostgreSQL servers of the test's own, with settings as keyword arguments; they end with the test."""
    with ExitStack() as started:

        def start(**settings: str) -> Database:
            server = or_skip(pytestconfig, lambda: provider.start_postgres(settings))
            started.callback(server.close)
            return server

        yield start


@pytest.fixture
def pooled(pytestconfig: pytest.Config) -> Iterator[Callable[..., str]]:
    """Put a PgBouncer of the test's own before a server: ``pooled(url, "transaction")`` is the database's URL by it."""
    # With certificates and a driver, which the tests without servers need not wait for.
    from tests.harness.helper_servers import PgBouncer  # noqa: PLC0415

    with ExitStack() as started:

        def start(url: str, pool_mode: str, **settings: str) -> str:
            pooler = or_skip(pytestconfig, lambda: PgBouncer(url, pool_mode, settings))
            return started.enter_context(pooler).url()

        yield start


@pytest.fixture(scope="session")
def schema_registry(pytestconfig: pytest.Config) -> Iterator[SchemaRegistryServer]:
    """A schema registry with Confluent's API; it has the schemas of all tests."""
    from tests.harness.helper_servers import SchemaRegistryServer  # noqa: PLC0415 - as above

    with or_skip(pytestconfig, SchemaRegistryServer) as server:
        yield server


# --- what a test has for itself on a shared server ---------------------------------------------------------------


def _unique(prefix: str) -> str:
    # Not from `random`: parallel processes share its seed.
    return f"{prefix}_{secrets.token_hex(4)}"


@pytest.fixture
def database(postgres: Database) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database; dropped afterwards, whoever is still connected."""
    name = _unique("test")
    yield postgres.create_database(name)
    postgres.drop_database(name)


#: The type of the fixture topic.
MakeTopic = Callable[..., str]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> MakeTopic:
    """Create fresh topics: ``topic()``, ``topic(partitions=1)``, ``topic(broker=kafka_each_version)``."""

    def make(*, partitions: int = 4, broker: Broker | None = None, config: Mapping[str, str] | None = None) -> str:
        on: Broker = broker if broker is not None else request.getfixturevalue("kafka")
        return on.create_topic(_unique("topic"), partitions=partitions, config=config)

    return make


@pytest.fixture
def transactional_id() -> str:
    """A transactional id that no other test uses."""
    return _unique("tx")


# --- Spark -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session on two threads of this process, with Spark's Kafka connector and PostgreSQL's JDBC driver."""
    # Workers import the functions of test modules by their full names, from the root.
    directory = tmp_path_factory.mktemp("spark")
    session = or_skip(pytestconfig, lambda: start_spark(directory, python_path=ROOT, quick=True))
    yield session
    session.stop()
