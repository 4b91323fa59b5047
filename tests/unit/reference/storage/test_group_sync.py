"""Group commit: who waits for which fdatasync, and what a failed one does."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_2pc_sink.reference.storage.batches import build_batch, encode_records, stamp_batch
from spark_2pc_sink.reference.storage.files import DiskFile, DiskStore, MemoryStore
from spark_2pc_sink.reference.storage.group_sync import INLINE_BYTES_MAX, INLINE_SECONDS_MAX, GroupSync
from spark_2pc_sink.reference.storage.segmented_log import SegmentedLog
from spark_2pc_sink.wire.batch_format import read_header
from tests.unit.reference.waiting import present

DEADLINE_S = 20


class WatchedDisk:
    """fdatasync that says in which thread it runs, and that fails when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_loop: list[bool] = []
        self.error: OSError | None = None
        self.seconds, self.takes_s = 0.0, INLINE_SECONDS_MAX / 5
        self._loop_thread = threading.get_ident()
        monkeypatch.setattr(DiskFile, "sync", lambda _file: self._sync())
        monkeypatch.setattr("spark_2pc_sink.reference.storage.group_sync.time.perf_counter", lambda: self.seconds)

    def _sync(self) -> None:
        self.on_loop.append(threading.get_ident() == self._loop_thread)
        self.seconds += self.takes_s
        if self.error is not None:
            raise self.error


class SlowDisk:
    """fdatasync that begins and ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.count = 0
        self.error: OSError | None = None
        monkeypatch.setattr(DiskFile, "sync", lambda _file: self._sync())
        monkeypatch.setattr(
            "spark_2pc_sink.reference.storage.group_sync.INLINE_SECONDS_MAX", -1.0
        )  # always in a thread

    def _sync(self) -> None:
        self.count += 1
        self.begun.release()
        assert self.may_end.acquire(timeout=DEADLINE_S)
        if self.error is not None:
            raise self.error

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=DEADLINE_S)


class Log:
    """A log with its group commit, and the offsets that it says are durable."""

    def __init__(self, store: DiskStore | MemoryStore, executor: Executor | None = None) -> None:
        self.log = SegmentedLog(store)
        self.log.recover(lambda _header, _batch: None)
        self.durable: list[int] = []
        self.sync = GroupSync(self.log, executor, self.durable.append)

    def append(self, value: bytes = b"value") -> None:
        batch = build_batch(encode_records([(None, value)]), record_count=1, timestamp_ms=1)
        stamped = stamp_batch(batch, read_header(batch), base_offset=self.log.end_offset, leader_epoch=0)
        self.log.append(stamped, segment_bytes=1 << 20)


@pytest.mark.parametrize("given", [True, False])
async def test_all_who_ask_while_one_runs_share_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    disk = SlowDisk(monkeypatch)
    executor = ThreadPoolExecutor(1) if given else None
    log = Log(DiskStore(tmp_path), executor)
    log.append()
    first = log.sync.request()
    await disk.has_begun()
    same = log.sync.request()  # nothing was written since
    log.append()
    second = log.sync.request()
    log.append()
    third = log.sync.request()
    disk.may_end.release()
    assert (await first, await same) == (None, None)
    assert log.durable == [1]
    assert not second.done()
    assert not third.done()
    disk.may_end.release()
    assert (await second, await third) == (None, None)
    assert log.durable == [1, 3]
    assert disk.count == 2
    assert log.sync.request().done()
    log.sync.close()
    if executor is not None:
        executor.shutdown()


async def test_a_failure_is_for_good_and_for_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may have dropped what it could not write: a second fdatasync would say that all is well."""
    disk = SlowDisk(monkeypatch)
    disk.error = OSError("Input/output error")
    log = Log(DiskStore(tmp_path))
    log.append()
    first = log.sync.request()
    await disk.has_begun()
    log.append()
    waiting = log.sync.request()
    disk.may_end.release()
    for future in (first, waiting, log.sync.request()):
        failure = present(await future)
        assert "Input/output error" in str(failure)
    assert (disk.count, log.durable) == (1, [])
    with pytest.raises(OSError, match="fdatasync failed"):
        log.append()
    log.sync.close()


async def test_threads_that_are_ended_are_a_failure_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    executor = ThreadPoolExecutor(1)
    busy, idle = Log(DiskStore(tmp_path), executor), Log(DiskStore(tmp_path), executor)
    busy.append()
    idle.append()
    running, queued = busy.sync.request(), idle.sync.request()
    await disk.has_begun()
    executor.shutdown(wait=False, cancel_futures=True)
    disk.may_end.release()
    assert await running is None
    assert "the threads were ended" in str(await queued)


async def test_files_are_closed_when_the_last_fdatasync_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    log = Log(DiskStore(tmp_path))
    log.append()
    first = log.sync.request()
    await disk.has_begun()
    log.append()
    waiting = log.sync.request()
    log.sync.close()
    log.sync.close()
    assert log.log.read(0, max_bytes=100, min_one=True, limit_offset=1).data
    disk.may_end.release(2)
    assert await first is None
    assert await waiting is None
    assert log.durable == [1, 2]
    with pytest.raises(OSError, match="Bad file descriptor"):
        log.log.read(0, max_bytes=100, min_one=True, limit_offset=1)


async def test_little_is_made_durable_on_the_loop_while_the_disk_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = WatchedDisk(monkeypatch)
    log = Log(DiskStore(tmp_path))
    log.append()
    assert await log.sync.request() is None  # nothing is known about the disk yet
    log.append()
    assert log.sync.request().done()
    assert log.durable == [1, 2]
    log.append(bytes(INLINE_BYTES_MAX))
    assert await log.sync.request() is None
    log.append()
    disk.takes_s = 2 * INLINE_SECONDS_MAX
    assert log.sync.request().done()
    log.append()
    assert await log.sync.request() is None  # it was slow, and is again
    disk.takes_s = INLINE_SECONDS_MAX / 2
    log.append()
    assert await log.sync.request() is None  # this one shows that it is quick
    log.append()
    assert log.sync.request().done()
    assert disk.on_loop == [False, True, False, True, False, False, True]
    assert log.durable == [1, 2, 3, 4, 5, 6, 7]
    log.sync.close()


async def test_a_failure_on_the_loop_is_for_good_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = WatchedDisk(monkeypatch)
    log = Log(DiskStore(tmp_path))
    log.append()
    assert await log.sync.request() is None
    log.append()
    disk.error = OSError("Input/output error")
    failure = log.sync.request().result()
    assert "Input/output error" in str(failure)
    disk.error = None
    assert "Input/output error" in str(log.sync.request().result())
    assert (disk.on_loop, log.durable) == ([False, True], [1])
    log.sync.close()


async def test_memory_is_durable_at_once() -> None:
    log = Log(MemoryStore())
    log.append()
    assert log.sync.request().done()
    assert log.durable == [1]
    log.sync.close()
