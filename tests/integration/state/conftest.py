"""What tests of the state stores share: one database for a file, and empty stores of both kinds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from jdbc_state import Actor, SqlStateStore, StateStore
from tests.harness.providers import Database
from tests.integration.state.state_stores import settings, sql_store
from tests.unit.fakes.memory_store import MemoryStateStore

ALICE = Actor(os_user="alice", host="desk", program="spark-2pc recover", reason="the disk of broker 2 is gone")

Make = Callable[..., StateStore]


@pytest.fixture(scope="module")
def shared_database(postgres: Database) -> Iterator[str]:
    """One database for the module: a schema of its own is enough for each test, and made ten times faster."""
    name = f"state_{secrets.token_hex(4)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def unprepared(request: pytest.FixtureRequest) -> Make:
    """A function that makes a store whose tables do not exist."""

    def made(keep: int = 1_000) -> StateStore:
        if request.param == "memory":
            return MemoryStateStore(history_batches=keep, actor=ALICE)
        names = settings(state_schema=f"test_{secrets.token_hex(4)}", history_batches=keep)
        store = SqlStateStore(request.getfixturevalue("shared_database"), names, actor=ALICE)
        request.addfinalizer(store.close)
        return store

    return made


@pytest.fixture
def make(unprepared: Make) -> Make:
    """A function that makes an empty store whose tables exist."""

    def made(keep: int = 1_000) -> StateStore:
        store = unprepared(keep)
        store.prepare_schema()
        return store

    return made


@pytest.fixture
def store(make: Make) -> StateStore:
    return make()


@pytest.fixture
def sql(database: str) -> Iterator[SqlStateStore]:
    """A store on PostgreSQL in a database of its own, whose tables exist."""
    with sql_store(database) as made:
        yield made
