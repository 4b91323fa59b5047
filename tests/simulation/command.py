"""Run the sink's driver and recovery through simulated faults, exhaustively and at random, and hunt mutants."""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from typing import Final, TypeVar

from tests.simulation import defects, defects_people, faults, people
from tests.simulation.explore import (
    Caught,
    Tally,
    Violation,
    as_test,
    children,
    hunt,
    quiet,
    run_children,
    run_random,
    run_schedule,
    shrink,
    trace,
)
from tests.simulation.schedule import CONTINUOUS, PEOPLE, PROFILES, PROMISED, Schedule, ScheduleError

_T = TypeVar("_T")
MUTANTS: Final = defects.MUTANTS + defects_people.MUTANTS
#: Random schedules in one piece of work.
_PIECE: Final = 200
#: Faults of a random schedule; with more, most of them meet drivers that are only just starting.
RANDOM_FAULTS_MAX: Final = 8
#: Violations that are printed in full.
_SHOWN_MAX: Final = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 when nothing was violated and every mutant was caught."""
    options = _parser().parse_args(arguments)
    quiet()
    if options.replay is not None:
        return _replay(Schedule.parse(options.replay))
    print(f"seed {options.seed}, {options.processes} processes")
    began_s = time.monotonic()
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn"), initializer=_begin) as pool:
        total = _explore(options, pool)
        caught = _hunt(options, pool) if options.mutants else []
    used = os.times()
    cpu_s = used.user + used.system + used.children_user + used.children_system
    print(f"{time.monotonic() - began_s:.1f} s, {cpu_s:.1f} s of CPU time")
    found = sum(each.violation is not None for each in caught)
    print(f"schedules={total.schedules} violations={total.violations}")
    if options.mutants:
        print(f"mutants={len(caught)} caught={found}")
    return int(total.violations > 0 or found < len(caught))


def _begin() -> None:
    quiet()
    # Thousands of short-lived objects for each schedule, and hardly a cycle: collections took a tenth of the time.
    gc.set_threshold(50_000)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--profiles",
        type=lambda names: names.split(","),
        help="comma-separated profiles (default: all for single faults, for more those where both sides must agree)",
    )
    parser.add_argument(
        "--ci",
        choices=sorted(CONTINUOUS),
        help="run pairs of faults in few profiles ("
        + "; ".join(f"{half}: {', '.join(names)}" for half, names in CONTINUOUS.items())
        + "), and fewer random schedules",
    )
    parser.add_argument(
        "--pairs",
        choices=("none", "core", "all"),
        default="core",
        help="kinds of faults to combine in pairs; core: "
        + ", ".join(sorted(faults.CORE))
        + "; in the people profiles: "
        + ", ".join(sorted(people.CORE)),
    )
    parser.add_argument("--random", type=int, help="number of random schedules (default: 10 000, with --ci 2 000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="seed (default: the current time)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutant-schedules", type=int, default=20_000, help="schedules to try on a mutant")
    parser.add_argument("--no-mutants", dest="mutants", action="store_false")
    parser.add_argument("--replay", metavar="SCHEDULE", help="run one schedule again, and print every request")
    return parser


def _replay(schedule: Schedule) -> int:
    try:
        lines, violations = trace(schedule)
    except ScheduleError as error:
        print(f"cannot run {schedule}: {error}")
        return 2
    print("\n".join(lines))
    for checker, text in violations:
        print(f"VIOLATED {checker}: {text}")
    return int(bool(violations))


# --- schedules ---------------------------------------------------------------------------------------------------


def _explore(options: argparse.Namespace, pool: ProcessPoolExecutor) -> Tally:
    """Breadth first: no fault, one, two; then random ones."""
    total = Tally()
    roots = [Schedule(profile) for profile in options.profiles or PROFILES]
    _level("no fault", pool, run_one, roots, total)
    _level("one fault", pool, run_children, roots, total)
    every = PROMISED + PEOPLE
    deeper = options.profiles or CONTINUOUS.get(options.ci, every)
    if options.pairs != "none":
        core = options.pairs == "core"
        singles = [child for profile in deeper for child in _singles(Schedule(profile), _kinds(profile, core=core))]
        _level(f"two faults ({options.pairs})", pool, partial(run_second, core=core), singles, total)
    # There may be fewer pieces than profiles.
    drawn_from = options.profiles or random.Random(options.seed).sample(every, len(every))
    pieces = _random_pieces(drawn_from, options.seed)
    drawn = (2_000 if options.ci else 10_000) if options.random is None else options.random
    wanted = -(-drawn // _PIECE)
    _level(f"up to {RANDOM_FAULTS_MAX} random faults", pool, run_piece, islice(pieces, wanted), total)
    # The shortest say most.
    shortest = sorted(total.reported, key=lambda each: len(each.schedule.faults))
    for violation in shortest[:_SHOWN_MAX]:
        _show(shrink(violation))
    return total


def run_one(schedule: Schedule) -> Tally:
    tally = Tally()
    run_schedule(schedule, tally)
    return tally


def run_second(schedule: Schedule, *, core: bool) -> Tally:
    """Run all schedules with one more fault, of the core kinds of its profile or of all."""
    return run_children(schedule, _kinds(schedule.profile, core=core))


def _kinds(profile: str, *, core: bool) -> frozenset[str]:
    """The kinds of faults of which pairs are run; none for all."""
    if not core:
        return frozenset()
    return people.CORE if PROFILES[profile].people else faults.CORE


def run_piece(piece: tuple[str, int]) -> Tally:
    profile, first = piece
    return run_random(profile, range(first, first + _PIECE), faults_max=RANDOM_FAULTS_MAX)


def _singles(root: Schedule, kinds: frozenset[str]) -> list[Schedule]:
    return list(children(root, run_schedule(root, Tally()).offered, kinds))


def _random_pieces(profiles: Sequence[str], seed: int) -> Iterator[tuple[str, int]]:
    return ((profile, (seed * 1_000_003 + piece) * _PIECE) for piece in count() for profile in profiles)


def _level(name: str, pool: ProcessPoolExecutor, run: Callable[[_T], Tally], work: Iterable[_T], total: Tally) -> None:
    began_s, before, violated = time.monotonic(), total.schedules, total.violations
    for tally in pool.map(run, work, chunksize=1):
        total.add(tally)
    print(
        f"{name}: {total.schedules - before} schedules, {total.violations - violated} violations, "
        f"{time.monotonic() - began_s:.1f} s",
        flush=True,
    )


def _show(violation: Violation) -> None:
    """The schedule, which is minimal; its requests; and a test of it."""
    schedule = violation.schedule
    lines, violations = trace(schedule)
    print(f"\nVIOLATION {violations[0][0] if violations else '(not reproduced)'} in {schedule}")
    print("\n".join(f"    {line}" for line in lines))
    for checker, text in violations:
        print(f"  {checker}: {text}")
    print(f"  to repeat: python -m tests.simulation --replay '{schedule}'")
    print(f"  as a test:\n\n{as_test(violation)}")


# --- mutants -----------------------------------------------------------------------------------------------------


def _hunt(options: argparse.Namespace, pool: ProcessPoolExecutor) -> list[Caught]:
    began_s = time.monotonic()
    one = partial(hunt_one, seed=options.seed, schedules_max=options.mutant_schedules)
    caught = list(pool.map(one, range(len(MUTANTS))))
    for each in caught:
        print(_line(each))
    print(f"{len(caught)} mutants: {time.monotonic() - began_s:.1f} s")
    return caught


def hunt_one(number: int, *, seed: int, schedules_max: int) -> Caught:
    """Look for one mutant, by its number: the functions in it do not travel between processes."""
    return hunt(MUTANTS[number], seed=seed, schedules_max=schedules_max)


def _line(caught: Caught) -> str:
    violation = caught.violation
    by = "NOT CAUGHT" if violation is None else f"{violation.checker} ({violation.schedule})"
    return f"  {caught.name:<58} {caught.schedules:>6} schedules: {by}"
