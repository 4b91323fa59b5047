"""Three brokers, copies on each, two of which must be in sync: one is taken off the network in the middle of a batch.

It runs on and believes itself the leader; the other two elect another. When it comes back it throws away what only it
has. Both sides are compared while it is away, and again when its copies are complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from spark_2pc_sink.testing import wait_until
from tests.integration.faults.conftest import MakeJob

if TYPE_CHECKING:
    from tests.harness.containers import ContainerBroker, ContainerCluster

BATCH = 1
SIZES = (20, 2_000, 20)
# The first of the module starts the cluster.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Choose = Callable[["ContainerCluster", str], "ContainerBroker"]


def leader(cluster: ContainerCluster, topic: str) -> ContainerBroker:
    """Who leads the first partition that is written."""
    return cluster.leader(topic, 0)


def coordinator(cluster: ContainerCluster, topic: str) -> ContainerBroker:
    """Who coordinates the transaction."""
    return cluster.coordinator()


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
