"""The requests that cases and the fuzzer send, and their answers as plain values that can be compared.

An operation is a frozen value; `request` builds the message at the operation's version, `result` reads the answer. Some
numbers differ between servers that behave alike, and carry a type of their own for that: `ProducerId`, `Offset` and
`CoordinatorEpoch`. Error texts and throttle times are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol, TypeAlias

from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest, UpdateFeaturesRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from spark_2pc_sink.reference.protocol import TxnOffsetCommitRequest
from tests.conformance.raw_client import RawClient
from tests.unit.reference.batches import message

#: Topic and index.
Partition: TypeAlias = tuple[str, int]
#: Producer id and epoch.
Pair: TypeAlias = tuple[int, int]

NO_PAIR: Final[Pair] = (-1, -1)
#: Versions where a transaction is told by broker to broker: the request is a batch of transactions.
BATCHED_ADD_VERSION: Final = 4
#: From here on EndTxn answers a pair.
BUMPING_END_VERSION: Final = 5


class ProducerId(int):
    """A number from the server's own supply."""


class CoordinatorEpoch(int):
    """Of the coordinator that ended a transaction: it counts the elections of its partition."""


class Offset(int):
    """A position in a partition, which may have held something before."""

    partition: Partition

    def __new__(cls, value: int, partition: Partition) -> Offset:
        made = super().__new__(cls, value)
        made.partition = partition
        return made


class Operation(Protocol):
    @property
    def version(self) -> int:
        """Of the request."""

    def request(self) -> Any:
        """The message, as kafka-python builds it."""

    def result(self, response: Any) -> Any:
        """What the answer says."""


def ask(client: RawClient, operation: Operation) -> Any:
    return operation.result(client.call(operation.request(), operation.version))


def by_topic(partitions: tuple[Partition, ...]) -> list[tuple[str, list[int]]]:
    """The partitions grouped as requests have them."""
    return [(topic, [each[1] for each in found]) for topic, found in groupby(sorted(partitions), key=lambda p: p[0])]


def _answered(code: int, pair: Pair) -> tuple[int, int, int]:
    return code, ProducerId(pair[0]), pair[1]


@dataclass(frozen=True, kw_only=True)
class Init:
    """InitProducerId; ``held`` is the pair that the client says it has."""

    tid: str | None
    held: Pair = NO_PAIR
    timeout_ms: int = 60_000
    two_phase: bool = False
    keep: bool = False
    version: int = 5

    def request(self) -> Any:
        newest = {"enable2_pc": self.two_phase, "keep_prepared_txn": self.keep} if self.version >= 6 else {}
        held = {"producer_id": self.held[0], "producer_epoch": self.held[1]} if self.version >= 3 else {}
        return InitProducerIdRequest(
            transactional_id=self.tid, transaction_timeout_ms=self.timeout_ms, **held, **newest
        )

    def result(self, response: Any) -> Any:
        answered = _answered(response.error_code, (response.producer_id, response.producer_epoch))
        if self.version >= 6:
            ongoing = (ProducerId(response.ongoing_txn_producer_id), response.ongoing_txn_producer_epoch)
            return answered if ongoing == NO_PAIR else (*answered, ongoing)
        return answered


@dataclass(frozen=True, kw_only=True)
class Add:
    """AddPartitionsToTxn: of a client up to v3, of a broker from v4 on."""

    tid: str
    pair: Pair
    partitions: tuple[Partition, ...]
    verify: bool = False
    version: int = 3

    def request(self) -> Any:
        topics = [{"name": name, "partitions": found} for name, found in by_topic(self.partitions)]
        if self.version < BATCHED_ADD_VERSION:
            return message(
                AddPartitionsToTxnRequest,
                v3_and_below_transactional_id=self.tid,
                v3_and_below_producer_id=self.pair[0],
                v3_and_below_producer_epoch=self.pair[1],
                v3_and_below_topics=topics,
            )
        transaction = {
            "transactional_id": self.tid,
            "producer_id": self.pair[0],
            "producer_epoch": self.pair[1],
            "verify_only": self.verify,
            "topics": topics,
        }
        return message(AddPartitionsToTxnRequest, transactions=[transaction])

    def result(self, response: Any) -> Any:
        if self.version < BATCHED_ADD_VERSION:
            topics = response.results_by_topic_v3_and_below
        elif response.error_code:
            return response.error_code
        else:
            topics = [topic for each in response.results_by_transaction for topic in each.topic_results]
        return {
            (topic.name, each.partition_index): each.partition_error_code
            for topic in topics
            for each in topic.results_by_partition
        }


@dataclass(frozen=True, kw_only=True)
class AddOffsets:
    tid: str
    pair: Pair
    group: str
    version: int = 3

    def request(self) -> Any:
        return AddOffsetsToTxnRequest(
            transactional_id=self.tid, producer_id=self.pair[0], producer_epoch=self.pair[1], group_id=self.group
        )

    def result(self, response: Any) -> Any:
        return response.error_code


@dataclass(frozen=True, kw_only=True)
class End:
    tid: str
    pair: Pair
    commit: bool
    version: int = BUMPING_END_VERSION

    def request(self) -> Any:
        return EndTxnRequest(
            transactional_id=self.tid, producer_id=self.pair[0], producer_epoch=self.pair[1], committed=self.commit
        )

    def result(self, response: Any) -> Any:
        if self.version < BUMPING_END_VERSION:
            return response.error_code
        return _answered(response.error_code, (response.producer_id, response.producer_epoch))


@dataclass(frozen=True, kw_only=True)
class CommitOffsets:
    """TxnOffsetCommit, of a group without members unless they are given."""

    tid: str
    pair: Pair
    group: str
    offsets: tuple[tuple[Partition, int], ...]
    generation: int = -1
    member: str = ""
    metadata: str = ""
    version: int = 5

    def request(self) -> Any:
        topics: dict[str, list[Any]] = {}
        for (topic, index), offset in self.offsets:
            found = {"partition_index": index, "committed_offset": offset, "committed_metadata": self.metadata}
            topics.setdefault(topic, []).append(found)
        return message(
            TxnOffsetCommitRequest,
            transactional_id=self.tid,
            group_id=self.group,
            producer_id=self.pair[0],
            producer_epoch=self.pair[1],
            generation_id_or_member_epoch=self.generation,
            member_id=self.member,
            group_instance_id=None,
            topics=[{"name": name, "partitions": found} for name, found in topics.items()],
        )

    def result(self, response: Any) -> Any:
        return {
            (topic.name, each.partition_index): each.error_code
            for topic in response.topics
            for each in topic.partitions
        }


@dataclass(frozen=True, kw_only=True)
class ListTransactions:
    """ListTransactions; rows of other tests are left out by ``prefix``."""

    prefix: str
    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int = -1
    pattern: str | None = None
    version: int = 2

    def request(self) -> Any:
        fields: dict[str, Any] = {"state_filters": self.states, "producer_id_filters": self.producer_ids}
        if self.version >= 1:
            fields["duration_filter"] = self.duration_ms
        if self.version >= 2:
            fields["transactional_id_pattern"] = self.pattern
        return ListTransactionsRequest(**fields)

    def result(self, response: Any) -> Any:
        rows = sorted(
            (each.transactional_id, ProducerId(each.producer_id), each.transaction_state)
            for each in response.transaction_states
            if each.transactional_id.startswith(self.prefix)
        )
        return response.error_code, sorted(response.unknown_state_filters), rows


@dataclass(frozen=True, kw_only=True)
class UpdateFeatures:
    """UpdateFeatures; each update is a feature, its level and the type of the update. Only a check unless said."""

    updates: tuple[tuple[str, int, int], ...]
    validate_only: bool = True
    version: int = 2

    def request(self) -> Any:
        typed = self.version >= 1
        updates = [
            {"feature": name, "max_version_level": level, **({"upgrade_type": kind} if typed else {})}
            for name, level, kind in self.updates
        ]
        rest = {"validate_only": self.validate_only} if typed else {}
        return message(UpdateFeaturesRequest, timeout_ms=60_000, feature_updates=updates, **rest)

    def result(self, response: Any) -> Any:
        results = [(each.feature, each.error_code, each.error_message) for each in response.results or ()]
        # Kafka shows its own object of the request.
        message = response.error_message and re.sub(r"^Request Request\(.*\)", "Request", response.error_message)
        return response.error_code, message, results


@dataclass(frozen=True, kw_only=True)
class Describe:
    """DescribeTransactions of one id; when it started is told only as whether."""

    tid: str
    version: int = 0

    def request(self) -> Any:
        return DescribeTransactionsRequest(transactional_ids=[self.tid])

    def result(self, response: Any) -> Any:
        found = response.transaction_states[0]
        if found.error_code:
            return found.error_code
        partitions = sorted((topic.topic, index) for topic in found.topics for index in topic.partitions)
        return (
            found.transaction_state,
            ProducerId(found.producer_id),
            found.producer_epoch,
            found.transaction_timeout_ms,
            found.transaction_start_time_ms >= 0,
            partitions,
        )


def is_decided(description: Any) -> bool:
    """Whether end markers of a transaction are still to be written, by what `Describe` was answered."""
    return isinstance(description, tuple) and description[0] in {"PrepareCommit", "PrepareAbort"}
