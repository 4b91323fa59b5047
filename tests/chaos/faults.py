"""The table of faults: what each is called, what it does, whom it can harm, and how often it happens.

A new kind is a function ``(world, planned) -> kills`` and a line here. It returns how many processes it has ended with
SIGKILL, a whole process group or server as one, and raises `MissedError` when it hit nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos import faults_drivers, faults_links, faults_servers, faults_spark, orders_job, rows_job
from tests.chaos.plan import Planned, Share
from tests.chaos.world import World


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        strike: does it, and returns when it is over.
        jobs: those that must have come back from the fault before, and are harmed by this one.
        share: how often it happens.
    """

    strike: Callable[[World, Planned], int]
    jobs: tuple[str, ...]
    share: Share


_ROWS = (rows_job.NAME,)
_ORDERS = (orders_job.NAME,)
_BOTH = (*_ROWS, *_ORDERS)

KINDS: dict[str, Kind] = {
    "driver-kill": Kind(faults_drivers.kill, _ROWS, Share(40, filler=True)),
    "driver-kill-in-recovery": Kind(faults_drivers.kill_in_recovery, _ROWS, Share(12, filler=True)),
    "driver-pause": Kind(faults_drivers.pause, _ROWS, Share(3, filler=True)),
    "driver-zombie": Kind(faults_drivers.zombie, _ROWS, Share(6, filler=True)),
    "spark-driver-kill": Kind(faults_spark.driver_kill, _ORDERS, Share(5, slow=True)),
    "spark-python-kill": Kind(faults_spark.python_driver_kill, _ORDERS, Share(3, slow=True)),
    "spark-jvm-kill": Kind(faults_spark.jvm_kill, _ORDERS, Share(3, slow=True)),
    "spark-driver-pause": Kind(faults_spark.driver_pause, _ORDERS, Share(2)),
    "spark-jvm-pause": Kind(faults_spark.jvm_pause, _ORDERS, Share(2)),
    "spark-zombie": Kind(faults_spark.zombie, _ORDERS, Share(1)),
    "executor-kill": Kind(faults_spark.executor_kill, _ORDERS, Share(6)),
    "executor-pause": Kind(faults_spark.executor_pause, _ORDERS, Share(2)),
    "worker-kill": Kind(faults_spark.worker_kill, _ORDERS, Share(8)),
    "broker-kill": Kind(faults_servers.broker_kill, _BOTH, Share(8)),
    "broker-pause": Kind(faults_servers.broker_pause, _BOTH, Share(2)),
    "postmaster-kill": Kind(faults_servers.postmaster_kill, _BOTH, Share(12)),
    "postgres-pause": Kind(faults_servers.postgres_pause, _BOTH, Share(2)),
    "backend-terminate-in-copy": Kind(faults_servers.terminate_in_copy, _BOTH, Share(4)),
    "backend-kill-in-copy": Kind(faults_servers.kill_in_copy, _BOTH, Share(10)),
    "backend-terminate-in-commit": Kind(faults_servers.terminate_in_commit, _BOTH, Share(4)),
    "backend-kill-in-commit": Kind(faults_servers.kill_in_commit, _BOTH, Share(10)),
    "kafka-cut": Kind(faults_links.kafka_cut, _BOTH, Share(3)),
    "kafka-delay": Kind(faults_links.kafka_delay, _BOTH, Share(2)),
    "kafka-lose-end-txn": Kind(faults_links.lose_end_txn, _BOTH, Share(4)),
    "kafka-lose-produce": Kind(faults_links.lose_produce, _BOTH, Share(3)),
    "postgres-cut": Kind(faults_links.postgres_cut, _BOTH, Share(3)),
    "postgres-delay": Kind(faults_links.postgres_delay, _BOTH, Share(2)),
    "postgres-lose-commit": Kind(faults_links.lose_commit, _BOTH, Share(4)),
}


def possible(jobs: tuple[str, ...]) -> dict[str, Kind]:
    """The kinds that can happen when only these jobs run: those of a job of its own need that job."""
    return {name: kind for name, kind in KINDS.items() if kind.jobs == _BOTH or set(kind.jobs) <= set(jobs)}
