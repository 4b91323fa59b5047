"""A Kafka container is frozen as a whole, or one of three brokers is taken off the network in the middle of a batch.

That one runs on and believes itself the leader; the other two elect another. When it comes back it throws away what
only it has. Both sides are compared while it is away, and again when its copies are complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink.testing import wait_until
from tests.integration.faults.conftest import MakeJob

if TYPE_CHECKING:
    from tests.harness.containers import ContainerBroker, ContainerCluster

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
    """Who coordinates the transaction."""
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
        deadline_s=60,
        what="the others to go on without it",
    )
    node.connect()
    cluster.wait_until_whole()
    job.check()
