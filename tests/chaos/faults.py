"""The table of faults: what each is called, what it does, whom it can harm, and how often it happens.

A new kind is a function ``(world, planned) -> kills`` and a line here. It returns how many processes it has ended with
SIGKILL, a whole process group or server as one, and raises `MissedError` when it hit nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from tests.chaos import faults_drivers, faults_spark, orders_job, outputs_job, rows_job
from tests.chaos import faults_links as links
from tests.chaos import faults_servers as servers
from tests.chaos.plan import Planned, Share
from tests.chaos.world import World


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


_ROWS = (rows_job.NAME,)
#: Only these have executors.
_ORDERS = (orders_job.NAME,)
_SPARK = (*_ORDERS, outputs_job.NAME)
_ALL = (*_ROWS, *_SPARK)

KINDS: dict[str, Kind] = {
    "driver-kill": Kind(faults_drivers.kill, _ROWS, Share(40, filler=True)),
    "driver-kill-in-recovery": Kind(faults_drivers.kill_in_recovery, _ROWS, Share(12, filler=True)),
    "driver-pause": Kind(faults_drivers.pause, _ROWS, Share(3, filler=True)),
    "driver-zombie": Kind(faults_drivers.zombie, _ROWS, Share(6, filler=True)),
    "spark-driver-kill": Kind(faults_spark.driver_kill, _SPARK, Share(5, slow=True)),
    "spark-python-kill": Kind(faults_spark.python_driver_kill, _SPARK, Share(3, slow=True)),
    "spark-jvm-kill": Kind(faults_spark.jvm_kill, _SPARK, Share(3, slow=True)),
    "spark-driver-pause": Kind(faults_spark.driver_pause, _SPARK, Share(2)),
    "spark-jvm-pause": Kind(faults_spark.jvm_pause, _SPARK, Share(2)),
    "spark-zombie": Kind(faults_spark.zombie, _SPARK, Share(1)),
    "executor-kill": Kind(faults_spark.executor_kill, _ORDERS, Share(6)),
    "executor-pause": Kind(faults_spark.executor_pause, _ORDERS, Share(2)),
    "worker-kill": Kind(faults_spark.worker_kill, _SPARK, Share(8)),
    "broker-kill": Kind(servers.broker_kill, _ALL, Share(8)),
    "broker-pause": Kind(partial(servers.pause, attrgetter("kafka")), _ALL, Share(2)),
    "postmaster-kill": Kind(servers.postmaster_kill, _ALL, Share(12)),
    "postgres-pause": Kind(partial(servers.pause, attrgetter("postgres")), _ALL, Share(2)),
    "backend-terminate-in-copy": Kind(partial(servers.in_copy, servers.terminate_backend), _ALL, Share(4)),
    "backend-kill-in-copy": Kind(partial(servers.in_copy, servers.kill_backend), _ALL, Share(10)),
    "backend-terminate-in-commit": Kind(partial(servers.in_commit, servers.terminate_backend), _ALL, Share(4)),
    "backend-kill-in-commit": Kind(partial(servers.in_commit, servers.kill_backend), _ALL, Share(10)),
    "kafka-cut": Kind(partial(links.cut, links.KAFKA), _ALL, Share(3)),
    "kafka-delay": Kind(partial(links.delay, links.KAFKA), _ALL, Share(2)),
    "kafka-lose-end-txn": Kind(partial(links.lose, links.KAFKA, links.END_TXN), _ALL, Share(4)),
    "kafka-lose-produce": Kind(partial(links.lose, links.KAFKA, links.PRODUCE), _ALL, Share(3)),
    "postgres-cut": Kind(partial(links.cut, links.POSTGRES), _ALL, Share(3)),
    "postgres-delay": Kind(partial(links.delay, links.POSTGRES), _ALL, Share(2)),
    "postgres-lose-commit": Kind(partial(links.lose, links.POSTGRES, links.COMMIT), _ALL, Share(4)),
}


def possible(jobs: tuple[str, ...]) -> dict[str, Kind]:
    """The kinds that can happen when only these jobs run: those that harm one of them."""
    return {name: kind for name, kind in KINDS.items() if set(kind.jobs) & set(jobs)}
