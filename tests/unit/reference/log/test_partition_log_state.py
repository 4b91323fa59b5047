"""How far a partition is settled, where timing on a disk decides, and which aborted transactions a fetch lists."""

from __future__ import annotations

from spark_2pc_sink.reference.log.partition_log import LogState
from spark_2pc_sink.reference.log.producer_state import AbortedTransaction
from spark_2pc_sink.wire.batch_format import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader

PID = 7


def data(offset: int, *, pid: int = PID) -> BatchHeader:
    return BatchHeader(offset, 100, 0, 2, 0, TRANSACTIONAL_BIT, 0, 1, 1, pid, 0, 0, 1)


def marker(offset: int, *, pid: int = PID) -> BatchHeader:
    return BatchHeader(offset, 66, 0, 2, 0, TRANSACTIONAL_BIT | CONTROL_BIT, 0, 1, 1, pid, 1, -1, 1)


def test_a_marker_counts_only_below_the_high_watermark() -> None:
    """It may be written while the fdatasync runs that makes everything before it durable."""
    state = LogState(verification=True)
    state.recovered(data(5), b"")
    state.marker_written(marker(6), commit=True, coordinator_epoch=0)
    assert [state.stable_offset(high_watermark) for high_watermark in (5, 6, 7)] == [5, 5, 7]


def test_what_is_over_counts_until_then_even_before_what_is_open() -> None:
    state = LogState(verification=True)
    state.recovered(data(2, pid=1), b"")
    state.recovered(data(3, pid=2), b"")
    state.marker_written(marker(4, pid=1), commit=True, coordinator_epoch=0)
    assert [state.stable_offset(high_watermark) for high_watermark in (4, 5)] == [2, 3]


def test_an_abort_remembers_how_far_everything_is_settled() -> None:
    """``ProducerStateManager.lastStableOffset``: the earliest still open, else what is behind the marker."""
    state = LogState(verification=True)
    state.recovered(data(2, pid=1), b"")
    state.recovered(data(3, pid=2), b"")
    state.marker_written(marker(4, pid=1), commit=False, coordinator_epoch=0)
    state.marker_written(marker(5, pid=2), commit=False, coordinator_epoch=0)
    assert state.aborted.entries == (AbortedTransaction(1, 2, 4, 3), AbortedTransaction(2, 3, 5, 6))
