"""The APIs and versions that this package supports.

Versions are always explicit, because they change what a broker does and not only the encoding: Produce v12 adds
the partition to the transaction and v11 only verifies it, EndTxn v5 bumps the epoch and v4 does not (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError


@dataclass(frozen=True)
class VersionRange:
    """The versions of one API supported by a broker, or by this package. Both ends are included."""

    oldest: int
    newest: int


@dataclass(frozen=True)
class ApiVersionsReply:
    """A broker's offered APIs, and its cluster's features.

    ``transaction_version`` is the finalized level (KIP-1022): absent, 0 or 1 for KIP-98's protocol, 2 for KIP-890's.
    ``features_epoch`` grows with the levels: the broker with the higher epoch is current; -1 if the broker does not
    know it (KIP-584).
    """

    apis: Mapping[int, VersionRange]
    transaction_version: int = 0
    features_epoch: int = -1

    @classmethod
    def read(cls, response: Any) -> ApiVersionsReply:
        """Read an ApiVersions response; indexed by API, as versions are looked up for every request."""
        levels = {each.name: each.max_version_level for each in response.finalized_features or ()}
        return cls(
            apis={api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys},
            transaction_version=levels.get("transaction.version", 0),
            features_epoch=response.finalized_features_epoch,
        )


class Api(IntEnum):
    """APIs by their key on the wire: those in `VERSIONS` are called, all are served by the reference coordinator."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


#: The versions of the messages that this package builds and reads. The oldest ones are those of Apache Kafka 3.0, the
#: first release with DescribeTransactions (KIP-664), without which nothing can be recovered. Produce ends at 12, the
#: last version that names topics instead of numbering them; AddPartitionsToTxn at 3, the last one meant for clients.
VERSIONS: Final[Mapping[Api, VersionRange]] = {
    Api.PRODUCE: VersionRange(9, 12),
    Api.FETCH: VersionRange(11, 12),
    Api.LIST_OFFSETS: VersionRange(6, 7),
    Api.METADATA: VersionRange(9, 12),
    Api.FIND_COORDINATOR: VersionRange(4, 6),
    Api.API_VERSIONS: VersionRange(3, 4),
    Api.INIT_PRODUCER_ID: VersionRange(4, 6),
    Api.ADD_PARTITIONS_TO_TXN: VersionRange(3, 3),
    Api.END_TXN: VersionRange(3, 5),
    Api.WRITE_TXN_MARKERS: VersionRange(1, 2),
    Api.DESCRIBE_CONFIGS: VersionRange(3, 4),
    Api.DESCRIBE_PRODUCERS: VersionRange(0, 0),
    Api.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
    Api.LIST_TRANSACTIONS: VersionRange(0, 2),
}
#: No upper bound.
ANY_VERSION: Final = 2**15 - 1


def choose_version(broker: ApiVersionsReply, api: Api, at_least: int = 0, at_most: int = ANY_VERSION) -> int:
    """The newest version of ``api`` supported by both the broker and this package.

    The bounds are for callers that need a certain protocol, such as at most 4 for EndTxn below transaction.version 2.
    Without a common version a KafkaError is raised (code 35, the broker's own answer).
    """
    ours, theirs = VERSIONS[api], broker.apis.get(api)
    oldest, newest = max(at_least, ours.oldest), min(at_most, ours.newest)
    if theirs is not None and max(oldest, theirs.oldest) <= min(newest, theirs.newest):
        return min(newest, theirs.newest)
    offered = "does not offer it" if theirs is None else f"offers versions {theirs.oldest} to {theirs.newest}"
    raise KafkaError(
        api=api.name,
        code=Code.UNSUPPORTED_VERSION,
        name=Code.UNSUPPORTED_VERSION.name,
        detail=f"this package needs a version from {oldest} to {newest}, the broker {offered}",
    )
