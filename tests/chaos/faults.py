"""The faults, and their table: what each is called, what it does, whom it can harm, and how often it happens.

A new kind is a function ``(world, planned) -> kills`` and a line in `KINDS`. It returns how many processes it has ended
with SIGKILL, a whole process group or server as one, and raises `MissedError` when it hit nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import psutil
import psycopg2

from spark_2pc_sink.testing import PostgresServer, TcpProxy, kafka_request, postgres_query, wait_until
from spark_2pc_sink.testing.kafka_broker import LocalBroker
from spark_2pc_sink.testing.tcp_proxy import RequestPredicate
from tests.chaos.jobs import BrokenError, ChaosJob, MissedError, OrdersJob, RowsJob, kill, send
from tests.chaos.outputs_job import OutputsJob
from tests.chaos.plan import Planned, Share
from tests.chaos.world import World
from tests.harness.driver_process import DriverProcess

# --- drivers -----------------------------------------------------------------------------------------------------

#: How long a driver that was stopped may go on before it must have seen that another one has taken over.
_SUPERSEDED_DEADLINE_S = 120.0
_ROWS_JOB: Callable[[World], ChaosJob] = attrgetter("rows")
_SPARK_JOB: Callable[[World], ChaosJob] = attrgetter("spark_job")


def driver_kill(job_of: Callable[[World], ChaosJob], world: World, planned: Planned) -> int:
    """SIGKILL to the driver's process group; on Spark this is Python and the JVM, and executors are left alone."""
    job = job_of(world)
    job.kill(job.stop_at(planned.place, planned))
    return 1


def kill_in_recovery(world: World, planned: Planned) -> int:
    """SIGKILL, and once more while the next one recovers."""
    driver_kill(_ROWS_JOB, world, planned)
    job = world.rows
    driver = job.start(stop_at=planned.recovery_place)
    job.kill(job.stopped(driver, planned.recovery_place))
    return 2


def driver_pause(job_of: Callable[[World], ChaosJob], world: World, planned: Planned) -> int:
    """SIGSTOP, wherever the plan says, and SIGCONT a moment later; on Spark of Python alone."""
    driver = job_of(world).stop_at(planned.place, planned)
    time.sleep(planned.hold_s)
    driver.go_on()
    return 0


def zombie(world: World, planned: Planned) -> int:
    """SIGSTOP, a second driver takes over, SIGCONT: the first must find that it is superseded."""
    first = take_over(_ROWS_JOB, world, planned)
    end = first.end()
    if end is None or end.error != "SupersededError":
        raise BrokenError(f"a superseded driver exited with {end}, not with SupersededError")
    return 0


def spark_zombie(world: World, planned: Planned) -> int:
    """The same: the first ends, with Spark's error or with the sink's."""
    take_over(_SPARK_JOB, world, planned)
    return 0


def take_over(job_of: Callable[[World], ChaosJob], world: World, planned: Planned) -> DriverProcess:
    """Stop the driver, start another one, let that write, and continue the first; returns it when it has ended."""
    job = job_of(world)
    first = job.stop_at(planned.place, planned)
    job.strike(first)
    job.start()
    world.wait(
        lambda: job.back, deadline_s=job.back_deadline_s, what=f"the second driver of {job.name} to write batches"
    )
    first.go_on()
    world.wait(
        lambda: not first.running,
        deadline_s=_SUPERSEDED_DEADLINE_S,
        what=f"the superseded driver of {job.name} to exit; the end of its log:\n{first.log_tail()}",
    )
    return first


# --- the parts of a driver on Spark, and the processes that run its tasks ------------------------------------------

_BUSY_DEADLINE_S = 120.0
#: Tasks run for about this long after the beginning of a batch.
_TASKS_S = 0.3


def python_driver_kill(world: World, planned: Planned) -> int:
    """SIGKILL to Python only: its JVM and tasks run on for a moment, next to those of the following driver."""
    job = world.spark_job
    driver = job.stop_at(planned.place, planned)
    job.strike(driver)
    os.kill(driver.pid, signal.SIGKILL)
    wait_until(lambda: not driver.running, what="the exit of the killed Python driver")
    return 1


def jvm_kill(world: World, planned: Planned) -> int:
    """SIGKILL to the JVM only: Python finds its calls fail in the middle of a batch."""
    job = world.spark_job
    driver = job.stop_at(planned.place, planned)
    job.strike(driver)
    try:
        kill(job.jvm())
    finally:
        driver.go_on()
    return 1


def jvm_pause(world: World, planned: Planned) -> int:
    time.sleep(planned.delay_s)
    return _pause(world.spark_job.jvm(), planned)


def in_task(
    strike: Callable[[psutil.Process, Planned], int],
    processes_of: Callable[[Any], list[psutil.Process]],
    world: World,
    planned: Planned,
) -> int:
    """Strike one of the processes that run tasks, while they do: the tasks of a transaction that has begun."""
    job = world.spark_job
    driver = job.driver
    begun = _begun(driver)
    wait_until(
        lambda: _begun(driver) > begun or not driver.running,
        deadline_s=_BUSY_DEADLINE_S,
        what="the job on Spark to begin a transaction",
    )
    time.sleep(planned.chance * _TASKS_S)
    processes = processes_of(job)
    if not processes:
        raise MissedError("no matching process is running")
    return strike(processes[int(planned.chance * len(processes))], planned)


def _begun(driver: DriverProcess) -> int:
    return sum(step["step"] == "BEGIN" for step in driver.events("step"))


def _last_executors(job: OrdersJob) -> list[psutil.Process]:
    """Those of the newest driver."""
    return job.executors()[-2:]


def _kill(process: psutil.Process, _planned: Planned) -> int:
    kill(process)
    return 1


def _pause(process: psutil.Process, planned: Planned) -> int:
    send(process, signal.SIGSTOP)
    try:
        time.sleep(planned.hold_s)
    finally:
        send(process, signal.SIGCONT)
    return 0


# --- servers, and the backend that runs a deciding transaction ----------------------------------------------------

#: Long enough to be seen inside COPY, short enough for the other requests that wait as well.
_COPY_DELAY_S = 0.3
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
    wait_until(lambda: world.postgres.query(asked) == [("nobody",)], what="synchronous_standby_names to take effect")
    world.postgres.execute("CHECKPOINT")
    try:
        yield
    finally:
        wait_until(lambda: _serves(world), what="PostgreSQL to answer after the end of its backend")
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

    return wait_until(look, what="a deciding transaction in the wanted state")[0]


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
    return world.jobs[int(planned.delay_s * 1_000) % len(world.jobs)]


# --- connections: all of them pass through proxies ------------------------------------------------------------------

_END_TXN, _PRODUCE, _COMMIT = kafka_request(26), kafka_request(0), postgres_query("COMMIT")
#: The server whose connections are harmed.
_KAFKA: Callable[[World], TcpProxy] = attrgetter("kafka_proxy")
_POSTGRES: Callable[[World], TcpProxy] = attrgetter("postgres_proxy")
_LOST_DEADLINE_S = 60.0
_USED_DEADLINE_S = 60.0
#: The longest delay of each answer, as a part of the plan's delay, which goes up to 0.4 s.
_DELAY_PART = 0.5


def cut(proxy_of: Callable[[World], TcpProxy], world: World, planned: Planned) -> int:
    """Every connection to the server is reset, and no new one is let through for a moment."""
    proxy = proxy_of(world)
    time.sleep(planned.delay_s)
    _wait_until_used(world, proxy)
    proxy.cut()
    time.sleep(planned.hold_s)
    proxy.restore()
    return 0


def delay(proxy_of: Callable[[World], TcpProxy], world: World, planned: Planned) -> int:
    """Every answer of the server comes later."""
    proxy = proxy_of(world)
    _wait_until_used(world, proxy)
    proxy.delay_answers(planned.delay_s * _DELAY_PART)
    time.sleep(2 * planned.hold_s)
    proxy.restore()
    return 0


def lose(proxy_of: Callable[[World], TcpProxy], request: RequestPredicate, world: World, _planned: Planned) -> int:
    """The answer to a request is lost; the server has carried it out."""
    proxy = proxy_of(world)
    lost = proxy.answers_lost
    proxy.lose_answer(request)
    try:
        world.wait(
            lambda: proxy.answers_lost > lost,
            deadline_s=_LOST_DEADLINE_S,
            what="the request whose answer is to be lost",
        )
    finally:
        proxy.restore()
    return 0


def _wait_until_used(world: World, proxy: TcpProxy) -> None:
    """Until there is a connection to be harmed."""
    world.wait(lambda: proxy.connections, deadline_s=_USED_DEADLINE_S, what="a connection through the proxy")


# --- the table ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        strike: does it, and returns when it is over.
        jobs: those that must have come back from the fault before, and are harmed by this one.
    """

    strike: Callable[[World, Planned], int]
    jobs: tuple[str, ...]
    share: Share


_ROWS = (RowsJob.name,)
#: Only these have executors.
_ORDERS = (OrdersJob.name,)
_SPARK = (*_ORDERS, OutputsJob.name)
_ALL = (*_ROWS, *_SPARK)

KINDS: dict[str, Kind] = {
    "driver-kill": Kind(partial(driver_kill, _ROWS_JOB), _ROWS, Share(40, filler=True)),
    "driver-kill-in-recovery": Kind(kill_in_recovery, _ROWS, Share(12, filler=True)),
    "driver-pause": Kind(partial(driver_pause, _ROWS_JOB), _ROWS, Share(3, filler=True)),
    "driver-zombie": Kind(zombie, _ROWS, Share(6, filler=True)),
    "spark-driver-kill": Kind(partial(driver_kill, _SPARK_JOB), _SPARK, Share(5, slow=True)),
    "spark-python-kill": Kind(python_driver_kill, _SPARK, Share(3, slow=True)),
    "spark-jvm-kill": Kind(jvm_kill, _SPARK, Share(3, slow=True)),
    "spark-driver-pause": Kind(partial(driver_pause, _SPARK_JOB), _SPARK, Share(2)),
    "spark-jvm-pause": Kind(jvm_pause, _SPARK, Share(2)),
    "spark-zombie": Kind(spark_zombie, _SPARK, Share(1)),
    "executor-kill": Kind(partial(in_task, _kill, _last_executors), _ORDERS, Share(6)),
    "executor-pause": Kind(partial(in_task, _pause, _last_executors), _ORDERS, Share(2)),
    "worker-kill": Kind(partial(in_task, _kill, methodcaller("python_workers")), _SPARK, Share(8)),
    "broker-kill": Kind(broker_kill, _ALL, Share(8)),
    "broker-pause": Kind(partial(pause, attrgetter("kafka")), _ALL, Share(2)),
    "postmaster-kill": Kind(postmaster_kill, _ALL, Share(12)),
    "postgres-pause": Kind(partial(pause, attrgetter("postgres")), _ALL, Share(2)),
    "backend-terminate-in-copy": Kind(partial(in_copy, terminate_backend), _ALL, Share(4)),
    "backend-kill-in-copy": Kind(partial(in_copy, kill_backend), _ALL, Share(10)),
    "backend-terminate-in-commit": Kind(partial(in_commit, terminate_backend), _ALL, Share(4)),
    "backend-kill-in-commit": Kind(partial(in_commit, kill_backend), _ALL, Share(10)),
    "kafka-cut": Kind(partial(cut, _KAFKA), _ALL, Share(3)),
    "kafka-delay": Kind(partial(delay, _KAFKA), _ALL, Share(2)),
    "kafka-lose-end-txn": Kind(partial(lose, _KAFKA, _END_TXN), _ALL, Share(4)),
    "kafka-lose-produce": Kind(partial(lose, _KAFKA, _PRODUCE), _ALL, Share(3)),
    "postgres-cut": Kind(partial(cut, _POSTGRES), _ALL, Share(3)),
    "postgres-delay": Kind(partial(delay, _POSTGRES), _ALL, Share(2)),
    "postgres-lose-commit": Kind(partial(lose, _POSTGRES, _COMMIT), _ALL, Share(4)),
}


def possible(jobs: tuple[str, ...]) -> dict[str, Kind]:
    """The kinds that can happen when only these jobs run: those that harm one of them."""
    return {name: kind for name, kind in KINDS.items() if set(kind.jobs) & set(jobs)}
