"""Servers as local processes, for tests and demonstrations of jobs that use this package.

Install them with ``pip install 'spark-2pc-sink[testing]'``::

    with ReferenceCoordinator() as kafka, PostgresServer() as postgres:
        url = postgres.create_database("shop")
        kafka.create_topic("orders", partitions=4)
        sink = DualWriteSink(transactional_id="orders", kafka={"bootstrap.servers": kafka.bootstrap}, database=url, …)
        ...
        sent = [record.value for record in read_topic(kafka.bootstrap, "orders")]
        assert_same_multiset(sent, expected, what="values in orders")
        assert_same_on_both_sides(transactional_id="orders", kafka={"bootstrap.servers": kafka.bootstrap}, database=url)

`KafkaBroker` in place of `ReferenceCoordinator` is Apache Kafka, in Java. All servers can be killed, restarted and
paused, and a :class:`TcpProxy` between them and a client loses, holds or delays answers. The sink does not import
``testing``, and ``testing`` imports nothing of the sink but `spark_2pc_sink.verify`, which shares nothing with the code
that writes: what it says about both sides does not depend on the code under test. Linux only.

Reading order: ``local_broker``, ``kafka_broker``, ``reference_coordinator``, ``postgres`` (the servers), ``tcp_proxy``
(the faults), ``topics`` and ``compare`` (reading back, and saying how two sides differ), ``both_sides`` (the assertion
made of verify), ``spark`` (a session), then the small parts: ``lifetime``, ``wait``, ``ports``, ``processes``,
``reaper``, ``java``.
"""

from spark_2pc_sink.extras import extra

with extra("testing"):
    from spark_2pc_sink.testing.both_sides import assert_same_on_both_sides
    from spark_2pc_sink.testing.compare import MultisetDifference, assert_same_multiset, multiset_difference
    from spark_2pc_sink.testing.errors import CapabilityError, DeadlineError, ServerError
    from spark_2pc_sink.testing.kafka_broker import KafkaBroker
    from spark_2pc_sink.testing.ports import free_port
    from spark_2pc_sink.testing.postgres import PostgresServer
    from spark_2pc_sink.testing.reference_coordinator import ReferenceCoordinator
    from spark_2pc_sink.testing.tcp_proxy import TcpProxy, kafka_request, postgres_query
    from spark_2pc_sink.testing.topics import TopicRecord, read_topic
    from spark_2pc_sink.testing.wait import wait_until

__all__ = [
    "CapabilityError",
    "DeadlineError",
    "KafkaBroker",
    "MultisetDifference",
    "PostgresServer",
    "ReferenceCoordinator",
    "ServerError",
    "TcpProxy",
    "TopicRecord",
    "assert_same_multiset",
    "assert_same_on_both_sides",
    "free_port",
    "kafka_request",
    "multiset_difference",
    "postgres_query",
    "read_topic",
    "wait_until",
]
