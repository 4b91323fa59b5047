"""Order and repetition of one partition's batches, without a broker. Covers B5 and B22."""

from __future__ import annotations

import pytest

from spark_2pc_sink.kafka.batch_sender import Batch, PartitionQueue, PartitionReceipt
from tests.unit.producer.support import T0


def queue_of(count: int, *, first_acknowledged: bool = True) -> PartitionQueue:
    """A queue with ``count`` batches of 10 records; the one before them, of 1 record at offset 5, is acknowledged."""
    queue = PartitionQueue(T0, floor_offset=5)
    if first_acknowledged:
        queue.push(b"0", record_count=1, row_key=None, deadline_s=100)
        queue.acknowledged(send(queue), 5)
    for number in range(count):
        queue.push(str(number + 1).encode(), record_count=10, row_key=None, deadline_s=100)
    return queue


def send(queue: PartitionQueue, now_s: float = 0.0) -> Batch:
    batch = queue.peek(now_s)
    assert batch is not None
    queue.sent(batch)
    return batch


def test_batches_leave_in_the_order_in_which_they_came() -> None:
    queue = queue_of(3)
    assert [send(queue).payload for _ in range(3)] == [b"1", b"2", b"3"]
    assert queue.peek(0) is None


def test_until_the_first_acknowledgement_one_batch_travels_alone() -> None:
    """Below transaction.version 2 a leader without an entry takes any first sequence (SEMANTICS of 45, case iii)."""
    queue = queue_of(2, first_acknowledged=False)
    first = send(queue)
    assert queue.peek(0) is None
    queue.acknowledged(first, 5)
    assert send(queue).payload == b"2"


def test_after_a_failure_nothing_is_sent_until_every_answer_is_in() -> None:
    queue = queue_of(4)
    one, two, three = send(queue), send(queue), send(queue)
    queue.returned(one)
    assert queue.peek(0) is None
    queue.returned(three)
    assert queue.peek(0) is None
    queue.returned(two)
    assert [send(queue).payload for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    assert (one.sends, two.sends, three.sends) == (2, 2, 2)


def test_a_batch_behind_the_failed_one_may_have_been_appended() -> None:
    """REQUEST_TIMED_OUT says that a batch is in the leader's log; those behind it succeed (B22: each counted once)."""
    queue = queue_of(2)
    one, two = send(queue), send(queue)
    queue.returned(one)
    queue.acknowledged(two, 16)
    queue.acknowledged(send(queue), 6)
    assert queue.receipt == PartitionReceipt(records=21, first_offset=5, last_offset=25)
    assert queue.outstanding == 0


def test_out_of_order_is_about_an_earlier_batch_only_while_there_is_one() -> None:
    queue = queue_of(2)
    one, two = send(queue), send(queue)
    assert queue.has_earlier(two)
    assert not queue.has_earlier(one)
    queue.returned(one)
    assert queue.has_earlier(two)


def test_back_off_doubles_and_an_acknowledgement_ends_it() -> None:
    queue = queue_of(1)
    pauses = []
    for _ in range(4):
        queue.back_off(10.0, first_s=1, max_s=5)
        pauses.append(queue.resend_at_s - 10.0)
    assert pauses == [1, 2, 4, 5]
    assert queue.peek(14.9) is None
    batch = send(queue, 15.0)
    queue.acknowledged(batch, 6)
    queue.back_off(10.0, first_s=1, max_s=5)
    assert queue.resend_at_s == 11.0


def test_only_the_first_waiting_batch_can_be_sent() -> None:
    queue = queue_of(2)
    first = queue.peek(0)
    assert first is not None
    queue.sent(first)
    with pytest.raises(AssertionError):
        queue.sent(first)


def test_the_oldest_batch_is_found_wherever_it_is() -> None:
    queue = queue_of(3)
    one, two = send(queue), send(queue)
    assert queue.oldest() is one
    queue.returned(one)
    assert queue.oldest() is one
    queue.acknowledged(two, 16)
    queue.acknowledged(send(queue), 6)
    oldest = queue.oldest()
    assert oldest is not None
    assert oldest.payload == b"3"


def test_what_comes_next_lies_above_what_was_acknowledged() -> None:
    queue = PartitionQueue(T0, floor_offset=5)
    assert queue.next_offset() == 5
    queue.push(b"0", record_count=3, row_key=None, deadline_s=1)
    queue.acknowledged(send(queue), 8)
    assert queue.next_offset() == 11
