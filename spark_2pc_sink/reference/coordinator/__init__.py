"""The reference transaction coordinator, pure: KIP-98, KIP-890, KIP-664 and KIP-939 as data and functions.

It has no socket, clock or file. A shell feeds it events and the time, appends the records that it plans, and sends
its replies; `plans` defines the order. Its answers are those of Apache Kafka 4.4.0; with `Profile.KEEP_PREPARED` or
`Profile.KEEP_UNCHANGED` it also does what no released Kafka does: InitProducerId keeps a prepared transaction
(KIP-939).

Reading order: `states` (what a transactional id can be, the table of transitions, the state of them all),
`init_producer_id` and `end_txn` (with the grid; timeouts and markers), `add_partitions` (also the translation of codes,
for partition leaders that pass them on); then `plans` and `machine` (how a change becomes durable, the bytes of the
log, what a restart reads back, queries).
"""
