"""Group commit: who waits for which fdatasync."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from spark_2pc_sink.reference.storage.files import DiskFile, DiskStore
from spark_2pc_sink.reference.storage.group_sync import GroupSync
from tests.unit.reference.storage.test_segmented_log import append, opened

DEADLINE_S = 20


class SlowDisk:
    """fdatasync that begins and ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.count = 0
        monkeypatch.setattr(DiskFile, "sync", lambda _file: self._sync())
        monkeypatch.setattr(
            "spark_2pc_sink.reference.storage.group_sync.INLINE_SECONDS_MAX", -1.0
        )  # always in a thread

    def _sync(self) -> None:
        self.count += 1
        self.begun.release()
        assert self.may_end.acquire(timeout=DEADLINE_S)

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=DEADLINE_S)


async def test_all_who_ask_while_one_runs_share_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    log = opened(DiskStore(tmp_path))
    durable: list[int] = []
    sync = GroupSync(log, durable.append)

    append(log, 1, 5)
    first = sync.request()
    await disk.has_begun()
    same = sync.request()  # nothing was written since
    append(log, 1, 5)
    second = sync.request()
    append(log, 1, 5)
    third = sync.request()
    disk.may_end.release()
    assert (await first, await same) == (None, None)
    assert durable == [1]
    assert not second.done()
    assert not third.done()
    disk.may_end.release()
    assert (await second, await third) == (None, None)
    assert durable == [1, 3]
    assert disk.count == 2
    assert sync.request().done()
    sync.close()
