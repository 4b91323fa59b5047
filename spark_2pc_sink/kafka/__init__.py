"""The Kafka client of this package: connections, the transaction coordinator, and sending records.

Reading order: ``cluster`` on ``broker_connections`` and ``connection`` (synchronous access to a cluster),
``connection_failures`` (TLS, permanent failures), ``coordinator_calls`` and ``transaction_client`` (InitProducerId,
EndTxn, DescribeTransactions), ``error_policy`` (retries), ``record_encoder`` (partitions of rows, record batches),
``produce_session`` with ``batch_sender`` (sending them), ``log_reader`` (how a transaction ended),
``transaction_queries`` (all transactions of a cluster).

This package does not depend on Spark or a database. Every call that waits has a deadline from
`spark_2pc_sink.options.KafkaOptions`.
"""
