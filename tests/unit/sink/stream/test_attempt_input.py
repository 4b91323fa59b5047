"""What is held and released of the tasks of an attempt, for any interleaving of sending, retries, losses and consuming.

The model drives `AttemptInput` as the listener does: a sender reserves room for a frame, its bytes come later, and one
that found no room tries again only when it is woken.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, strategies as st

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, Ended, Released, Sender, StaleTaskError
from spark_2pc_sink.sink.stream.task_stream import END, Frame, FrameKind, packed_details
from spark_2pc_sink.wire.record_batch import EncodedBatch

BYTES_MAX = 1000
TASKS = 3
KINDS = (FrameKind.ROWS, FrameKind.RECORDS)


def a_frame(kind: FrameKind, size: int, name: int = 0) -> Frame:
    payload = memoryview(name.to_bytes(4, "big") * size)[: 4 * size]
    batch = EncodedBatch(TopicPartition("orders", name), payload, 1, digest=name)
    details = packed_details(batch) if kind is FrameKind.RECORDS else b""
    return Frame(kind, payload, count=1, details=details)


@dataclass(eq=False)
class Running:
    sender: Sender
    frames: deque[Frame]
    sent: list[int] = field(default_factory=list)
    reserved: bool = False
    waits: bool = False


class World:
    """The listener and the consumers of one attempt, in one thread."""

    def __init__(self) -> None:
        self.woken = False
        self.input = AttemptInput(BYTES_MAX, TASKS, self._wake)
        self.running: list[Running] = []
        self.attempts: dict[tuple[int, int], Running] = {}
        self.released: dict[int, list[tuple[int, FrameKind, int]]] = defaultdict(list)
        self.taken: list[Released] = []
        self.numbers = count()
        self.largest = 0
        self.must_fail = False

    def _wake(self) -> None:
        self.woken = True

    def start(self, task: int, sizes: list[tuple[FrameKind, int]]) -> None:
        number = next(self.numbers)
        known = [each.sender for (of_task, _), each in self.attempts.items() if of_task == task]
        self.must_fail |= any(sender.committed for sender in known)
        try:
            sender = self.input.admit(task, number)
        except BatchRetryError:
            assert self.must_fail
            return
        frames = [a_frame(kind, size, number * 100 + index) for index, (kind, size) in enumerate(sizes)]
        self.largest = max([self.largest, *(frame.frame_bytes for frame in frames)])
        run = Running(sender, deque(frames))
        self.running = [each for each in self.running if not each.sender.replaced]
        self.running.append(run)
        self.attempts[task, number] = run

    def go(self, run: Running) -> bool:
        """The next half step of a sender: room, or the bytes. False if it has to wait."""
        frame = run.frames[0] if run.frames else END
        if not run.reserved:
            run.reserved = self.input.reserve(run.sender, frame.frame_bytes)
            run.waits = not run.reserved
        else:
            run.reserved = False
            self.input.receive(run.sender, frame)
            if run.frames:
                run.sent.append(int.from_bytes(run.frames.popleft().payload[:4], "big"))
            else:
                self.running.remove(run)
        self.serve()
        return not run.waits

    def serve(self) -> None:
        while self.woken and not self.must_fail:
            self.woken = False
            waiting = {each.sender: each for each in self.running if each.waits}
            while (run := waiting.pop(self.input.next_waiting, None)) is not None:  # type: ignore[arg-type]
                frame = run.frames[0] if run.frames else END
                run.reserved = self.input.reserve(run.sender, frame.frame_bytes)
                run.waits = not run.reserved

    def lose(self, run: Running) -> None:
        self.must_fail |= run.sender.committed
        self.running.remove(run)
        self.input.lost(run.sender)
        self.serve()

    def take(self, kind: FrameKind) -> bool:
        released = self.input.take(kind, 0)
        if not isinstance(released, Released):
            return False
        name = int.from_bytes(released.frame.payload[:4], "big")
        sender = released.sender
        self.released[sender.task].append((sender.task_attempt, kind, name))
        self.taken.append(released)
        return True

    def done(self) -> bool:
        if not self.taken:
            return False
        self.input.done(self.taken.pop(0))
        self.serve()
        return True

    def check(self) -> None:
        held = sum(each.sender.held_bytes for each in self.running)
        assert held <= BYTES_MAX // 2
        assert all(each.sender.held_bytes <= BYTES_MAX // (2 * TASKS) for each in self.running)
        # One frame that is larger than half of the ceiling gets in when nothing but held bytes is left.
        assert self.input.held_bytes <= max(BYTES_MAX, BYTES_MAX // 2 + self.largest)

    def step(self, step: str, number: int) -> None:
        ready = [each for each in self.running if not each.waits]
        if step == "start":
            self.start(number % (TASKS + 2), sizes_of(number))
        elif step == "go" and ready:
            self.go(ready[number % len(ready)])
        elif step == "lose" and self.running:
            self.lose(self.running[number % len(self.running)])
        elif step == "take":
            self.take(KINDS[number % 2])
        elif step == "done":
            self.done()
        self.check()

    def to_the_end(self) -> None:
        """Consumers and running tasks go on; each must come to its end, whatever has happened before."""
        moved = True
        while moved:
            moved = False
            for run in list(self.running):
                moved |= not run.waits and (self.go(run) or run.waits)
            for kind in KINDS:
                moved |= self.take(kind)
            moved |= self.done()
            self.check()
        assert self.running == []


STEPS = st.lists(
    st.tuples(st.sampled_from(["start", *["go"] * 9, "lose", "take", "take", "done", "done"]), st.integers(0, 2**20)),
    min_size=20,
    max_size=200,
)


def sizes_of(number: int) -> list[tuple[FrameKind, int]]:
    """Up to six frames, most of them small, and now and then one that is larger than the ceiling."""
    chance = random.Random(number)
    largest = chance.choice([10, 10, 60, 400])
    return [(chance.choice(KINDS), chance.randint(1, largest)) for _ in range(chance.randrange(7))]


@given(STEPS)
def test_every_interleaving_ends_with_each_task_whole_or_the_attempt_failed(steps: list[tuple[str, int]]) -> None:
    world = World()
    for step, number in steps:
        if world.must_fail:
            break
        world.step(step, number)
    assert (world.input.failure is not None) == world.must_fail
    if world.must_fail:
        with pytest.raises(BatchRetryError):
            world.input.take(FrameKind.ROWS, 0)
        return
    world.to_the_end()
    assert world.input.held_bytes == 0
    finished = world.input.finished
    world.input.close_input()
    assert world.input.take(FrameKind.ROWS, 0) is Ended.ENDED
    # Of each task, all that its last attempt has sent, in order of each kind, and nothing of another attempt.
    for task, (task_attempt, _) in finished.items():
        released = world.released[task]
        assert {attempt for attempt, _, _ in released} <= {task_attempt}
        assert sorted(name for _, _, name in released) == world.attempts[task, task_attempt].sent
        for kind in KINDS:
            names = [name for _, of_kind, name in released if of_kind is kind]
            assert names == sorted(names)
    assert set(world.released) <= set(finished)


def test_no_task_is_let_in_after_the_job() -> None:
    world = World()
    world.input.close_input()
    with pytest.raises(StaleTaskError, match="after the job had ended"):
        world.input.admit(0, 0)
