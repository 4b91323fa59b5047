"""Three brokers: records survive any one of them, and the cluster is whole again when it is back."""

from __future__ import annotations

import pytest

from spark_2pc_sink.testing import ServerError, wait_until
from tests.conftest import or_skip
from tests.harness.kafka_cluster import KafkaCluster
from tests.integration.testing.test_kafka_broker import produce, values

pytestmark = [pytest.mark.java, pytest.mark.thorough]

DEADLINE_S = 60.0


def test_one_of_three_is_not_missed(pytestconfig: pytest.Config) -> None:
    with or_skip(pytestconfig, KafkaCluster) as cluster:
        cluster.create_topic("t", partitions=3)
        assert sorted(cluster.leader("t", partition).node_id for partition in range(3)) == [1, 2, 3]
        with pytest.raises(ServerError, match="no leader"):
            cluster.leader("t", 3)
        assert produce(cluster.bootstrap, "t", "before") is None
        assert sum(node.log_bytes("t", partition) > 0 for node in cluster.nodes.values() for partition in range(3)) == 3
        dead = cluster.leader("t", 0)
        dead.kill()
        with pytest.raises(ServerError, match="not whole"):
            cluster.wait_until_whole(deadline_s=0.1)
        wait_until(lambda: cluster.leader("t", 0) is not dead, deadline_s=DEADLINE_S, what="another leader")
        assert produce(cluster.bootstrap, "t", "without one") is None
        dead.start()
        cluster.wait_until_whole()
        assert values(cluster.bootstrap, "t") == [b"before", b"without one"]
