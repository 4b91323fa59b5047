"""The topics that coordinators keep their records in (Kafka: ``org.apache.kafka.common.internals.Topic``)."""

from __future__ import annotations

#: Of the transaction coordinator.
TRANSACTION_STATE = "__transaction_state"
#: Of the group coordinator.
GROUP_OFFSETS = "__consumer_offsets"
#: Of the share coordinator. The reference broker has none, and keeps the name from clients all the same, as Kafka does.
SHARE_GROUP_STATE = "__share_group_state"
#: Topics that clients may read but neither produce to nor add to a transaction (``Topic.INTERNAL_TOPICS``).
INTERNAL_TOPICS = frozenset({TRANSACTION_STATE, GROUP_OFFSETS, SHARE_GROUP_STATE})
