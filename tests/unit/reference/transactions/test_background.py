"""Work in the background: it begins after the caller has gone on, and it ends with its owner."""

from __future__ import annotations

import asyncio

import pytest

from spark_2pc_sink.reference.transactions import service
from spark_2pc_sink.reference.transactions.service import Background
from tests.unit.reference.waiting import until


async def test_work_begins_when_the_caller_waits_and_is_waited_for_at_the_end() -> None:
    done: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0.01)
        done.append("work")

    owner = Background()
    owner.run(work())
    done.append("reply")
    await owner.stop()
    assert done == ["reply", "work"]


async def test_work_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STOP_WAIT_MS_MAX", 10)
    owner = Background()
    ended: list[str] = []

    async def cleaning_up() -> None:
        ended.append("cleaned up")

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # What is begun now would outlive its owner.
            owner.run(cleaning_up())
            ended.append("cut off")

    owner.run(forever())
    await asyncio.wait_for(owner.stop(), 5)
    await asyncio.sleep(0)
    assert ended == ["cut off"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_timer_goes_on_behind_a_round_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    """Else no transaction would time out any more."""
    owner = Background()
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise OSError("too many open files")

    owner.every(1, work)
    await until(lambda: rounds >= 3)
    await owner.stop()
    assert [record.getMessage() for record in caplog.records] == ["background work failed; retrying in 1 ms"]
