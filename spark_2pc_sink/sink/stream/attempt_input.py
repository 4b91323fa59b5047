"""The output of one attempt's tasks: held back, released to the consumers' threads, and bounded. No sockets.

The frames of a task attempt are held back until it ends, so that Spark can run the task again. A task attempt that
sends more than may be held is committed: its frames are released as they arrive, and a second attempt of the task, or
the loss of its connection, fails the attempt of the batch.

All frames share one ceiling, ``bytes_max``: one half is for held bytes, the other for bytes that have been released,
which drain as the consumers proceed, or belong to a frame in transit. So a task that waits for room always gets it:
room is given in the order in which it was requested, and a frame larger than half of the ceiling is admitted when only
held bytes are left.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic
from typing import Final

import numpy as np

from spark_2pc_sink.errors import BatchRetryError, DataError, RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.sink.stream.task_stream import (
    HEADER,
    HELLO,
    NO_KEY,
    PAYLOAD_BYTES_MAX,
    QUESTION_BYTES_MAX,
    RECORDS,
    DriverMessage,
    Frame,
    FrameKind,
    LaneTotals,
    StreamOutput,
)
from spark_2pc_sink.wire.record_batch import EncodedBatch

#: A topic has at most 249 characters, a printable row key 81 of at most 4 bytes.
_DETAILS_BYTES_MAX: Final = 1024
#: The least and the most bytes of a payload.
_PAYLOAD_BYTES: Final = {
    FrameKind.HELLO: (HELLO.size, HELLO.size),
    FrameKind.ROWS: (1, PAYLOAD_BYTES_MAX),
    FrameKind.RECORDS: (1, PAYLOAD_BYTES_MAX),
    FrameKind.QUESTION: (1, QUESTION_BYTES_MAX),
    FrameKind.END: (1, 1),
}


class FrameReader:
    """Reads the frames of one connection. Fill `space`, then call `advance`.

    The memory of a frame is allocated by `space` after its header has been read, so a caller can look at
    `frame_bytes` first and wait.
    """

    def __init__(self) -> None:
        self._header = memoryview(bytearray(HEADER.size))
        self._body: memoryview | None = None
        self._filled = 0
        self._next_number = 0
        #: Bytes of the frame whose header has been read; 0 before that.
        self.frame_bytes: int = 0
        self._kind, self._lane, self._count, self._details_bytes = FrameKind.HELLO, 0, 0, 0

    @property
    def mid_frame(self) -> bool:
        return self._filled > 0 or self.frame_bytes > 0

    def space(self) -> memoryview:
        """Buffer for the next bytes of the connection; never empty."""
        if not self.frame_bytes:
            return self._header[self._filled :]
        if self._body is None:
            # Uninitialized memory: a frame fills all of it.
            self._body = np.empty(self.frame_bytes, np.uint8).data
        return self._body[self._filled :]

    def advance(self, received: int) -> Frame | None:
        """Record that the first ``received`` bytes of `space` are filled; returns the frame if it is complete."""
        self._filled += received
        if self._body is None:
            if self._filled == len(self._header):
                self._read_header()
                self._filled = 0
            return None
        if self._filled < self.frame_bytes:
            return None
        body = self._body
        self._body, self._filled, self.frame_bytes = None, 0, 0
        details = bytes(body[: self._details_bytes])
        return Frame(self._kind, body[self._details_bytes :], self._lane, self._count, details)

    def _read_header(self) -> None:
        kind, self._lane, number, self._count, self._details_bytes, payload_bytes = HEADER.unpack(self._header)
        if kind not in _PAYLOAD_BYTES:
            raise _broken(f"frame {self._next_number} has the unknown kind {kind}")
        self._kind = FrameKind(kind)
        name = self._kind.name
        if (self._kind is FrameKind.HELLO) != (self._next_number == 0):
            raise _broken(f"frame {self._next_number} is {name}: the first frame, and no other, must be HELLO")
        if number != self._next_number:
            raise _broken(f"received frame {number}, expected frame {self._next_number}")
        least, most = _PAYLOAD_BYTES[self._kind]
        if not least <= payload_bytes <= most:
            raise _broken(f"{name} has a payload of {payload_bytes} bytes, which must be {least} to {most}")
        if self._details_bytes > _DETAILS_BYTES_MAX or (self._details_bytes and self._kind is not FrameKind.RECORDS):
            raise _broken(f"{name} has {self._details_bytes} bytes of details")
        self._next_number += 1
        self.frame_bytes = self._details_bytes + payload_bytes


def unpacked_batch(frame: Frame) -> EncodedBatch:
    details = frame.details
    if len(details) < RECORDS.size:
        raise _broken(f"a record batch has {len(details)} bytes of details, fewer than {RECORDS.size}")
    partition, digest, topic_bytes, key_bytes = RECORDS.unpack_from(details)
    topic_end = RECORDS.size + topic_bytes
    if partition < 0 or key_bytes < NO_KEY or len(details) != topic_end + max(key_bytes, 0) or not frame.count:
        raise _broken("the details of a record batch contradict each other")
    try:
        topic, key = details[RECORDS.size : topic_end].decode(), details[topic_end:].decode()
    except UnicodeDecodeError as error:
        raise _broken(f"a topic or key is not UTF-8: {error}") from error
    row_key = None if key_bytes == NO_KEY else key
    at, digest_value = TopicPartition(topic, partition), int.from_bytes(digest, "big")
    return EncodedBatch(at, frame.payload, frame.count, row_key, digest=digest_value)


def _broken(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(peer="a task", detail=detail)


#: Limit for one task attempt, however large the ceiling is.
HOLD_BYTES_MAX: Final = 8 * 1024 * 1024


class Ended(Enum):
    """Returned by `AttemptInput.take` when there is no more input."""

    ENDED = "ended"


class StaleTaskError(BatchRetryError):
    """A task attempt that a newer one has replaced, or that arrives too late. The attempt of the batch continues."""


@dataclass(eq=False)
class Sender:
    """One task attempt as the driver sees it."""

    task: int
    task_attempt: int
    #: Its frames are released as they arrive.
    committed: bool = False
    ended: bool = False
    replaced: bool = False
    #: Bytes of the frame that it is sending.
    reserved: int = 0
    #: Frames that wait for its end, ``held_bytes`` in total.
    held: list[Released] = field(default_factory=list)
    held_bytes: int = 0
    totals: dict[int, LaneTotals] = field(default_factory=dict)
    #: The reply to its question that it has not got yet.
    answer: bytes | None = None


@dataclass(frozen=True, eq=False)
class Released:
    """A frame for a consumer, which releases its bytes with `AttemptInput.done`; ``batch`` is that of RECORDS."""

    sender: Sender
    frame: Frame
    batch: EncodedBatch | None


class AttemptInput:
    """The output of one attempt's tasks, of which ``tasks_at_once`` may run at a time. Thread-safe.

    ``wake`` is called, with the lock held, when a sender may have got room, or has an answer, or all must end.
    """

    def __init__(self, bytes_max: int, tasks_at_once: int, wake: Callable[[], None] = lambda: None) -> None:
        self._bytes_max = bytes_max
        self._hold_bytes_max = min(HOLD_BYTES_MAX, bytes_max // (2 * max(1, tasks_at_once)))
        self._wake = wake
        # Its lock is re-entrant.
        self._changed = threading.Condition()
        self._senders: dict[int, Sender] = {}
        self._queues: dict[FrameKind, deque[Released]] = {FrameKind.ROWS: deque(), FrameKind.RECORDS: deque()}
        self._waiting: deque[Sender] = deque()
        self._used = self._held = 0
        self._input_closed = False
        self.failure: Exception | None = None

    # --- consumers and the driver --------------------------------------------------------------------------------

    def take(self, kind: FrameKind, timeout_s: float) -> Released | Ended | None:
        """The next frame for a consumer, those of one task in their order; None after ``timeout_s`` without one."""
        end_s = monotonic() + timeout_s
        with self._changed:
            while True:
                self._check()
                if self._queues[kind]:
                    return self._queues[kind].popleft()
                if self._input_closed:
                    return Ended.ENDED
                left_s = end_s - monotonic()
                if left_s <= 0:
                    return None
                self._changed.wait(left_s)

    def done(self, released: Released) -> None:
        """Release the bytes of a frame that was taken; its payload must not be used any more."""
        with self._changed:
            self._give_back(released.frame.frame_bytes)

    def answer(self, released: Released, reply: bytes) -> None:
        """Reply to a QUESTION, in at most ``QUESTION_BYTES_MAX`` bytes, and release its bytes."""
        with self._changed:
            released.sender.answer = reply
            self._give_back(released.frame.frame_bytes)
            self._changed.notify_all()
            self._wake()

    def close_input(self) -> None:
        """The job is over: no more tasks are admitted, and `take` returns `Ended` when its queue is empty."""
        with self._changed:
            self._input_closed = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """End the attempt: every task is told at once, and every later call of `take` raises the first ``error``."""
        with self._changed:
            if self.failure is not None:
                return
            self.failure = error
            for queue in self._queues.values():
                queue.clear()
            for sender in self._senders.values():
                sender.held.clear()
            self._changed.notify_all()
            self._wake()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An exception in the block, for instance in a consumer's loop, fails the attempt and is re-raised."""
        try:
            yield
        except BaseException as error:
            self.fail(error if isinstance(error, Exception) else BatchRetryError(reason="the driver was interrupted"))
            raise

    @property
    def held_bytes(self) -> int:
        """Bytes of all frames that are held, queued, taken and not done, or being received."""
        return self._used

    @property
    def finished(self) -> dict[int, tuple[int, dict[int, LaneTotals]]]:
        """The finished attempt of each task, and the totals of what arrived of it, by lane."""
        with self._changed:
            ended = (sender for sender in self._senders.values() if sender.ended)
            return {sender.task: (sender.task_attempt, dict(sender.totals)) for sender in ended}

    # --- senders -------------------------------------------------------------------------------------------------

    def admit(self, task: int, task_attempt: int) -> Sender:
        """Let a task attempt send; an earlier attempt of the task is dropped."""
        with self._changed:
            self._check()
            known = self._senders.get(task)
            if self._input_closed:
                raise StaleTaskError(reason=f"attempt {task_attempt} of task {task} started after the job had ended")
            if known is not None and task_attempt < known.task_attempt:
                newer = known.task_attempt
                raise StaleTaskError(reason=f"attempt {task_attempt} of task {task} was replaced by attempt {newer}")
            if known is not None and known.committed:
                sent = f"what attempt {known.task_attempt} had sent was already being written"
                error = BatchRetryError(reason=f"task {task} ran again as attempt {task_attempt}, and {sent}")
                self.fail(error)
                raise error
            if known is not None:
                self._drop(known)
            self._senders[task] = sender = Sender(task, task_attempt)
            return sender

    def reserve(self, sender: Sender, frame_bytes: int) -> bool:
        """Make room for the next frame of a sender; False if it must wait, until `next_waiting` names it."""
        with self._changed:
            self._check()
            first = self._waiting[0] if self._waiting else sender
            fits = self._used - self._held + frame_bytes <= self._bytes_max // 2 or self._used == self._held
            if first is not sender or not fits:
                if sender not in self._waiting:
                    self._waiting.append(sender)
                return False
            if self._waiting:
                self._waiting.popleft()
                self._room_changed()
            sender.reserved = frame_bytes
            self._used += frame_bytes
            return True

    @property
    def next_waiting(self) -> Sender | None:
        with self._changed:
            return self._waiting[0] if self._waiting else None

    def receive(self, sender: Sender, frame: Frame) -> None:
        """Take a complete frame, for which room was reserved."""
        with self._changed:
            self._check()
            if sender.replaced:
                raise StaleTaskError(reason=f"attempt {sender.task_attempt} of task {sender.task} was replaced")
            if sender.ended:
                raise RemoteProtocolError(peer=f"task {sender.task}", detail=f"{frame.kind.name} arrived out of order")
            frame_bytes, sender.reserved = sender.reserved, 0
            if frame.kind is FrameKind.END:
                self._give_back(frame_bytes)
                self._commit(sender)
                sender.ended = True
                return
            batch = unpacked_batch(frame) if frame.kind is FrameKind.RECORDS else None
            released = Released(sender, frame, batch)
            if frame.kind is FrameKind.QUESTION:
                self._queues[FrameKind.RECORDS].appendleft(released)
                self._changed.notify_all()
                return
            before = sender.totals.get(frame.lane, LaneTotals())
            sender.totals[frame.lane] = before + LaneTotals.of(frame, batch)
            fits = sender.held_bytes + frame_bytes <= self._hold_bytes_max
            if sender.committed or not fits or self._held + frame_bytes > self._bytes_max // 2:
                self._commit(sender)
                self._queues[frame.kind].append(released)
                self._changed.notify_all()
            else:
                sender.held.append(released)
                sender.held_bytes += frame_bytes
                self._held += frame_bytes
                # A frame above the ceiling waits until only held bytes are left.
                self._room_changed()

    def taken_answer(self, sender: Sender) -> bytes | None:
        with self._changed:
            reply, sender.answer = sender.answer, None
            return reply

    def wait_for_room(self, sender: Sender, frame_bytes: int) -> None:
        """As `reserve`, for a sender of this process, which has its own thread to wait in."""
        with self._changed:
            while not self.reserve(sender, frame_bytes):
                self._changed.wait()

    def wait_for_answer(self, sender: Sender) -> bytes:
        """As `taken_answer`, for a sender of this process."""
        with self._changed:
            while (reply := self.taken_answer(sender)) is None:
                self._check()
                self._changed.wait()
            return reply

    def lost(self, sender: Sender) -> None:
        """The connection of a sender is lost. What it has sent is dropped; if it was committed, the attempt fails."""
        with self._changed:
            if sender.ended or sender.replaced or self.failure is not None:
                return
            if sender.committed:
                reason = f"lost the connection to attempt {sender.task_attempt} of task {sender.task}"
                self.fail(BatchRetryError(reason=f"{reason}, and what it had sent was already being written"))
                return
            self._drop(sender)
            del self._senders[sender.task]

    # --- with the lock held --------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _give_back(self, frame_bytes: int) -> None:
        self._used -= frame_bytes
        self._room_changed()

    def _room_changed(self) -> None:
        if self._waiting:
            self._changed.notify_all()
            self._wake()

    def _drop(self, sender: Sender) -> None:
        sender.replaced = True
        if sender in self._waiting:
            self._waiting.remove(sender)
        self._held -= sender.held_bytes
        self._give_back(sender.held_bytes + sender.reserved)
        sender.held_bytes = sender.reserved = 0
        sender.held.clear()
        self._wake()

    def _commit(self, sender: Sender) -> None:
        sender.committed = True
        self._held -= sender.held_bytes
        sender.held_bytes = 0
        for released in sender.held:
            self._queues[released.frame.kind].append(released)
        sender.held.clear()
        self._changed.notify_all()


class LocalStream(StreamOutput):
    """The output of a batch that the driver encodes itself: the same frames, without a connection."""

    def __init__(self, attempt: AttemptInput, task: int = 0) -> None:
        super().__init__()
        self._attempt = attempt
        self._sender = attempt.admit(task, 0)

    def _put(self, frame: Frame) -> None:
        self._attempt.wait_for_room(self._sender, frame.frame_bytes)
        self._attempt.receive(self._sender, frame)

    def _receive(self, expected: DriverMessage) -> bytes:
        # The attempt has processed END when it returns; only an answer arrives later.
        return self._attempt.wait_for_answer(self._sender) if expected is DriverMessage.ANSWER else b""


#: Time for the work to finish after a failure of the job, before it is interrupted, and again after that.
_GRACE_S: Final = 1.0


class BackgroundTask(threading.Thread):
    """Work in parallel with a job; see `attempt_threads`.

    ``work`` returns when there is no more input, and soon after the input has failed. ``interrupt`` ends its current
    wait, called from another thread, perhaps several times.
    """

    def __init__(self, work: Callable[[], None], name: str, interrupt: Callable[[], None]) -> None:
        # Copy the context, so that log lines have the sink's id.
        super().__init__(target=copy_context().run, args=(self._note_error, work), name=name, daemon=True)
        self._interrupt = interrupt
        self.error: Exception | None = None

    def stop(self) -> None:
        """Wait for the end of the work, which is interrupted if it does not end soon."""
        while self.is_alive():  # bounded: its wait was interrupted, or has a deadline
            self.join(_GRACE_S)
            if self.is_alive():
                self._interrupt()

    def finish(self) -> None:
        self.join()
        if self.error is not None:
            raise self.error

    def _note_error(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits for this one
            self.error = error


@contextmanager
def attempt_threads(source: AttemptInput, *tasks: BackgroundTask) -> Iterator[None]:
    """Around the job: the threads that consume the output of an attempt's tasks. None is left running.

    ``source`` is their input: it is closed when the block ends, and fails when the block fails. An error of a thread
    precedes that of the block, which is its consequence.
    """
    try:
        with source.failing():
            for task in tasks:
                task.start()
            yield
            source.close_input()
            for task in tasks:
                task.join()
    except BaseException as error:
        for task in tasks:
            task.stop()
        if isinstance(error, BatchRetryError) and source.failure not in (None, error):
            raise source.failure from error
        raise
    failures = [task.error for task in tasks if task.error is not None]
    if failures:
        raise min(failures, key=lambda failure: not isinstance(failure, DataError))
