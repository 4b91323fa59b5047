"""Log lines of a transaction's life, whole, with their levels."""

from __future__ import annotations

import logging

import pytest

from spark_2pc_sink.reference.coordinator.states import StateId
from tests.unit.reference.coordinator.driver import KEEPING, metadata
from tests.unit.reference.node import TID, Disk, node
from tests.unit.reference.seeds import seeded

LOGGER = "spark_2pc_sink.reference.transactions.service"


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and text of what the coordinator logged, which is then forgotten."""
    found = [(each.levelname, each.getMessage()) for each in caplog.records if each.name == LOGGER]
    caplog.clear()
    return found


async def test_a_kept_transaction_can_be_followed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    async with node(settings=KEEPING) as running:
        await running.init()
        assert lines(caplog) == [("INFO", f"{TID}: InitProducerId, Empty 0:-1 -> Empty 0:0")]
        assert await running.write((0, 0)) == 0
        assert lines(caplog) == []
        await running.init(keep_prepared_txn=True)
        kept = "InitProducerId kept the prepared transaction"
        assert lines(caplog) == [("INFO", f"{TID}: {kept}, Ongoing 0:0 -> Ongoing 0:0 (client 0:1)")]
        await running.end((0, 1))
        await running.settled()
        assert lines(caplog) == [
            ("DEBUG", f"{TID}: commit decided, Ongoing 0:0 (client 0:1) -> PrepareCommit 0:1"),
            ("DEBUG", f"{TID}: commit markers of 0:1, coordinator epoch 0: {{'t-0': 0}}"),
            ("DEBUG", f"{TID}: completed, PrepareCommit 0:1 -> CompleteCommit 0:2"),
        ]


async def test_what_the_coordinator_ends_itself(caplog: pytest.LogCaptureFixture) -> None:
    """A fence, a time-out, a rotation and the expiry of the id."""
    caplog.set_level(logging.DEBUG, LOGGER)
    async with node(seeded(metadata(StateId.ONGOING, (42, 5)))) as running:
        await running.init()
        await running.settled()
        fenced = "aborted by InitProducerId, which fenced its producer"
        assert lines(caplog)[0] == ("INFO", f"{TID}: {fenced}, Ongoing 42:5 -> PrepareAbort 42:6")
    async with node(seeded(metadata(StateId.ONGOING, (42, 5)))) as running:
        running.now_ms += 60_001
        await running.service.abort_timed_out()
        await running.settled()
        assert lines(caplog)[0] == ("INFO", f"{TID}: timed out, Ongoing 42:5 -> PrepareAbort 42:6")
    async with node(seeded(metadata(StateId.COMPLETE_ABORT, (42, 32766)))) as running:
        await running.init()
        rotated = f"{TID}: InitProducerId, CompleteAbort 42:32766 -> Empty 0:0, new producer id"
        assert lines(caplog) == [("INFO", rotated)]
        running.now_ms += 604_800_000
        await running.service.remove_expired()
        assert lines(caplog) == [("DEBUG", f"{TID}: removed after transactional.id.expiration.ms, Empty 0:0")]


async def test_what_is_not_wanted_is_not_made(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    async with node(Disk()) as running:
        await running.init()
        await running.init(tid=None)
        assert lines(caplog) == []
