"""Consumer groups: the classic protocol and committed offsets, as Kafka 4.4.0's group coordinator answers.

`members` (a group and its members as frozen values) and `machine` (the effect of a request or a deadline)
are pure: no clock, no file, no randomness. `store` holds groups and offsets, and has the bytes of
``__consumer_offsets``. `service` is the shell: it appends records, waits until they are durable, sends replies, and has
one timer. The protocol of KIP-848 (ConsumerGroupHeartbeat) is not offered: clients fall back to the classic one.
"""
