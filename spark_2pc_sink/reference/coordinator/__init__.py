"""The reference transaction coordinator, pure: KIP-98, KIP-890, KIP-664 and KIP-939 as data and functions.

It has no socket, clock or file. A shell feeds it events and the time, appends the records that it plans, and sends
its replies; `plans` defines the order. Its answers are those of Apache Kafka 4.4.0; with `Profile.KEEP_PREPARED` or
`Profile.KEEP_UNCHANGED` it also does what no released Kafka does: InitProducerId keeps a prepared transaction
(KIP-939).

Reading order: `states` (what a transactional id can be, and the table of transitions), `init_producer_id` and `end_txn`
(with the grid; timeouts and markers), `add_partitions`; then `plans` and `machine` (how a change becomes durable, what
a restart reads back, queries), `records` (bytes of the log). `leader_answers` belongs to partition leaders, which pass
the coordinator's codes on.
"""
