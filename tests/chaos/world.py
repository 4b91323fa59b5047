"""Everything that runs: broker, PostgreSQL, proxies, Spark cluster, the jobs, and who feeds and watches them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psycopg2
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from spark_2pc_sink.testing import KafkaBroker, PostgresServer, ReferenceCoordinator, TcpProxy, wait_until
from spark_2pc_sink.testing.kafka_broker import LocalBroker
from tests.chaos.jobs import BrokenError, ChaosJob, OrdersJob, RowsJob, Sides, SparkJob
from tests.chaos.outputs_job import OutputsJob
from tests.harness.driver_process import Nursery
from tests.harness.sql import run_sql

T = TypeVar("T")
#: A partition: its topic and its number.
Partition = tuple[str, int]


@dataclass(frozen=True)
class Ends:
    """Where a partition ends for the two kinds of readers."""

    stable: int
    high: int


BROKERS: dict[str, Callable[[], LocalBroker]] = {"kafka": KafkaBroker, "reference": ReferenceCoordinator}
#: The jobs, by their names.
JOBS: dict[str, type[ChaosJob]] = {job.name: job for job in (RowsJob, OrdersJob, OutputsJob)}
#: Those that run unless others are named.
JOBS_DEFAULT = (RowsJob.name, OrdersJob.name)
_DATABASE = "shop"
_FEED_PERIOD_S = 0.1
_STOP_DEADLINE_S = 20.0
_SESSIONS = (
    "SELECT pid, application_name, state, wait_event_type, wait_event, pg_blocking_pids(pid), "
    "now() - state_change, left(query, 100) FROM pg_stat_activity WHERE datname = %s ORDER BY application_name, pid"
)
_CONNECT_TIMEOUT_S = 5
_REQUEST_DEADLINE_S = 2.0
_POLL_S = 0.05
#: A job that has finished no batch for so long is stuck; one that goes on has so long to reach the end of its input.
_STUCK_S = 300.0
_FINISH_S = 1_800.0


class World:
    """One broker, one PostgreSQL, and the jobs between them; a context manager.

    Args:
        patience: how many times as long as on a free machine a job may take to come back.
    """

    def __init__(self, folder: Path, *, broker: str, jobs: tuple[str, ...], seed: int, patience: float = 1.0) -> None:
        self.folder = folder
        self.jobs: list[ChaosJob] = []
        self._broker = broker
        self._wanted = jobs
        self._seed = seed
        self._patience = patience
        self._stack = ExitStack()
        self._topics = {topic: partitions for name in jobs for topic, partitions in JOBS[name].topics.items()}
        self._partitions = [(topic, number) for topic, count in self._topics.items() for number in range(count)]
        self._fed = threading.Event()
        self._feeder = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._feed_error: BaseException | None = None

    def __enter__(self) -> World:
        with ExitStack() as stack:
            self.kafka = stack.enter_context(BROKERS[self._broker]())
            self.postgres = stack.enter_context(PostgresServer())
            self.kafka_proxy: TcpProxy = stack.enter_context(self.kafka.proxy())
            self.postgres_proxy: TcpProxy = stack.enter_context(self.postgres.proxy())
            self.postgres.create_database(_DATABASE)
            for topic, partitions in self._topics.items():
                self.kafka.create_topic(topic, partitions=partitions)
            self._start_jobs(stack)
            self._feeder.start()
            stack.callback(self._end_feeding)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def rows(self) -> RowsJob:
        return next(job for job in self.jobs if isinstance(job, RowsJob))

    @property
    def spark_job(self) -> SparkJob:
        """The job on Spark; there is one at most."""
        return next(job for job in self.jobs if isinstance(job, SparkJob))

    def wait(self, condition: Callable[[], T], *, deadline_s: float, what: str) -> T:
        """Wait for a condition, and start drivers that die meanwhile."""

        def tended() -> T:
            self.tend()
            return condition()

        return wait_until(tended, deadline_s=deadline_s, what=what)

    def tend(self) -> None:
        """Start drivers that have died, all but those that have come to the end of their input."""
        for job in self.jobs:
            job.tend()
        if self._feed_error is not None:
            raise BrokenError("the thread that writes the input of the jobs failed") from self._feed_error

    def wait_for(self, jobs: tuple[str, ...]) -> None:
        """Wait until jobs are back from what happened to them last."""
        for job in self.jobs:
            if job.name not in jobs:
                continue
            try:
                self.wait(lambda job=job: job.back, deadline_s=job.back_deadline_s, what=f"{job.name} to recover")  # type: ignore[misc]
            except AssertionError as error:
                raise BrokenError(f"{error}\n{self.account()}") from error

    def finish(self) -> None:
        self._end_feeding()
        for job in self.jobs:
            job.finish()
        for job in self.jobs:
            try:
                wait_for_end(job, self.tend, stuck_s=_STUCK_S * self._patience, all_s=_FINISH_S)
            except BrokenError as error:
                raise BrokenError(f"{error}\n{self.account()}") from error

    def account(self) -> str:
        """What each driver and each session of PostgreSQL does now, and who waits for whom: for a wait in vain."""
        drivers = "\n".join(f"the end of the log of {job.name}:\n{job.driver.account()}" for job in self.jobs)
        try:
            sessions = "\n".join(map(str, self.query(_SESSIONS, _DATABASE)))
        except psycopg2.Error as error:
            sessions = f"unknown: {error}"
        return f"{drivers}\nsessions of PostgreSQL:\n{sessions}"

    def ends_at_rest(self, deadline_s: float) -> dict[Partition, Ends]:
        """Where the partitions end when nothing is written any more; as they are, when a transaction stays open.

        Args:
            deadline_s: seconds for open transactions to end, and for a broker that does not answer to answer again.
        """
        end_s = time.monotonic() + deadline_s
        while True:
            late = time.monotonic() >= end_s
            try:
                ends = self._ends()
            except (KafkaException, TimeoutError):
                if late:
                    raise
            else:
                if late or all(end.stable == end.high for end in ends.values()):
                    return ends
            time.sleep(_POLL_S)

    def _ends(self) -> dict[Partition, Ends]:
        # A client for one look: one that is kept would go on with leader epochs of before a broker was killed.
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0, "socket.timeout.ms": 2_000})
        stable, high = (
            _last_offsets(admin, self._partitions, isolation)
            for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        )
        return {partition: Ends(stable[partition], high[partition]) for partition in self._partitions}

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement past the proxy, with psycopg2 alone."""
        database = self.postgres.database_url(_DATABASE)
        return run_sql(database, statement, *values, connect_timeout=_CONNECT_TIMEOUT_S)

    def _start_jobs(self, stack: ExitStack) -> None:
        sides = Sides(
            broker=self.kafka,
            database=self.postgres.database_url(_DATABASE),
            proxied_kafka=self.kafka_proxy.address,
            proxied_database=self.postgres.database_url(_DATABASE, port=self.postgres_proxy.port),
        )
        nursery = stack.enter_context(Nursery(self.folder))
        for name in self._wanted:
            folder = self.folder / name
            folder.mkdir()
            job = JOBS[name](sides, folder, nursery, self._seed)
            stack.callback(job.close)
            job.back_deadline_s *= self._patience
            job.feed()
            job.start()
            self.jobs.append(job)

    def _feed(self) -> None:
        while not self._fed.wait(_FEED_PERIOD_S):
            try:
                for job in self.jobs:
                    job.feed()
            except BaseException as error:
                self._feed_error = error
                raise

    def _end_feeding(self) -> None:
        self._fed.set()
        self._feeder.join(_STOP_DEADLINE_S)


def wait_for_end(job: ChaosJob, tend: Callable[[], None], *, stuck_s: float, all_s: float) -> None:
    """Wait until a job has come to the end of its input, for as long as it goes on.

    Args:
        tend: called again and again meanwhile.
        stuck_s: how long it may finish no batch.
        all_s: how long it may take in all.

    Raises:
        BrokenError: it took longer.
    """
    begun_s = moved_s = time.monotonic()
    batches = job.batches
    while not job.finished:
        tend()
        now_s = time.monotonic()
        if job.batches != batches:
            batches, moved_s = job.batches, now_s
        if now_s - moved_s > stuck_s:
            raise BrokenError(f"{job.name} is stuck: no batch finished for {stuck_s:g} s, {batches} before that")
        if now_s - begun_s > all_s:
            raise BrokenError(f"{job.name} has not reached the end of its input in {all_s:g} s: {batches} batches done")
        time.sleep(_POLL_S)


def _last_offsets(admin: AdminClient, partitions: list[Partition], isolation: IsolationLevel) -> dict[Partition, int]:
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(*partition): latest for partition in partitions}
    answers = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_REQUEST_DEADLINE_S)
    return {(at.topic, at.partition): answer.result(_REQUEST_DEADLINE_S * 2).offset for at, answer in answers.items()}
