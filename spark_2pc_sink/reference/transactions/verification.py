"""Verification of a transaction's first record in a partition: its leader asks the coordinator (KIP-890, 2 and 3).

A client that produces with v12, or commits offsets with v5, relies on the leader to add the partition; for older ones
the leader verifies that it was added. `coordinator.leader_answers` says which, and how the answer is passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator import AddPartitionsToTxn, Code
from spark_2pc_sink.reference.coordinator.leader_answers import (
    Question,
    offsets_code,
    offsets_question,
    produce_code,
    produce_question,
)
from spark_2pc_sink.reference.coordinator.plans import AddPartitionsReply
from spark_2pc_sink.reference.coordinator.states import Pair
from spark_2pc_sink.reference.transactions.service import TransactionService


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
    ) -> dict[TopicPartition, int]:
        """The codes of a Produce's partitions, for its producer; 0 lets its leader append.

        While the transaction before is being completed (CONCURRENT_TRANSACTIONS), adding is tried again for
        ``backoff_ms_max``; Kafka looks every ``backoff_ms``, here the completion itself wakes who waits.
        """
        question = produce_question(version)
        event = _event(question, transactional_id, pair, partitions)
        reply = self._service.add(event)
        if question is Question.ADD and _busy(reply):
            reply = await self._add_again(event, reply)
        return {each: produce_code(version, code) for each, code in reply.results}

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

    async def _add_again(self, event: AddPartitionsToTxn, reply: AddPartitionsReply) -> AddPartitionsReply:
        now_s = asyncio.get_running_loop().time
        end_s = now_s() + self._settings.backoff_ms_max / 1000
        while _busy(reply) and now_s() < end_s:
            left_ms = (end_s - now_s()) * 1000
            await self._service.next_change(event.transactional_id, timeout_ms=min(self._settings.backoff_ms, left_ms))
            reply = self._service.add(event)
        return reply


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


def _busy(reply: AddPartitionsReply) -> bool:
    return any(code == Code.CONCURRENT_TRANSACTIONS for _, code in reply.results)
