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
