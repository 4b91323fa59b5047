"""Servers as local processes, for tests and demonstrations of jobs that use this package.

Install them with ``pip install ".[testing]"`` in a clone of the repository::

    with ReferenceCoordinator() as kafka, PostgresServer() as postgres:
        url = postgres.create_database("shop")
        kafka.create_topic("orders", partitions=4)
        sink = DualWriteSink(transactional_id="orders", kafka={"bootstrap.servers": kafka.bootstrap}, database=url, …)
        ...
        sent = [record.value for record in read_topic(kafka.bootstrap, "orders")]
        assert_same_multiset(sent, expected, what="values in orders")
        assert_same_on_both_sides(transactional_id="orders", kafka={"bootstrap.servers": kafka.bootstrap}, database=url)

Use `KafkaBroker` in place of `ReferenceCoordinator` for Apache Kafka, in Java. All servers can be killed, restarted and
paused, and a :class:`TcpProxy` between them and a client loses, holds or delays answers. The sink does not import
``testing``, and ``testing`` imports from the sink only `spark_2pc_sink.verify`, which shares no code with the writer:
its verdict on both sides does not depend on the code under test. Linux only.

`pytest_plugin` provides the servers as fixtures, and a job that is killed at each step: docs/testing.md.

Reading order: ``kafka_broker``, ``postgres`` (the servers), ``tcp_proxy`` (the faults), ``topics`` (reading back),
``spark``, ``spark_cluster`` (a session, and executors as processes), ``job``, ``killed_job`` (a job as a process, its
death, both its sides), ``pytest_plugin``, then the small parts: ``processes``, ``reaper``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.extras import extra

if TYPE_CHECKING:
    from spark_2pc_sink.recipe.steps import Step
    from spark_2pc_sink.testing.job import (
        CrashAt,
        DualWriteStack,
        MultisetDifference,
        assert_same_multiset,
        assert_same_on_both_sides,
        multiset_difference,
        run_job,
    )
    from spark_2pc_sink.testing.kafka_broker import KafkaBroker, ReferenceCoordinator
    from spark_2pc_sink.testing.postgres import PostgresServer
    from spark_2pc_sink.testing.processes import (
        CapabilityError,
        DeadlineError,
        JobError,
        ServerError,
        free_port,
        wait_until,
    )
    from spark_2pc_sink.testing.tcp_proxy import TcpProxy, kafka_request, postgres_query
    from spark_2pc_sink.testing.topics import TopicRecord, read_topic

# Loaded on first use: a test run that uses none of this has no cost from the plugin.
_HOMES: Final = {
    name: module
    for module, names in {
        "recipe.steps": "Step",
        "testing.job": "CrashAt DualWriteStack MultisetDifference assert_same_multiset assert_same_on_both_sides "
        "multiset_difference run_job",
        "testing.kafka_broker": "KafkaBroker ReferenceCoordinator",
        "testing.postgres": "PostgresServer",
        "testing.processes": "CapabilityError DeadlineError JobError ServerError free_port wait_until",
        "testing.tcp_proxy": "TcpProxy kafka_request postgres_query",
        "testing.topics": "TopicRecord read_topic",
    }.items()
    for name in names.split()
}

__all__ = [
    "CapabilityError",
    "CrashAt",
    "DeadlineError",
    "DualWriteStack",
    "JobError",
    "KafkaBroker",
    "MultisetDifference",
    "PostgresServer",
    "ReferenceCoordinator",
    "ServerError",
    "Step",
    "TcpProxy",
    "TopicRecord",
    "assert_same_multiset",
    "assert_same_on_both_sides",
    "free_port",
    "kafka_request",
    "multiset_difference",
    "postgres_query",
    "read_topic",
    "run_job",
    "wait_until",
]


if not TYPE_CHECKING:  # A type checker would consider every name to exist.

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        with extra("testing"):
            return getattr(import_module(f"spark_2pc_sink.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
