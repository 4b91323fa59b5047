"""One broker of the fake Kafka: the coordinator, its partitions, and the requests of one transactional id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.log_reader import Marker
from spark_2pc_sink.reference.coordinator.coordinator_state import Settings
from spark_2pc_sink.reference.coordinator.events import AddPartitionsToTxn, DescribeTransactions, EndTxn, InitProducerId
from spark_2pc_sink.reference.coordinator.leader_answers import Question, produce_code, produce_question
from spark_2pc_sink.reference.coordinator.plans import (
    AddPartitionsReply,
    DescribeTransactionsReply,
    EndTxnReply,
    InitProducerIdReply,
    TransactionDescription,
)
from spark_2pc_sink.reference.coordinator.states import Pair
from spark_2pc_sink.reference.log.producer_state import EndMarker, NeedsCoordinator, Refused
from tests.unit.fakes.coordinator import TRANSACTIONAL_ID, FakeCoordinator
from tests.unit.fakes.partition import FakePartition, header_of

#: Produce below transaction.version 2, and from there on.
_OLD_PRODUCE: Final = 11
_NEW_PRODUCE: Final = 13


class Produced(NamedTuple):
    """What Produce is answered for one partition."""

    code: int
    base_offset: int = -1
    #: It stood there before. On the wire only the offset tells, which the producer compares with what it has seen.
    duplicate: bool = False


class FakeBroker(FakeCoordinator):
    """One node.

    Args:
        settings: of the broker.
        partitions: their logs.
        first_producer_id: the first one that is handed out.

    Attributes:
        logs: the partitions; tests may put others in their place.
    """

    def __init__(self, settings: Settings, partitions: dict[TopicPartition, FakePartition], **coordinator: Any) -> None:
        super().__init__(settings, **coordinator)
        self.logs = partitions

    @property
    def bumps(self) -> bool:
        """Whether every transaction has its own epoch (KIP-890)."""
        return self.state.settings.transaction_version >= EPOCH_BUMP_VERSION

    def init(
        self, *, timeout_ms: int, two_phase_commit: bool = False, keep_prepared: bool = False
    ) -> InitProducerIdReply:
        """InitProducerId."""
        event = InitProducerId(
            transactional_id=TRANSACTIONAL_ID,
            timeout_ms=timeout_ms,
            enable_2pc=two_phase_commit,
            keep_prepared=keep_prepared,
        )
        return cast("InitProducerIdReply", self.ask(event))

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnReply:
        """EndTxn, in the version that goes with transaction.version."""
        event = EndTxn(
            transactional_id=TRANSACTIONAL_ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            commit=commit,
            version=5 if self.bumps else 4,
        )
        return cast("EndTxnReply", self.ask(event))

    def add(self, producer: ProducerIdAndEpoch, partitions: Sequence[TopicPartition]) -> int:
        """AddPartitionsToTxn of a client."""
        event = AddPartitionsToTxn(
            transactional_id=TRANSACTIONAL_ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            partitions=tuple(partitions),
            version=3,
        )
        reply = cast("AddPartitionsReply", self.ask(event))
        return max(code for _, code in reply.results)

    def describe(self) -> TransactionDescription:
        """DescribeTransactions."""
        event = DescribeTransactions(transactional_ids=(TRANSACTIONAL_ID,))
        return cast("DescribeTransactionsReply", self.ask(event)).transactions[0]

    def produce(
        self, producer: ProducerIdAndEpoch, partition: TopicPartition, records: Sequence[Any], sequence: int
    ) -> Produced:
        """One record batch, as ``handlers/produce.py`` takes it."""
        self.drain()
        log = self.logs[partition]
        header = header_of(producer.producer_id, producer.epoch, sequence=sequence, count=len(records))
        standing = log.standing(header, bumps=self.bumps, now_ms=self.now_ms)
        if isinstance(standing, Refused):
            return Produced(standing.code)
        guard = None
        if isinstance(standing, NeedsCoordinator):
            guard = standing.guard
            code = self._verify(producer, partition, _NEW_PRODUCE if self.bumps else _OLD_PRODUCE)
            if code:
                return Produced(code)
        if self.state.keeps(Pair(producer.producer_id, producer.epoch)):
            return Produced(Code.INVALID_PRODUCER_EPOCH)
        return Produced(*log.append(header, records, guard))

    def find_marker(
        self, partition: TopicPartition, *, from_offset: int, producer_id: int, epochs: frozenset[int]
    ) -> Marker:
        """What ``kafka/log_reader.py`` finds."""
        self.drain()
        log = self.logs[partition]
        for entry in log.entries:
            header = entry.header
            ours = header.producer_id == producer_id and header.producer_epoch in epochs
            if ours and entry.commit is not None and header.base_offset >= from_offset:
                return Marker.COMMIT if entry.commit else Marker.ABORT
        return Marker.MISSING if self.open_since(partition, producer_id=producer_id) is None else Marker.OPEN

    def open_since(self, partition: TopicPartition, *, producer_id: int) -> int | None:
        """What DescribeProducers shows of a producer."""
        known = self.logs[partition].producers.entry(producer_id)
        return None if known is None else known.txn_start_offset

    def crash(self) -> None:
        """Be killed, and started again from the logs."""
        self.restart()
        self.logs = {each: log.restarted() for each, log in self.logs.items()}

    def write_marker(self, marker: EndMarker, partition: TopicPartition) -> int:
        return self.logs[partition].append_marker(marker)

    def _verify(self, producer: ProducerIdAndEpoch, partition: TopicPartition, version: int) -> int:
        event = AddPartitionsToTxn(
            transactional_id=TRANSACTIONAL_ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            partitions=(partition,),
            verify_only=produce_question(version) is Question.VERIFY,
        )
        reply = cast("AddPartitionsReply", self.do(event))
        return produce_code(version, reply.codes[partition])
