"""Properties of Kafka's that the server has in one value only, and names that it knows under another name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Fixed:
    """A property of Kafka's that can have one value here.

    Args:
        value: the one.
        rule: why there is no other.
        kind: Kafka's type of it.
    """

    value: str
    rule: str
    kind: str


_ONE_REPLICA: Final = "there is one node, so a partition has one replica"
_NO_RETENTION: Final = "the server deletes no records by age or size"
#: Accepted with this value only; what they say is the case.
FIXED: Final[dict[str, Fixed]] = {
    "process.roles": Fixed("broker,controller", "the one node is both broker and controller", "LIST"),
    "default.replication.factor": Fixed("1", _ONE_REPLICA, "INT"),
    "offsets.topic.replication.factor": Fixed("1", _ONE_REPLICA, "SHORT"),
    "transaction.state.log.replication.factor": Fixed("1", _ONE_REPLICA, "SHORT"),
    "transaction.state.log.min.isr": Fixed("1", _ONE_REPLICA, "INT"),
    "min.insync.replicas": Fixed("1", _ONE_REPLICA, "INT"),
    "log.retention.ms": Fixed("-1", _NO_RETENTION, "LONG"),
    "log.retention.bytes": Fixed("-1", _NO_RETENTION, "LONG"),
    "log.message.timestamp.type": Fixed("CreateTime", "records keep the time that the producer gave them", "STRING"),
    "compression.type": Fixed("producer", "record batches are stored as the producer sent them", "STRING"),
    "delete.topic.enable": Fixed("true", "topics can be deleted", "BOOLEAN"),
    "group.coordinator.rebalance.protocols": Fixed("classic", "groups speak the classic protocol", "LIST"),
}

#: Names that a user is likely to bring along, letters and digits only, to what there is instead.
KNOWN_ELSEWHERE: Final[dict[str, str]] = {
    "brokerid": "node.id",
    "logdir": "--data-dir",
    "logdirs": "--data-dir",
    "metadatalogdir": "--data-dir",
    "host": "listeners",
    "port": "listeners",
    "logretentionhours": "log.retention.ms",
    "logretentionminutes": "log.retention.ms",
    "securityinterbrokerprotocol": "listeners",
    "interbrokerlistenername": "listeners",
}
