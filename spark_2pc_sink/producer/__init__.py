"""The Kafka producer of this package: connections, the transaction coordinator, and records on their way.

Reading order: ``cluster`` on ``broker_connections``, ``sockets`` and ``tls`` (a cluster, asked synchronously),
``transaction_client`` on ``coordinator_calls`` (InitProducerId, EndTxn, a look), ``error_policy`` (what to ask again),
``arrow_partitioner`` (which row goes to which partition), ``record_encoder`` (record batches),
``produce_session`` with ``batch_sender`` and ``partition_queue`` (record batches on their way), ``log_reader`` with
``leader_lookup`` (how a transaction ended), ``writer`` with ``writer_states`` (Java's producer for one process, made of
the others).

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
