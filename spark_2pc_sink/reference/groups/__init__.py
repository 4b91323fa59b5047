"""Consumer groups: the classic protocol and committed offsets, as Kafka 4.4.0's group coordinator answers.

`states` (what a group can be), `members` (a group and its members as frozen values), `machine` and `rebalance` (what
a request or a deadline leads to) and `offsets` are pure: no clock, no file, no chance. `records` are the bytes of
``__consumer_offsets``. `service` is the shell: it appends records, waits until they are durable, sends replies, and
has one timer. The protocol of KIP-848 (ConsumerGroupHeartbeat) is not offered: clients fall back to this one.
"""
