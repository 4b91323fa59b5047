"""What partition leaders ask the coordinator, and what they make of the answer."""

from __future__ import annotations

import pytest

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.states import Pair, TransactionState
from tests.unit.reference.coordinator.driver import metadata
from tests.unit.reference.node import TID, node
from tests.unit.reference.seeds import seeded

OFFSETS = TopicPartition("__consumer_offsets", 1)


@pytest.mark.parametrize(
    ("version", "enabled", "code", "added"),
    [(5, True, 0, True), (5, False, 0, True), (4, True, 120, False), (3, True, 48, False), (3, False, 0, False)],
)
async def test_offsets_are_added_for_new_clients_and_verified_for_old_ones(
    version: int, enabled: bool, code: int, added: bool
) -> None:
    disk = seeded(metadata(TransactionState.COMPLETE_COMMIT))
    async with node(disk, verification=BrokerProperties(transaction_partition_verification_enable=enabled)) as running:
        assert await running.verification.for_offsets(version, TID, Pair(42, 5), OFFSETS) == code
        found = running.service.state.get(TID)
        assert found is not None
        assert (OFFSETS in found.partitions) is added
        if enabled:
            assert await running.verification.for_offsets(version, TID, Pair(42, 4), OFFSETS) == 47


async def test_offsets_are_asked_for_once() -> None:
    """Unlike Produce, TxnOffsetCommit hears of CONCURRENT_TRANSACTIONS at once."""
    async with node(seeded(metadata(TransactionState.COMPLETE_COMMIT))) as running:
        assert await running.write((42, 5)) == 0
        running.disk.append_error = "t-0"
        assert (await running.end((42, 5))).error_code == 0
        assert await running.verification.for_offsets(5, TID, Pair(42, 6), OFFSETS) == 51
        running.disk.append_error = ""


async def test_questions_are_counted() -> None:
    """KIP-890, Metrics: VerificationTimeMs and VerificationFailureRate, of Produce and of TxnOffsetCommit."""
    async with node(seeded(metadata(TransactionState.COMPLETE_COMMIT))) as running:
        counted = running.verification.metrics
        assert await running.write((42, 5)) == 0
        assert (counted.asked, counted.failures) == (1, 0)
        assert await running.write((42, 5), sequence=1) == 0  # is in it: nobody is asked
        assert await running.write((42, 4), partition=1) == 47
        assert await running.verification.for_offsets(4, TID, Pair(42, 5), OFFSETS) == 120
        assert (counted.asked, counted.failures) == (3, 2)
        assert counted.time_ms > 0
