"""The Kafka producer of this package: connections, the transaction coordinator, and sending records.

Reading order: ``cluster`` on ``broker_connections`` and ``connection`` (synchronous access to a cluster), ``tls`` and
``connection_failures`` (permanent connection failures), ``coordinator_calls`` and ``transaction_client``
(InitProducerId, EndTxn, DescribeTransactions), ``error_policy`` (retries), ``record_encoder`` (partitions of rows,
record batches), ``produce_session`` with ``batch_sender`` (sending them), ``leader_lookup`` and ``log_reader`` (how a
transaction ended), ``writer`` (Java's producer for one process).

This package does not depend on Spark or a database. Every call that waits has a deadline from
`spark_2pc_sink.options.KafkaOptions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_2pc_sink.producer.writer import TransactionalWriter

__all__ = ["TransactionalWriter"]

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        # Loaded on first use: a task that encodes needs no writer.
        if name not in __all__:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        from spark_2pc_sink.producer.writer import TransactionalWriter  # noqa: PLC0415

        return TransactionalWriter
