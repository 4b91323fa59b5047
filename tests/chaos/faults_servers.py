"""Faults of the broker and of PostgreSQL: the whole server, and the backend that runs a deciding transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import psycopg2

from spark_2pc_sink.testing import PostgresServer, wait_until
from spark_2pc_sink.testing.local_broker import LocalBroker
from tests.chaos.jobs import ChaosJob, MissedError, kill
from tests.chaos.plan import Planned
from tests.chaos.world import World

#: Long enough to be seen inside COPY, short enough for the other requests that wait as well.
_COPY_DELAY_S = 0.3
_FOUND_DEADLINE_S = 60.0
#: The application_name of deciding transactions begins like this (jdbc_state.sessions).
_ANY_SINK = "2pc:"


def broker_kill(world: World, planned: Planned) -> int:
    """SIGKILL to the broker, while a driver stands where the plan says."""
    with _held(world, planned):
        world.kafka.kill()
    world.kafka.start()
    return 1


def postmaster_kill(world: World, planned: Planned) -> int:
    """SIGKILL to the postmaster and its backends, while a driver stands where the plan says."""
    with _held(world, planned):
        world.postgres.kill()
    time.sleep(planned.hold_s)
    world.postgres.start()
    return 1


def pause(server_of: Callable[[World], LocalBroker | PostgresServer], world: World, planned: Planned) -> int:
    """SIGSTOP and SIGCONT of all processes of the server."""
    server = server_of(world)
    with _held(world, planned):
        server.pause()
    time.sleep(planned.hold_s)
    server.resume()
    return 0


@dataclass(frozen=True)
class Backend:
    """A session that runs a deciding transaction: its process, and what it does."""

    pid: int
    query: str
    state: str
    wait: str


def in_copy(strike: Callable[[World, Backend], int], world: World, _planned: Planned) -> int:
    """Strike the backend while COPY waits for rows."""
    # COPY's first answer comes later, so that it is caught before it has all rows.
    world.postgres_proxy.delay_answers(_COPY_DELAY_S)
    try:
        return strike(world, _find(world, lambda backend: backend.state == "active" and "COPY" in backend.query))
    finally:
        world.postgres_proxy.restore()


def in_commit(strike: Callable[[World, Backend], int], world: World, planned: Planned) -> int:
    """Strike the backend in COMMIT, after it has taken place; or right before COMMIT is sent."""
    job = _victim(world, planned)
    driver = job.stop_at("commit", planned)
    prefix = f"{_ANY_SINK}{job.name}:"
    try:
        if planned.chance < 0.5:
            return strike(world, _find(world, lambda backend: backend.state == "idle in transaction", prefix=prefix))
        with _no_standby(world):
            driver.go_on()
            return strike(world, _find(world, lambda backend: backend.wait == "SyncRep", prefix=prefix))
    finally:
        driver.go_on()


@contextmanager
def _no_standby(world: World) -> Iterator[None]:
    """Let PostgreSQL wait for a standby that never comes: COMMIT has written its record, and is not answered."""
    world.postgres.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    world.postgres.execute("SELECT pg_reload_conf()")
    # It is the checkpointer that tells COMMIT to wait, and it reads its settings before it serves a checkpoint.
    asked = "SHOW synchronous_standby_names"
    wait_until(
        lambda: world.postgres.query(asked) == [("nobody",)],
        deadline_s=_FOUND_DEADLINE_S,
        what="synchronous_standby_names to take effect",
    )
    world.postgres.execute("CHECKPOINT")
    try:
        yield
    finally:
        wait_until(
            lambda: _serves(world),
            deadline_s=_FOUND_DEADLINE_S,
            what="PostgreSQL to answer after the end of its backend",
        )
        world.postgres.execute("ALTER SYSTEM RESET synchronous_standby_names")
        world.postgres.execute("SELECT pg_reload_conf()")


def _find(world: World, wanted: Callable[[Backend], bool], *, prefix: str = _ANY_SINK) -> Backend:
    """The backend of a deciding transaction, as soon as it is as wanted."""

    def look() -> list[Backend]:
        found = world.query(
            "SELECT pid, query, state, coalesce(wait_event, '') FROM pg_stat_activity "
            "WHERE left(application_name, length(%s)) = %s",
            prefix,
            prefix,
        )
        return [backend for row in found if wanted(backend := Backend(*row))]

    return wait_until(look, deadline_s=_FOUND_DEADLINE_S, what="a deciding transaction in the wanted state")[0]


def terminate_backend(world: World, backend: Backend) -> int:
    ((ended,),) = world.query("SELECT pg_terminate_backend(%s)", backend.pid)
    if not ended:
        raise MissedError(f"{backend} had already exited")
    return 0


def kill_backend(_world: World, backend: Backend) -> int:
    """SIGKILL; PostgreSQL ends all sessions and recovers."""
    try:
        kill(psutil.Process(backend.pid))
    except psutil.NoSuchProcess as error:
        raise MissedError(f"{backend} had already exited") from error
    return 1


def _serves(world: World) -> bool:
    try:
        return bool(world.query("SELECT 1"))
    except psycopg2.OperationalError:
        return False


@contextmanager
def _held(world: World, planned: Planned) -> Iterator[None]:
    """Let the driver of one job stand at the place of the plan meanwhile."""
    driver = _victim(world, planned).stop_at(planned.place, planned)
    try:
        yield
    finally:
        driver.go_on()


def _victim(world: World, planned: Planned) -> ChaosJob:
    """One of the jobs that run."""
    return world.jobs[int(planned.delay_s * 1_000) % len(world.jobs)]
