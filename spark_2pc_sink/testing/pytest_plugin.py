"""The pytest plugin: servers as fixtures, and a job that is killed at a step. docs/testing.md has an example.

=================== ======== =====================================================================================
fixture             scope    provides
=================== ======== =====================================================================================
dual_write_kafka    session  a running `ReferenceCoordinator`, which keeps prepared transactions
dual_write_postgres session  a running `PostgresServer`
dual_write_stack    test     a `DualWriteStack`: a topic and a database of the test's own on these two
crash_at            test     ``crash_at(step, "job.py", …)``: the job, killed when its sink reaches the step
=================== ======== =====================================================================================

Every pytest of an environment with this package loads this module. Its imports take no noticeable time, names of
``testing`` are loaded on first use, and a server starts only when the first test requests one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from spark_2pc_sink import testing

#: Libraries used by this package; deprecation warnings about their use of each other are not actionable for users.
_LIBRARIES: Final = r"(kafka|confluent_kafka|pyspark|py4j|pandas|pyarrow|psycopg2|sqlalchemy|google_crc32c|pgpq)(\.|$)"
#: kafka-python's loader of message schemas uses these of the standard library, to which the warning is attributed.
_LOADER: Final = r"(read_text|open_text) is deprecated"


@pytest.fixture(scope="session")
def dual_write_kafka() -> Iterator[testing.ReferenceCoordinator]:
    """A running reference coordinator: a Kafka of one node, with two-phase commit."""
    with testing.ReferenceCoordinator() as server:
        yield server


@pytest.fixture(scope="session")
def dual_write_postgres() -> Iterator[testing.PostgresServer]:
    """A running PostgreSQL server."""
    with testing.PostgresServer() as server:
        yield server


@pytest.fixture
def dual_write_stack(
    dual_write_kafka: testing.ReferenceCoordinator, dual_write_postgres: testing.PostgresServer, tmp_path: Path
) -> Iterator[testing.DualWriteStack]:
    """A topic and a database of the test's own, and the variables with which a job finds them."""
    directory = tmp_path / "spark"
    directory.mkdir()
    stack = testing.DualWriteStack(dual_write_kafka, dual_write_postgres, directory)
    yield stack
    stack.close()


@pytest.fixture
def crash_at(dual_write_stack: testing.DualWriteStack) -> testing.CrashAt:
    """``crash_at(step, "job.py", …)`` runs a job on `dual_write_stack`, and kills it at a step of the recipe."""
    return dual_write_stack.crash_at()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_load_initial_conftests() -> Generator[None, Any, Any]:
    """Keep deprecations of our libraries out of the user's run; pytest has set its own filters before."""
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=kind, module=_LIBRARIES)
        warnings.filterwarnings("ignore", _LOADER, DeprecationWarning)
        return (yield)


# For these, pytest sets its own filters again.
pytest_collection: Callable[[], Generator[None, Any, Any]] = pytest_load_initial_conftests
pytest_runtest_protocol: Callable[[], Generator[None, Any, Any]] = pytest_load_initial_conftests
