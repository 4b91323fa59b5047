"""Servers as local processes, for tests and demonstrations of jobs that use this package.

::

    with ReferenceCoordinator() as kafka, PostgresServer() as postgres:
        url = postgres.create_database("shop")
        kafka.create_topic("orders", partitions=4)
        sink = DualWriteSink(transactional_id="orders", kafka={"bootstrap.servers": kafka.bootstrap}, database=url, …)

`KafkaBroker` in place of `ReferenceCoordinator` is Apache Kafka, in Java; `KafkaCluster` is three of it. All servers
can be killed, restarted and paused, and a :class:`TcpProxy` between them and a client loses, holds or delays answers.
A `PostgresStandby` follows a `PostgresServer`, and a `SmallDisk` is soon full. Nothing of this package imports
``testing``, and ``testing`` imports nothing of it: what it says about both sides does not depend on the code under
test. Linux only.

Reading order: ``local_broker``, ``kafka_broker``, ``kafka_cluster``, ``reference_coordinator``, ``postgres``,
``postgres_standby``, ``pgbouncer`` (the servers), ``tcp_proxy``, ``small_disk`` (the faults), ``topics`` and
``compare`` (reading back, and saying how two sides differ), ``spark`` (a session), then the small parts:
``lifetime``, ``wait``, ``ports``, ``processes``, ``java``.
"""

from spark_2pc_sink.testing.compare import MultisetDifference, assert_same_multiset, multiset_difference
from spark_2pc_sink.testing.errors import CapabilityError, DeadlineError, ServerError
from spark_2pc_sink.testing.kafka_broker import KafkaBroker
from spark_2pc_sink.testing.kafka_cluster import KafkaCluster
from spark_2pc_sink.testing.pgbouncer import PgBouncer
from spark_2pc_sink.testing.ports import free_port
from spark_2pc_sink.testing.postgres import PostgresServer
from spark_2pc_sink.testing.postgres_standby import PostgresStandby
from spark_2pc_sink.testing.reference_coordinator import ReferenceCoordinator
from spark_2pc_sink.testing.small_disk import SmallDisk
from spark_2pc_sink.testing.tcp_proxy import TcpProxy, kafka_request, postgres_query
from spark_2pc_sink.testing.topics import TopicRecord, read_topic
from spark_2pc_sink.testing.wait import wait_until

__all__ = [
    "CapabilityError",
    "DeadlineError",
    "KafkaBroker",
    "KafkaCluster",
    "MultisetDifference",
    "PgBouncer",
    "PostgresServer",
    "PostgresStandby",
    "ReferenceCoordinator",
    "ServerError",
    "SmallDisk",
    "TcpProxy",
    "TopicRecord",
    "assert_same_multiset",
    "free_port",
    "kafka_request",
    "multiset_difference",
    "postgres_query",
    "read_topic",
    "wait_until",
]
