"""The reference broker: one node that speaks the Kafka protocol round the pure coordinator.

Everything runs on one event loop, so nothing here locks; only fsync waits in threads. Reading order: `api` (what a
request brings along), `partition_log` (the leader of one partition) over `storage` (segment files), `transactions`
(the coordinator with its log), `groups` (consumer groups), `handlers` (one module per family of requests), `broker`
(what is put together), `tcp` (connections).
"""
