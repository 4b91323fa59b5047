"""The Kafka producer of this package: connections, the transaction coordinator, and records on their way.

Reading order: ``cluster`` on ``broker_connections`` and ``connection`` (a cluster, asked synchronously), ``tls`` and
``connection_failures`` (what ends a connection for good), ``coordinator_calls`` and ``transaction_client``
(InitProducerId, EndTxn, a look), ``error_policy`` (what to ask again), ``arrow_partitioner`` (which row goes to which
partition), ``record_encoder`` (record batches), ``produce_session`` with ``batch_sender`` (their way to brokers),
``leader_lookup`` and ``log_reader`` (how a transaction ended), ``writer`` (Java's producer for one process).

Nothing here knows of Spark or of a database. Every call that waits has a deadline from
`spark_2pc_sink.options.KafkaOptions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_2pc_sink.producer.writer import TransactionalWriter

__all__ = ["TransactionalWriter"]

if not TYPE_CHECKING:  # A type checker would take every name for one that there is.

    def __getattr__(name: str) -> object:
        # Loaded when first asked for: a task that encodes needs no writer.
        if name not in __all__:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        from spark_2pc_sink.producer.writer import TransactionalWriter  # noqa: PLC0415

        return TransactionalWriter
