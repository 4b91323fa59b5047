"""Schedules as behaviours of ``spec/DualWrite.tla``: what the real driver and recovery did, checked by TLC.

    make spec                                                  # a thousand schedules, after the models
    python -m tests.simulation.behaviours --schedules 5000     # more of them

While a schedule runs, everything that both servers show is noted after each change: the coordinator's state and epoch,
the state row, the table, Spark's checkpoint, and how many drivers run. The schedules of a profile make a tree, as most
begin alike. TLC goes through the specification along the tree: where drivers stand, and what is on its way, it chooses
itself. A node that it does not reach is a step that the specification does not allow.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from spark_2pc_sink.ids import PreparedTxnState
from spark_2pc_sink.reference.coordinator.events import Event
from spark_2pc_sink.reference.coordinator.plans import Reply
from spark_2pc_sink.reference.coordinator.states import NO_EPOCH
from tests.simulation import faults
from tests.simulation.broker import SimBroker
from tests.simulation.command import MUTANTS
from tests.simulation.explore import Applied, quiet
from tests.simulation.schedule import PROFILES, Choices, Profile, RandomChoices, Schedule, ScheduleError
from tests.simulation.world import StuckError, World
from tools.specification import HOLDS, SPECIFICATION, check, verdict

#: The specification has no batch without records.
BATCHES: Final = ((2, 1), (1, 1))
#: What the specification has: who dies or stands still, what is lost, and time-outs. It does not have requests that
#: arrive after their sender has gone on, but for EndTxn, nor other programs that use the id.
KINDS: Final = frozenset(
    {
        faults.CRASH,
        faults.LOSE_REQUEST,
        faults.LOSE_REPLY,
        faults.RESEND,
        faults.HANG,
        faults.TASK_FAILS,
        faults.BROKER_CRASH,
        faults.SLOW_MARKERS,
        faults.ONE_MARKER,
        faults.TIMEOUT,
        faults.DATABASE_CUT,
        faults.SECOND_DRIVER,
        faults.SWITCH,
    }
)
#: Profiles, and the specification's `Keep` of each.
PROFILES_CHECKED: Final = {"tv2": "no", "tv2-2pc": "no", "tv2-2pc-keep": "bumps", "tv2-2pc-keep-same": "same"}
FAULTS_MAX: Final = 4
DRIVERS_MAX: Final = 2
#: Epochs of the specification begin at 1, with an id that nobody has used; the first InitProducerId gives 0 here.
_EPOCHS_BEFORE: Final = 2
#: Defects of `command.MUTANTS` that TLC must notice by a step: the profile, and the fault after which it shows.
DEFECTS_CHECKED: Final = {
    "done noted before EndTxn": ("tv2", faults.CRASH),
    "no InitProducerId at the end of recovery": ("tv2", faults.SECOND_DRIVER),
    "no owed state: an aborted decision is noted as done": ("tv2", faults.TIMEOUT),
    "a decided open transaction is aborted": ("tv2-2pc", faults.CRASH),
    "EndTxn before COMMIT": ("tv2-2pc", faults.CRASH),
    "InitProducerId before the look": ("tv2-2pc", faults.CRASH),
}
#: A schedule without faults has fewer choice points.
_POINTS_MAX: Final = 60
_SHOWN_MAX: Final = 10

Seen = tuple[Any, ...]
_T = TypeVar("_T")


class _Broker(SimBroker):
    """The broker, with a look at everything after each change."""

    def __init__(self, world: NotingWorld) -> None:
        super().__init__(world.profile)
        self._world = world

    def do(self, event: Event) -> Reply | None:
        self._world.note()
        reply = super().do(event)
        self._world.note()
        return reply


class NotingWorld(World):
    """A world that notes what both servers show, each time that it changes."""

    def __init__(self, profile: Profile, choices: Choices) -> None:
        super().__init__(profile, choices)
        self.broker = _Broker(self)
        self.seen: list[Seen] = []
        self.note()

    def note(self) -> None:
        seen = self._look()
        if not self.seen or self.seen[-1] != seen:
            self.seen.append(seen)

    def io(
        self,
        kind: str,
        what: str,
        effect: Callable[[], _T],
        lost: Callable[[], Exception],
        *,
        hang: Callable[[], None] | None = None,
    ) -> _T:
        def noted() -> _T:
            answer = effect()
            if kind != faults.SPARK:
                # The last batch in Spark's checkpoint is the end of its driver: one step of the specification.
                self.note()
            return answer

        return super().io(kind, what, noted, lost, hang=hang)

    def trace(self, text: str) -> None:
        """A driver has begun, or ended."""
        del text
        self.note()

    def _choose(self, kind: str, what: str) -> str:
        self.note()
        if isinstance(self.choices, _Choices):
            # The specification starts no driver when all is done.
            self.choices.more_drivers = not self.finished
        return super()._choose(kind, what)

    def _look(self) -> Seen:
        known, row = self.broker.metadata(), self.database.row
        state, epoch = ("Empty", 1 - _EPOCHS_BEFORE)
        if known is not None and known.producer_epoch != NO_EPOCH:
            kept = known.next_producer_epoch != NO_EPOCH
            state, epoch = known.state.label, known.next_producer_epoch if kept else known.producer_epoch
        status, batch, prepared = "none", len(BATCHES), 0
        if row is not None:
            status, batch = row.status, len(BATCHES) if row.batch_id is None else row.batch_id
            producer = PreparedTxnState(row.prepared_transaction_state).producer
            prepared = 0 if producer is None else producer.epoch + _EPOCHS_BEFORE
        rows = Counter(record.batch_id for record in self.database.contents())
        table = (rows[number] // sum(size) for number, size in enumerate(BATCHES))
        running = sum(driver.outcome == "running" for driver in self.drivers)
        claims = 0 if row is None else row.generation
        return state, epoch + _EPOCHS_BEFORE, status, batch, prepared, claims, self.next_batch, *table, running


class _Choices(RandomChoices):
    """At random, of `KINDS`; `DRIVERS_MAX` at once."""

    more_drivers = True

    def choose(self, options: Sequence[str]) -> str:
        """As offered, but for what the specification does not have."""
        allowed = KINDS if self.more_drivers and faults.SWITCH not in options else KINDS - {faults.SECOND_DRIVER}
        return super().choose(tuple(option for option in options if option in allowed))


@dataclass
class Tree:
    """What schedules have shown, one below the other.

    Attributes:
        shown: of each node; the first is the root.
        schedules: the first schedule that came by each node.
    """

    shown: list[Seen] = field(default_factory=list)
    below: list[dict[Seen, int]] = field(default_factory=list)
    schedules: list[str] = field(default_factory=list)

    def add(self, seen: Iterable[Seen], schedule: str) -> None:
        node = -1
        for each in seen:
            following = self.below[node] if node >= 0 else {self.shown[0]: 0} if self.shown else {}
            if each not in following:
                following[each] = len(self.shown)
                self.shown.append(each)
                self.below.append({})
                self.schedules.append(schedule)
            node = following[each]

    def missing(self, reached: set[int]) -> list[tuple[Seen, Seen, str]]:
        """The steps that were not allowed: from, to, and a schedule that has made it."""
        return [
            (self.shown[node], self.shown[child], self.schedules[child])
            for node in sorted(reached)
            for child in self.below[node].values()
            if child not in reached
        ]


def at_random(name: str, seeds: Iterable[int]) -> Iterator[Choices]:
    return (_Choices(Schedule(name), seed, faults_max=FAULTS_MAX) for seed in seeds)


def each_with(name: str, fault: str) -> Iterator[Choices]:
    """The schedules of a profile with this fault alone, at each choice point."""
    return (Choices(Schedule(name, ((position, fault),))) for position in range(_POINTS_MAX))


def behaviours(name: str, schedules: Iterable[Choices]) -> Tree:
    """Run schedules of a profile; those that are not possible are left out."""
    profile = replace(PROFILES[name], batches=BATCHES)
    tree = Tree()
    for choices in schedules:
        world = NotingWorld(profile, choices)
        try:
            world.run()
        except (StuckError, ScheduleError):
            continue
        world.note()
        tree.add(world.seen, str(Schedule(name, tuple(choices.taken))))
    return tree


def module_of(tree: Tree) -> str:
    shown = ",\n  ".join(f"<<{', '.join(_literal(each) for each in seen)}>>" for seen in tree.shown)
    below = ",\n  ".join(f"{{{', '.join(str(child + 1) for child in nodes.values())}}}" for nodes in tree.below)
    tables = ", ".join(f"table[{number}]" for number in range(len(BATCHES)))
    return f"""---- MODULE Behaviours ----
EXTENDS DualWrite, Sequences
VARIABLES node, claims
Shown == <<
  {shown}>>
Below == <<
  {below}>>
Seen == <<kafka.state, kafka.epoch, row.status, row.batch, row.prepared, claims, spark, {tables}, Cardinality(Running)>>
\\* A driver that meets an error recovers where it is, which is a crash and a start without a look in between.
Again(d) == /\\ d \\in Running
            /\\ driver' = [driver EXCEPT ![d] = [Off EXCEPT !.at = "start"]]
            /\\ UNCHANGED <<kafka, log, row, table, spark, net, backup, left, ledger>>
Anytime == UNCHANGED left
Never == FALSE
Claimed == \\E d \\in Drivers : driver[d].at \\in {{"start", "claim"}} /\\ driver'[d].at = "look"
BehaviourInit == Init /\\ node = 1 /\\ claims = 0
BehaviourNext == /\\ Next \\/ \\E d \\in Drivers : Again(d)
                 /\\ claims' = IF Claimed THEN claims + 1 ELSE claims
                 /\\ \\/ Seen' = Seen /\\ node' = node
                    \\/ Seen' # Seen /\\ \\E m \\in Below[node] : Shown[m] = Seen' /\\ node' = m
BehaviourSpec == BehaviourInit /\\ [][BehaviourNext]_<<vars, node, claims>>
Reached == TLCGet(node) = 1 \\/ (PrintT(<<"reached", node>>) /\\ TLCSet(node, 1))
ASSUME \\A m \\in 1 .. Len(Shown) : TLCSet(m, 0)
====
"""


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def config_of(name: str) -> str:
    return "\n".join(
        [
            "SPECIFICATION BehaviourSpec",
            f"CONSTANTS Drivers = {{{', '.join(f'd{number}' for number in range(DRIVERS_MAX))}}}",
            f"Batches = {len(BATCHES)}",
            "Faults = 1",
            "Restores = 0",
            "Drops = 0",
            f"TwoPhase = {str(PROFILES[name].two_phase_commit).upper()}",
            f'Keep = "{PROFILES_CHECKED[name]}"',
            'Mutant = "none"',
            "Fault <- Anytime",
            "LateKeep <- Never",
            "INVARIANT Reached",
            "CHECK_DEADLOCK FALSE",
            "SYMMETRY Interchangeable",
        ]
    )


def steps_not_allowed(name: str, tree: Tree) -> list[tuple[Seen, Seen, str]]:
    """The steps of the tree that the specification does not allow, as `Tree.missing` gives them."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (module := place / "Behaviours.tla").write_text(module_of(tree))
        (config := place / "Behaviours.cfg").write_text(config_of(name))
        (place / SPECIFICATION.name).write_text(SPECIFICATION.read_text())
        said = check(module, config).stdout
    assert verdict(said) == HOLDS, said[-3_000:]
    return tree.missing({int(number) - 1 for number in re.findall(r'<<"reached", (\d+)>>', said)})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 when every step is allowed, and steps of every defect are not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.behaviours", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--schedules", type=int, default=1_000, help="number of schedules, over all profiles")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first schedule")
    options = parser.parse_args(arguments)
    quiet()
    began_s = time.monotonic()
    seeds = range(options.seed, options.seed + options.schedules // len(PROFILES_CHECKED))
    trees = {name: behaviours(name, at_random(name, seeds)) for name in PROFILES_CHECKED}
    broken = {}
    for mutant in MUTANTS:
        if mutant.name in DEFECTS_CHECKED:
            with Applied(mutant):
                name, fault = DEFECTS_CHECKED[mutant.name]
                broken[mutant.name] = behaviours(name, each_with(name, fault))
    work = [*trees.items(), *((DEFECTS_CHECKED[defect][0], tree) for defect, tree in broken.items())]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(steps_not_allowed, *zip(*work, strict=True)))
    wrong = [step for found in results[: len(trees)] for step in found]
    for before, after, schedule in wrong[:_SHOWN_MAX]:
        print(f"NOT ALLOWED: {before} -> {after}\n  to repeat: python -m tests.simulation --replay '{schedule}'")
    caught = dict(zip(broken, results[len(trees) :], strict=True))
    for defect, found in caught.items():
        print(f"  {defect:<58} {len(found)} steps rejected by the specification{'' if found else ': NOT CAUGHT'}")
    missed = len(DEFECTS_CHECKED) - sum(bool(found) for found in caught.values())
    steps = sum(len(tree.shown) for tree in trees.values())
    print(f"{time.monotonic() - began_s:.1f} s")
    print(f"schedules={options.schedules} steps={steps} not_allowed={len(wrong)}")
    print(f"mutants={len(DEFECTS_CHECKED)} caught={len(DEFECTS_CHECKED) - missed}")
    return int(bool(wrong) or missed > 0)


if __name__ == "__main__":
    sys.exit(main())
