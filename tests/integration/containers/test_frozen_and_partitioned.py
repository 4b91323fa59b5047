"""Containers: one is frozen as a whole, or taken off the network in the middle of a batch or around COMMIT.

A broker off the network runs on and believes itself the leader; the other two elect another. When it comes back it
throws away what only it has. Both sides are compared while it is away, and again when its copies are complete.

A client by PostgreSQL's published port is reset when the container leaves its network; the server is told nothing, and
keeps the transaction open with the state row locked. Between a client by the container's own address and the server
nothing passes in either direction, as when a cable is cut: what was sent may arrive when it is mended, however late.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink.testing import wait_until
from tests.harness.driver_job import LARGE_INPUT, Job
from tests.harness.driver_process import DriverProcess
from tests.integration.faults.conftest import MakeJob

if TYPE_CHECKING:
    from tests.harness.containers import ContainerBroker, ContainerCluster, ContainerPostgres
    from tests.harness.providers import Broker

BATCH = 1
SIZES = (20, 2_000, 20)
#: Long enough for an answer from a broker that is busy, short enough to be waited for in vain.
IMPATIENT: dict[str, Any] = {"kafka": {"request.timeout.ms": 3_000, "max.block.ms": 4_000}}


@pytest.mark.parametrize("place", ["step:BEGIN", "end"])
def test_kafka_is_frozen(place: str, kafka_apart: ContainerBroker, make_job: MakeJob) -> None:
    """B4, B25, B29: before the records and before EndTxn, longer than the driver waits for an answer.

    The connections stay open all the time, and the kernel acknowledges what is sent on them: only answers are missing.
    What was sent is carried out as soon as the container goes on, with the driver's next attempt close behind.
    """
    job = make_job(kafka_apart)
    driver = job.stop_at(place, batch=BATCH, **IMPATIENT)
    kafka_apart.pause()
    driver.go_on()
    driver.wait_for_log("attempt 1 of 3 failed")
    kafka_apart.resume()
    job.ends_well(driver)


Choose = Callable[["ContainerCluster", str], "ContainerBroker"]


def leader(cluster: ContainerCluster, topic: str) -> ContainerBroker:
    """Who leads the first partition that is written."""
    return cluster.leader(topic, 0)


def coordinator(cluster: ContainerCluster, topic: str) -> ContainerBroker:
    return cluster.coordinator()


# The first of these starts the cluster.
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("place", "choose"),
    [
        pytest.param("step:PRODUCE", leader, id="leader-after-them"),
        pytest.param("end", coordinator, id="coordinator-decided"),
    ],
)
def test_one_broker_is_cut_off(place: str, choose: Choose, cluster: ContainerCluster, make_job: MakeJob) -> None:
    """B4, B14, B22: the leader of a partition that is written, and the coordinator, between any two steps."""
    job = make_job(cluster, sizes=SIZES)
    driver = job.stop_at(place, batch=BATCH)
    node = choose(cluster, job.topic)
    node.disconnect()
    job.ends_well(driver)
    wait_until(
        lambda: all(node.node_id not in cluster.in_sync(job.topic, number) for number in range(3)),
        what="the others to go on without it",
    )
    node.connect()
    cluster.wait_until_whole()
    job.check()


#: The answer to COMMIT is waited for this long, and two seconds more.
IMPATIENT_OF_POSTGRES: dict[str, Any] = {"commit_timeout_ms": 1_000}
_POSTGRES_PORT = 5432


def waits_for_acknowledgement(address: str) -> bool:
    """Whether this machine has sent PostgreSQL something that has not arrived: tx_queue in proc(5), /proc/net/tcp."""
    remote = "".join(f"{int(part):02X}" for part in reversed(address.split("."))) + f":{_POSTGRES_PORT:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(fields[2] == remote and int(fields[4].partition(":")[0], 16) > 0 for fields in lines)


def settled(job: Job, driver: DriverProcess, claims: int = 2) -> None:
    """The driver has made so many claims, and both sides hold the input."""
    job.ends_well(driver)
    assert [recovered["generation"] for recovered in driver.recoveries] == list(range(1, claims + 1))


def test_postgresql_loses_its_clients(
    kafka: Broker, postgres_apart: ContainerPostgres, database_apart: str, make_job: MakeJob
) -> None:
    """C1, C2: the driver is reset, the server is not told, and its open transaction holds the state row's lock.

    When it is back, either the end of the old connection arrives first, or the new claim finds the row locked by a
    session whose client is gone, and ends it.
    """
    job = make_job(kafka, sizes=LARGE_INPUT, database=postgres_apart.database_url(database_apart))
    driver = job.stop_at("commit", batch=BATCH)
    postgres_apart.disconnect()
    driver.go_on()
    driver.wait_for_log("attempt 1 of 3 failed")
    postgres_apart.connect()
    settled(job, driver)
    assert driver.attempts(BATCH) == 2


def test_the_cable_is_mended_in_time(
    kafka: Broker, postgres_apart: ContainerPostgres, database_apart: str, make_job: MakeJob
) -> None:
    """C1: nothing passes for a moment; the same connection goes on, and nothing is done twice."""
    job = make_job(kafka, sizes=LARGE_INPUT, database=postgres_apart.direct_url(database_apart))
    address = postgres_apart.address
    driver = job.stop_at("commit", batch=BATCH)
    postgres_apart.disconnect()
    driver.go_on()
    wait_until(lambda: waits_for_acknowledgement(address), what="the driver to send something")
    postgres_apart.connect()
    settled(job, driver, claims=1)
    assert driver.attempts(BATCH) == 1


def test_the_cable_is_mended_too_late(
    kafka: Broker, postgres_apart: ContainerPostgres, database_apart: str, make_job: MakeJob
) -> None:
    """C1, C2: the driver has given COMMIT up. It may still arrive, before the new claim or never: not after it."""
    job = make_job(kafka, database=postgres_apart.direct_url(database_apart))
    driver = job.stop_at("commit", batch=BATCH, **IMPATIENT_OF_POSTGRES)
    postgres_apart.disconnect()
    driver.go_on()
    driver.wait_for_log("attempt 1 of 3 failed")
    postgres_apart.connect()
    settled(job, driver)


def test_a_second_driver_starts_on_the_other_side(
    kafka: Broker, postgres_apart: ContainerPostgres, database_apart: str, make_job: MakeJob
) -> None:
    """A12, C2, D1: one driver's connection is silent, a second one takes over; the first one's COMMIT comes too late.

    The first driver stands still with COMMIT unsent while the container is away and back, so that its connection is
    one that the server has, and nobody knows to be in use.
    """
    job = make_job(kafka, sizes=LARGE_INPUT, database=postgres_apart.direct_url(database_apart))
    first = job.stop_at("commit", batch=BATCH)
    postgres_apart.disconnect()
    postgres_apart.connect()
    second = job.run()
    assert second.placements[0] == (BATCH, "RUN")
    job.superseded(first)
    job.check()
