"""Verification of a transaction's first record in a partition: its leader asks the coordinator (KIP-890, 2 and 3).

A client that produces with v12, or commits offsets with v5, relies on the leader to add the partition; for older ones
the leader verifies that it was added. `coordinator.leader_answers` says which, and how the answer is passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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


class Verification:
    """Asks the coordinator on behalf of partition leaders.

    Args:
        service: the coordinator, on this node.
        properties: ``transaction.partition.verification.enable`` (where False, old clients are believed), and for how
            long and how often adding is tried.
    """

    def __init__(self, service: TransactionService, properties: BrokerProperties) -> None:
        self._service = service
        self._properties = properties

    def asks(self, version: int) -> bool:
        """Whether a Produce request of this version is asked about at all."""
        return self._properties.transaction_partition_verification_enable or produce_question(version) is Question.ADD

    def keeps_out(self, pair: Pair) -> bool:
        """Whether the transaction of this pair was kept: its leaders refuse the pair as a fenced one.

        KIP-939 raises the epoch to "fence requests from previous incarnations". Where the transaction is open on a
        partition already, its leader asks nobody before it appends. So it looks here, after the last wait before the
        append: what came in later would be committed with what was prepared.
        """
        return self._service.state.keeps(pair)

    async def for_produce(
        self, version: int, transactional_id: str, pair: Pair, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The codes of a Produce's partitions, for its producer; 0 lets its leader append.

        While the transaction before is being completed (CONCURRENT_TRANSACTIONS), adding is tried again for
        ``add.partitions.to.txn.retry.backoff.max.ms``. Kafka looks every ``add.partitions.to.txn.retry.backoff.ms``;
        here the completion itself wakes who waits.
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
        if question is Question.VERIFY and not self._properties.transaction_partition_verification_enable:
            return Code.NONE
        reply = await self._service.submit(_event(question, transactional_id, pair, (partition,)))
        return offsets_code(version, cast("AddPartitionsReply", reply).codes[partition])

    async def _add_again(self, event: AddPartitionsToTxn, reply: AddPartitionsReply) -> AddPartitionsReply:
        now_s = asyncio.get_running_loop().time
        pause_ms = self._properties.add_partitions_to_txn_retry_backoff_ms
        end_s = now_s() + self._properties.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while _busy(reply) and now_s() < end_s:
            left_ms = (end_s - now_s()) * 1000
            await self._service.next_change(event.transactional_id, timeout_ms=min(pause_ms, left_ms))
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
