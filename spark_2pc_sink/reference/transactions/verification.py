"""Verification of a transaction's first record in a partition: its leader asks the coordinator (KIP-890, 2 and 3).

A client that produces with v12, or commits offsets with v5, relies on the leader to add the partition; for older ones
the leader verifies that it was added. `coordinator.leader_answers` decides which, and how the answer is translated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import AddPartitionsToTxn
from spark_2pc_sink.reference.coordinator.leader_answers import (
    OFFSETS_ADD_VERSION,
    PRODUCE_ADD_VERSION,
    offsets_code,
    produce_code,
    produce_message,
)
from spark_2pc_sink.reference.coordinator.plans import AddPartitionsReply
from spark_2pc_sink.reference.coordinator.states import Pair
from spark_2pc_sink.reference.transactions.service import TransactionService


@dataclass
class VerificationMetrics:
    """`Verification`'s counters since the start (KIP-890, "Metrics"; Kafka: ``AddPartitionsToTxnManager``).

    ``asked`` are questions, each about the partitions of one transaction, with retries; ``time_ms`` is the total time
    to the answer (VerificationTimeMs); ``failures`` are partitions not verified or not added (VerificationFailureRate).
    """

    asked: int = 0
    time_ms: float = 0.0
    failures: int = 0

    def count(self, reply: AddPartitionsReply, *, began_s: float, now_s: float) -> None:
        self.asked += 1
        self.time_ms += (now_s - began_s) * 1000
        self.failures += sum(code != Code.NONE for _, code in reply.results)


class Verification:
    """``properties`` are asked for each time: some can be altered while the broker runs."""

    def __init__(self, service: TransactionService, properties: Callable[[], BrokerProperties]) -> None:
        self._service = service
        self._properties = properties
        self.metrics: VerificationMetrics = VerificationMetrics()

    def verifies(self, version: int) -> bool:
        return self._properties().transaction_partition_verification_enable or version >= PRODUCE_ADD_VERSION

    def is_sealed(self, pair: Pair) -> bool:
        """Whether this pair's transaction was kept: leaders then refuse the pair as fenced (KIP-939).

        If the transaction is already open on a partition, its leader appends without asking the coordinator. So this is
        checked after the last wait before the append: later data would be committed together with the prepared data.
        """
        return self._service.state.keeps(pair)

    async def for_produce(
        self, version: int, transactional_id: str, pair: Pair, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str | None]]:
        """The codes for a Produce's partitions, with Kafka's messages for the producer; 0 lets its leader append.

        While the previous transaction is being completed (CONCURRENT_TRANSACTIONS), adding is retried for
        ``add.partitions.to.txn.retry.backoff.max.ms``. Kafka polls every ``add.partitions.to.txn.retry.backoff.ms``;
        here the completion itself wakes the waiting requests.
        """
        event = _event(transactional_id, pair, partitions, verify_only=version < PRODUCE_ADD_VERSION)
        reply = self._added(event)
        if not event.verify_only and _busy(reply):
            reply = await self._add_again(event, reply)
        translated = {each: (produce_code(version, code), code) for each, code in reply.results}
        return {each: (code, produce_message(code, asked)) for each, (code, asked) in translated.items()}

    async def for_offsets(self, version: int, transactional_id: str, pair: Pair, partition: TopicPartition) -> int:
        """The code for a client that commits offsets in a transaction, 0 if they may be appended; asked once."""
        event = _event(transactional_id, pair, (partition,), verify_only=version < OFFSETS_ADD_VERSION)
        if event.verify_only and not self._properties().transaction_partition_verification_enable:
            return Code.NONE
        began_s = time.perf_counter()
        reply = cast("AddPartitionsReply", await self._service.submit(event))
        self.metrics.count(reply, began_s=began_s, now_s=time.perf_counter())
        return offsets_code(version, reply.codes[partition])

    async def _add_again(self, event: AddPartitionsToTxn, reply: AddPartitionsReply) -> AddPartitionsReply:
        now_s = asyncio.get_running_loop().time
        pause_ms = self._properties().add_partitions_to_txn_retry_backoff_ms
        end_s = now_s() + self._properties().add_partitions_to_txn_retry_backoff_max_ms / 1000
        while _busy(reply) and now_s() < end_s:
            left_ms = (end_s - now_s()) * 1000
            await self._service.next_change(event.transactional_id, timeout_ms=min(pause_ms, left_ms))
            reply = self._added(event)
        return reply

    def _added(self, event: AddPartitionsToTxn) -> AddPartitionsReply:
        began_s = time.perf_counter()
        reply = self._service.add(event)
        self.metrics.count(reply, began_s=began_s, now_s=time.perf_counter())
        return reply


def _event(
    transactional_id: str, pair: Pair, partitions: Sequence[TopicPartition], *, verify_only: bool
) -> AddPartitionsToTxn:
    return AddPartitionsToTxn(
        transactional_id=transactional_id,
        producer_id=pair.producer_id,
        producer_epoch=pair.epoch,
        partitions=tuple(partitions),
        verify_only=verify_only,
    )


def _busy(reply: AddPartitionsReply) -> bool:
    return any(code == Code.CONCURRENT_TRANSACTIONS for _, code in reply.results)
