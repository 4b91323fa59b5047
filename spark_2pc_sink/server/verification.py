"""Before the first record of a transaction in a partition: its leader asks the coordinator (KIP-890, 2 and 3).

A client that produces with v12, or commits offsets with v5, relies on the leader to add the partition; for older ones
the leader verifies that it was added. `coordinator.leader_answers` says which, and how the answer is passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from spark_2pc_sink.coordinator import AddPartitionsToTxn, Code
from spark_2pc_sink.coordinator.leader_answers import (
    Question,
    offsets_code,
    offsets_question,
    produce_code,
    produce_question,
)
from spark_2pc_sink.coordinator.plans import AddPartitionsReply, Reply
from spark_2pc_sink.coordinator.states import Pair
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.server.properties import BrokerProperties
from spark_2pc_sink.server.transaction_service import Begun, TransactionService


@dataclass(frozen=True, kw_only=True)
class VerificationSettings:
    """What Kafka's properties say of it.

    Args:
        enabled: ``transaction.partition.verification.enable``; where False, old clients are believed.
        backoff_ms: ``add.partitions.to.txn.retry.backoff.ms``, the longest pause between two attempts to add.
        backoff_ms_max: ``add.partitions.to.txn.retry.backoff.max.ms``, for how long is tried.
    """

    enabled: bool = True
    backoff_ms: int = 20
    backoff_ms_max: int = 100

    @classmethod
    def of(cls, properties: BrokerProperties) -> VerificationSettings:
        """The settings of a broker."""
        return cls(
            enabled=properties.transaction_partition_verification_enable,
            backoff_ms=properties.add_partitions_to_txn_retry_backoff_ms,
            backoff_ms_max=properties.add_partitions_to_txn_retry_backoff_max_ms,
        )


class Asked:
    """What the coordinator says of the partitions of a Produce, in the codes for its producer; 0 lets it append.

    Args:
        version: of the request.
        begun: the answer, and when it is final.
    """

    def __init__(self, version: int, begun: Begun) -> None:
        self._version = version
        self._begun = begun

    def codes(self) -> dict[TopicPartition, int]:
        """What the leader may go by when it appends; its own answer has to wait for `final_codes`."""
        return self._translated(self._begun.reply)

    async def final_codes(self) -> dict[TopicPartition, int]:
        """The codes once the partitions are in the transaction durably, or cannot be."""
        return self._translated(await self._begun.final())

    def _translated(self, reply: Reply | None) -> dict[TopicPartition, int]:
        results = cast("AddPartitionsReply", reply).results
        return {each: produce_code(self._version, code) for each, code in results}


class Verification:
    """Asks the coordinator on behalf of partition leaders.

    Args:
        service: the coordinator, on this node.
        settings: see there.
    """

    def __init__(self, service: TransactionService, settings: VerificationSettings) -> None:
        self._service = service
        self._settings = settings

    def asks(self, version: int) -> bool:
        """Whether a Produce request of this version is asked about at all."""
        return self._settings.enabled or produce_question(version) is Question.ADD

    async def for_produce(
        self, version: int, transactional_id: str, pair: Pair, partitions: Sequence[TopicPartition]
    ) -> Asked:
        """Ask about the partitions of a Produce; those without an error may be appended to at once.

        While the transaction before is being completed (CONCURRENT_TRANSACTIONS), adding is tried again for
        ``backoff_ms_max``; Kafka looks every ``backoff_ms``, here the completion itself wakes who waits.
        """
        question = produce_question(version)
        event = _event(question, transactional_id, pair, partitions)
        begun = self._service.begin(event)
        if question is Question.ADD and _busy(begun):
            begun = await self._begin_again(event, begun)
        return Asked(version, begun)

    async def for_offsets(self, version: int, transactional_id: str, pair: Pair, partition: TopicPartition) -> int:
        """The code for a client that commits offsets in a transaction, 0 where they may be appended; asked once.

        Args:
            version: of TxnOffsetCommit.
            transactional_id: as the request gives it.
            pair: as the request gives it.
            partition: of ``__consumer_offsets``.
        """
        question = offsets_question(version)
        if question is Question.VERIFY and not self._settings.enabled:
            return Code.NONE
        reply = await self._service.submit(_event(question, transactional_id, pair, (partition,)))
        return offsets_code(version, cast("AddPartitionsReply", reply).codes[partition])

    async def _begin_again(self, event: AddPartitionsToTxn, begun: Begun) -> Begun:
        now_s = asyncio.get_running_loop().time
        end_s = now_s() + self._settings.backoff_ms_max / 1000
        while _busy(begun) and now_s() < end_s:
            left_ms = (end_s - now_s()) * 1000
            await self._service.next_change(event.transactional_id, timeout_ms=min(self._settings.backoff_ms, left_ms))
            begun = self._service.begin(event)
        return begun


def _event(
    question: Question, transactional_id: str, pair: Pair, partitions: Sequence[TopicPartition]
) -> AddPartitionsToTxn:
    return AddPartitionsToTxn(
        transactional_id=transactional_id,
        producer_id=pair.producer_id,
        producer_epoch=pair.epoch,
        partitions=tuple(partitions),
        verify_only=question is Question.VERIFY,
    )


def _busy(begun: Begun) -> bool:
    return any(code == Code.CONCURRENT_TRANSACTIONS for _, code in cast("AddPartitionsReply", begun.reply).results)
