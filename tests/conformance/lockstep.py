"""Two servers that are asked the same, step by step, and random sequences of such requests.

A step says which producer acts by position ("the newest pair of the second id, one epoch older"), never by number, so
that it still means something when steps before it are left out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from tests.conformance import operations as ops
from tests.conformance.answers import UNKNOWN_PRODUCER_ID, walk
from tests.conformance.leader_operations import (
    Fetch,
    FetchOffsets,
    ListOffsets,
    Marker,
    Markers,
    Produce,
    Producers,
    Write,
)
from tests.conformance.raw_client import HungUpError, RawClient

IDS: Final = 3
PARTITIONS: Final = 2
STEPS: Final = 30


@dataclass(frozen=True)
class Step:
    """One request.

    Args:
        kind: which; see `KINDS`.
        tid: index of the transactional id.
        back: how many pairs ago the producer got its pair; 0 has the newest.
        shift: added to the epoch of that pair.
        partitions: indexes.
        sequence: difference to the sequence that the leader waits for, as far as the fuzzer can know.
        count: of records.
        version: of the request.
        flag: commit, or read committed, or another: what it means depends on the kind.
        repeat: send the request that was sent so many requests ago once more, byte by byte; 0 for a new one.
    """

    kind: str
    tid: int = 0
    back: int = 0
    shift: int = 0
    partitions: tuple[int, ...] = (0,)
    sequence: int = 0
    count: int = 1
    version: int = 0
    flag: bool = False
    repeat: int = 0


#: Kind of request: how often, and the versions to choose from.
KINDS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "init": (10, (3, 4, 5, 6)),
    "init with a pair": (7, (3, 4, 5, 6)),
    "init two-phase": (2, (6,)),
    "init keep": (1, (6,)),
    "init plain": (2, (1, 5)),
    "add": (9, (1, 3)),
    "add by a leader": (2, (4, 5)),
    "verify": (3, (4, 5)),
    "add offsets": (3, (1, 3, 4)),
    "commit offsets": (4, (3, 4, 5)),
    "fetch offsets": (3, (8,)),
    "produce": (26, (9, 11, 12, 12)),
    "produce plain": (5, (9, 12)),
    "produce broken": (1, (9, 11, 12)),
    "end": (18, (1, 3, 4, 5, 5, 5)),
    "marker": (3, (1, 2)),
    "fetch": (9, (12,)),
    "list offsets": (4, (7,)),
    "describe": (4, (0,)),
    "list": (3, (0, 1, 2)),
    "producers": (5, (0,)),
}
#: What only clients of transaction.version 2 send cannot be kept in a log of level 0; Kafka then fails, and with it
#: whatever its leader asked for at the same time.
_WITHOUT_TAGS: Final = {
    "produce": (9, 11),
    "produce broken": (9, 11),
    "end": (1, 3, 4),
    "commit offsets": (3, 4),
    "add by a leader": (3,),
}
_SEQUENCES: Final = (0, 0, 0, 0, 0, 0, 0, 1, -1, 3, -2)
_SHIFTS: Final = (0, 0, 0, 0, 0, 0, 0, 0, 0, 1, -1, 5)
#: Which producer acts: mostly the newest, sometimes one that was fenced.
_BACK: Final = (0, 0, 0, 0, 0, 0, 0, 1, 1, 2)
_REPEATED: Final = 0.08


def draw(seed: int, *, level: int = 2) -> list[Step]:
    """The sequence of a seed, for servers at this transaction.version."""
    chance = random.Random(seed)
    names = list(KINDS)
    weights = [KINDS[name][0] for name in names]
    # Every sequence begins with producers, or most of it would be about ids that nobody knows.
    steps = [Step("init", tid=index, version=5) for index in range(chance.choice((1, 2, IDS)))]
    while len(steps) < STEPS:
        if chance.random() < _REPEATED:
            steps.append(Step("repeat", repeat=chance.choice((1, 1, 2, 3, 5))))
            continue
        kind = chance.choices(names, weights)[0]
        versions = KINDS[kind][1] if level else _WITHOUT_TAGS.get(kind, KINDS[kind][1])
        places = tuple(range(PARTITIONS)) if chance.random() < 0.2 else (chance.randrange(PARTITIONS),)
        steps.append(
            Step(
                kind,
                tid=min(chance.randrange(IDS), chance.randrange(IDS)),
                back=chance.choice(_BACK),
                shift=chance.choice(_SHIFTS),
                partitions=places,
                sequence=chance.choice(_SEQUENCES),
                count=chance.choice((1, 1, 2, 3)),
                version=chance.choice(versions),
                flag=chance.random() < 0.5,
            )
        )
    return steps


TOPIC: Final = "fuzz"
#: Sequences take turns on so many partitions.
TOPIC_PARTITIONS: Final = 64
#: Codes that a busy server gives for a moment: the side that has one is asked again before it counts.
_PASSING: Final = frozenset({6, 14, 15, 16, 19, 51})
#: Kafka's leader asks the coordinator for several clients at once, and then gives all of them the code that the first
#: one's version knows: old clients may be told what only new ones understand, and the other way round.
_EITHER: Final = frozenset({48, 120})
_PASSING_DEADLINE_S: Final = 3.0
#: How long end markers may take until a transaction counts as stuck, which a marker of our own may have caused.
_SETTLED_DEADLINE_S: Final = 5.0
_STUCK_AFTER_S: Final = 0.3
_PAUSE_S: Final = 0.0005
_CONCURRENT: Final = 51
_CLEANING_ROUNDS_MAX: Final = 3
_HUNG_UP: Final = "hung up"
_STATES: Final = ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort")
#: The list of pairs of producers without a transactional id.
_PLAIN: Final = IDS


class Ordinal(int):
    """A producer id as both sides have it: the how-manieth of the sequence."""


#: A pair as both sides have it.
Held: TypeAlias = tuple[Ordinal, int]


@dataclass
class Side:
    """One server, as one sequence sees it.

    Args:
        bases: where each partition stood before the sequence.
        producer_ids: in the order of their first appearance.
    """

    client: RawClient
    coordinator_epoch: int = 0
    partitions: tuple[ops.Partition, ...] = ()
    bases: dict[ops.Partition, int] = field(default_factory=dict)
    producer_ids: list[int] = field(default_factory=list)

    def begin(self, partitions: tuple[ops.Partition, ...]) -> None:
        """Start a sequence on these partitions."""
        self.partitions = partitions
        self.producer_ids = []
        self.bases = {each: ops.ask(self.client, ListOffsets(partition=each))[1] for each in partitions}

    def fill(self, operation: ops.Operation) -> Any:
        """The operation with this server's numbers."""
        filled = walk(operation, self._fill)
        return replace(filled, only=tuple(self.producer_ids)) if isinstance(filled, Producers) else filled

    def name(self, result: Any) -> Any:
        """A result in terms that both servers share."""
        return walk(result, self._name)

    def send(self, operation: ops.Operation) -> None:
        """Ask, and leave the answer for `receive`."""
        self.client.send(operation.request(), operation.version)

    def receive(self, operation: ops.Operation) -> Any:
        """The answer, named."""
        try:
            return self.name(operation.result(self.client.receive()))
        except HungUpError:
            self.client = self.client.reconnected()
            return _HUNG_UP

    def _fill(self, value: Any) -> Any:
        if isinstance(value, Ordinal):
            return self.producer_ids[value] if value < len(self.producer_ids) else UNKNOWN_PRODUCER_ID
        if isinstance(value, ops.Offset):
            return self.bases[value.partition] + value
        return self.coordinator_epoch if isinstance(value, ops.CoordinatorEpoch) else None

    def _name(self, value: Any) -> Any:
        if isinstance(value, ops.ProducerId):
            return self._ordinal(int(value)) if value >= 0 else int(value)
        if isinstance(value, ops.Offset):
            return int(value) - self.bases.get(value.partition, 0) if value >= 0 else int(value)
        if isinstance(value, ops.CoordinatorEpoch):
            return "current" if value == self.coordinator_epoch else int(value)
        return None

    def _ordinal(self, number: int) -> str | None:
        if number == UNKNOWN_PRODUCER_ID:
            return None
        if number not in self.producer_ids:
            self.producer_ids.append(number)
        return f"producer {self.producer_ids.index(number)}"


@dataclass(frozen=True)
class Difference:
    """Where two servers part.

    Args:
        index: of the step; as many as there are steps when it shows only in what is left behind.
    """

    index: int
    operation: Any
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"step {self.index + 1}: {self.operation}\n  left:  {self.left}\n  right: {self.right}"


class _PartedError(Exception):
    """Ends a sequence at the first difference."""

    def __init__(self, operation: Any, left: Any, right: Any) -> None:
        super().__init__(str(operation))
        self.seen = (operation, left, right)


class Lockstep:
    """Runs sequences against two servers.

    Args:
        mark: begins every transactional id; unique among all that use these servers.
    """

    def __init__(self, left: Side, right: Side, mark: str) -> None:
        self._sides = (left, right)
        self._mark = mark
        self._run = 0
        #: How many requests both sides have answered.
        self.requests = 0

    def run(self, steps: Sequence[Step], first_partition: int) -> Difference | None:
        """The first difference, or None."""
        self._run += 1
        chosen = tuple((TOPIC, first_partition + index) for index in range(PARTITIONS))
        for side in self._sides:
            side.begin(chosen)
        sequence = _Sequence(self, f"{self._mark}-{self._run}", chosen)
        index = 0
        try:
            for index, step in enumerate(steps):  # noqa: B007 - used where the loop was left
                sequence.step(step)
            index = len(steps)
            sequence.clean_up()
        except _PartedError as parted:
            return Difference(index, *parted.seen)
        return None

    def ask(self, operation: ops.Operation) -> Any:
        """What both sides answer.

        Raises:
            _PartedError: they answer differently.
        """
        operations = [side.fill(operation) for side in self._sides]
        answers = self._exchange(operations)
        end = time.monotonic() + _PASSING_DEADLINE_S
        while answers[0] != answers[1] and _is_passing(answers) and time.monotonic() < end:
            time.sleep(_PAUSE_S)
            for index, side in enumerate(self._sides):
                if _codes(answers[index]) & (_PASSING | _EITHER):
                    side.send(operations[index])
                    answers[index] = side.receive(operations[index])
        if answers[0] != answers[1]:
            raise _PartedError(operations[0], *answers)
        return answers[0]

    def settle(self, tid: str) -> bool:
        """Wait until the end markers are written; False where they never are, on neither side."""
        question = ops.Describe(tid=tid)
        start, waiting = time.monotonic(), [True, True]
        while time.monotonic() < start + _SETTLED_DEADLINE_S:
            waiting = [ops.is_decided(each) for each in self._exchange([question, question])]
            if not any(waiting):
                return True
            if all(waiting) and time.monotonic() > start + _STUCK_AFTER_S:
                return False
            time.sleep(_PAUSE_S)
        raise _PartedError(question, *waiting)

    def open_transactions(self, partition: ops.Partition) -> list[Held]:
        """The pairs of those that still hold readers back."""
        entries = self.ask(Producers(partition=partition))
        return [(_number(each[0]), each[1]) for each in entries if each[4] >= 0]

    def _exchange(self, operations: Sequence[ops.Operation]) -> list[Any]:
        self.requests += 1
        for side, operation in zip(self._sides, operations, strict=True):
            side.send(operation)
        return [side.receive(operation) for side, operation in zip(self._sides, operations, strict=True)]


class _Sequence:
    """One sequence while it runs: what its producers hold, and what leaders wait for."""

    def __init__(self, servers: Lockstep, mark: str, partitions: tuple[ops.Partition, ...]) -> None:
        self._servers = servers
        self._mark = mark
        self._partitions = partitions
        self._now_ms = time.time_ns() // 1_000_000
        self._pairs: list[list[Held]] = [[] for _ in range(IDS + 1)]
        self._next: dict[tuple[Held, ops.Partition], int] = {}
        #: Step, request, and the pair that produced.
        self._made: list[tuple[Step, ops.Operation, Held]] = []
        self._stuck: set[str] = set()

    def step(self, step: Step) -> None:
        """Carry out one step, and learn from its answer."""
        if step.kind != "repeat":
            made = step, self._make(step), self._produced_as(step)
        elif step.repeat <= len(self._made):
            made = self._made[-step.repeat]
        else:
            return
        self._made.append(made)
        self._learn(made[0], made[2], self._servers.ask(made[1]))

    def clean_up(self) -> None:
        """Leave nothing open, and compare what is left."""
        own = ops.CoordinatorEpoch(0)
        for index in range(IDS):
            for _ in range(_CLEANING_ROUNDS_MAX):
                self.step(Step("init", tid=index, version=5))
        for partition in self._partitions:
            for held in self._servers.open_transactions(partition):
                marker = Marker(pair=held, commit=False, partitions=(partition,), coordinator_epoch=own)
                self._servers.ask(Markers(markers=(marker,)))
            for committed in (False, True):
                self._servers.ask(Fetch(partition=partition, offset=ops.Offset(0, partition), committed=committed))
                self._servers.ask(ListOffsets(partition=partition, committed=committed))
        self._servers.ask(FetchOffsets(group=self._mark, partitions=self._partitions, stable=True))

    def _tid(self, step: Step) -> str:
        return f"{self._mark}-{step.tid}"

    def _held(self, step: Step, index: int | None = None) -> Held:
        pairs = self._pairs[step.tid if index is None else index]
        if not pairs:
            return Ordinal(UNKNOWN_PRODUCER_ID), max(0, step.shift)
        found = pairs[max(0, len(pairs) - 1 - step.back)]
        return found[0], max(0, found[1] + step.shift)

    def _learn(self, step: Step, producer: Held, answer: Any) -> None:
        code = answer[0] if isinstance(answer, tuple) else answer
        changes = step.kind == "end" or step.kind.startswith("init")
        if changes and isinstance(answer, tuple) and code == 0:
            own = self._pairs[_PLAIN if step.kind == "init plain" else step.tid]
            held = (_number(answer[1]), answer[2])
            if held not in own:
                own.append(held)
        tid = self._tid(step)
        ended = changes and code == (0 if step.kind == "end" else _CONCURRENT)
        if ended and tid not in self._stuck and not self._servers.settle(tid):
            self._stuck.add(tid)
        if step.kind.startswith("produce") and isinstance(answer, dict):
            for partition, produced in answer.items():
                if produced[0] == 0:
                    self._next[producer, partition] = self._sequence(step, producer, partition) + step.count

    def _produced_as(self, step: Step) -> Held:
        plain = step.kind == "produce plain" and not step.flag
        return self._held(step, _PLAIN if plain else step.tid)

    def _sequence(self, step: Step, held: Held, partition: ops.Partition) -> int:
        return max(0, self._next.get((held, partition), 0) + step.sequence)

    def _make(self, step: Step) -> ops.Operation:
        """The request of a step: everything is decided here, but for what each server chose itself."""
        if step.kind.startswith("init"):
            return self._make_init(step)
        if step.kind.startswith("produce"):
            return self._make_produce(step)
        if step.kind == "marker":
            return self._make_marker(step)
        held, group, flag = self._held(step), self._mark, step.flag
        places = tuple(self._partitions[index] for index in step.partitions)
        place, offsets = places[0], tuple((each, step.count * 10) for each in places)
        listed: dict[str, Any] = {
            "states": (_STATES[step.count], "Nonsense") if flag else (),
            "producer_ids": (held[0],) if step.shift else (),
        }
        usual: dict[str, Any] = {"tid": self._tid(step), "pair": held, "version": step.version}
        made: dict[str, ops.Operation] = {
            "add": ops.Add(**usual, partitions=places),
            "add by a leader": ops.Add(**usual, partitions=places),
            "verify": ops.Add(**usual, partitions=places, verify=True),
            "add offsets": ops.AddOffsets(**usual, group=group),
            "commit offsets": ops.CommitOffsets(**usual, group=group, offsets=offsets),
            "end": ops.End(**usual, commit=flag),
            "producers": Producers(partition=place),
            "fetch": Fetch(partition=place, offset=ops.Offset(step.count if step.back else 0, place), committed=flag),
            "list offsets": ListOffsets(partition=place, committed=flag),
            "fetch offsets": FetchOffsets(group=group, partitions=self._partitions, stable=flag),
            "describe": ops.Describe(tid=self._tid(step)),
            "list": ops.ListTransactions(prefix=self._mark, version=step.version, **listed),
        }
        return made[step.kind]

    def _make_init(self, step: Step) -> ops.Init:
        return ops.Init(
            tid=None if step.kind == "init plain" else self._tid(step),
            held=self._held(step) if step.kind == "init with a pair" else ops.NO_PAIR,
            version=step.version,
            two_phase=step.kind == "init two-phase",
            keep=step.kind == "init keep",
        )

    def _make_produce(self, step: Step) -> Produce:
        plain, broken = step.kind == "produce plain", step.kind == "produce broken"
        held = self._produced_as(step)
        writes = tuple(
            Write(
                partition=place,
                pair=held,
                sequence=self._sequence(step, held, place),
                count=step.count,
                transactional=not plain,
                broken=broken and step.flag,
                control=broken and not step.flag,
            )
            for place in (self._partitions[index] for index in step.partitions)
        )
        return Produce(tid=None if plain else self._tid(step), writes=writes, now_ms=self._now_ms, version=step.version)

    def _make_marker(self, step: Step) -> Markers:
        marker = Marker(
            # Epochs ahead of the coordinator's would leave its own markers refused for ever: not of its producers.
            pair=self._held(step, _PLAIN if step.shift > 0 else None),
            commit=step.flag,
            partitions=tuple(self._partitions[index] for index in step.partitions),
            coordinator_epoch=ops.CoordinatorEpoch(0) if step.sequence >= 0 else -1,
            transaction_version=step.count - 1 if step.version >= 2 else 0,
        )
        return Markers(markers=(marker,), version=step.version)


def _number(name: Any) -> Ordinal:
    """The how-manieth producer id a name stands for."""
    return Ordinal(name.removeprefix("producer ") if isinstance(name, str) else UNKNOWN_PRODUCER_ID)


def _codes(answer: Any) -> set[int]:
    """The numbers in an answer that may be error codes."""
    if isinstance(answer, dict):
        return {code for each in answer.values() for code in _codes(each)}
    if isinstance(answer, tuple):
        return {answer[0]} if answer and isinstance(answer[0], int) else set()
    return {answer} if isinstance(answer, int) else set()


def _is_passing(answers: Sequence[Any]) -> bool:
    codes = [_codes(each) for each in answers]
    return any(each & _PASSING for each in codes) or all(each & _EITHER for each in codes)
