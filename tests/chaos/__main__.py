"""Kill, stop and cut off real processes while jobs write, then compare both sides with the input."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.chaos.faults import Kind, possible
from tests.chaos.jobs import OrdersJob
from tests.chaos.outputs_job import OutputsJob
from tests.chaos.plan import plan
from tests.chaos.run import Run, Tally
from tests.chaos.world import BROKERS, JOBS, JOBS_DEFAULT, World

#: Kept of the time for the jobs' end and the comparison.
_END_S = 25.0
_MINUTES_DEFAULT = 3.0
_KILLS_MAX = 100_000
#: More time for the first fault, where the start of the jobs took all of it.
FIRST_FAULT_S = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when nothing is lost or duplicated, faults were made and all had an effect, and every job recovered."""
    options = _parser().parse_args(arguments)
    jobs = _jobs(options.jobs)
    kinds = possible(jobs)
    if options.faults:
        wanted = options.faults.split(",")
        _check_known("fault", wanted, kinds)
        kinds = {name: kinds[name] for name in wanted}
    brokers = tuple(BROKERS) if options.broker == "both" else (options.broker,)
    print(f"seed {options.seed}", flush=True)
    tally = Tally()
    begun_s = time.monotonic()
    # Everything that was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for number, broker in enumerate(brokers):
        part = _Part(number, brokers, options, begun_s)
        with tempfile.TemporaryDirectory(prefix="spark-2pc-chaos-", ignore_cleanup_errors=True) as folder:
            world = World(Path(folder), broker=broker, jobs=jobs, seed=options.seed, patience=options.patience)
            _run(world, kinds, tally, part)
    print(report(tally, kinds))
    return 0 if tally.good else 1


class _Part:
    """How much of the whole is for one of the brokers."""

    def __init__(self, number: int, brokers: Sequence[str], options: argparse.Namespace, begun_s: float) -> None:
        self.broker = brokers[number]
        self.number = number
        self.parts = len(brokers)
        self.seed: int = options.seed
        self._verbose: bool = options.verbose
        share = (number + 1) / self.parts
        self._begun_s = begun_s
        minutes = options.minutes if options.minutes or options.kills else _MINUTES_DEFAULT
        self._end_s = begun_s + minutes * 60 * share - _END_S if minutes else float("inf")
        self._kills = options.kills * share if options.kills else _KILLS_MAX

    def enough(self, tally: Tally, *, idle: bool) -> bool:
        """True when this part's time is up, or its kills are done. Without a fault so far, it has more time."""
        return self._time_is_up(FIRST_FAULT_S if idle else 0) or tally.kills.total() >= self._kills

    def without_faults(self) -> str:
        """Why this part made no fault, and what to change: such a run has tested nothing."""
        if self._time_is_up():
            return (
                f"{self.broker}: no fault was made, because the time was up when all jobs had started; raise --minutes"
            )
        return f"{self.broker}: no fault was made, because the part before it did all kills; raise --kills"

    def _time_is_up(self, more_s: float = 0) -> bool:
        return time.monotonic() > self._end_s + more_s

    def say(self, text: str) -> None:
        if self._verbose:
            print(f"{time.monotonic() - self._begun_s:7.1f} s {text}", file=sys.stderr, flush=True)


def _run(world: World, kinds: dict[str, Kind], tally: Tally, part: _Part) -> None:
    shares = {name: kind.share for name, kind in kinds.items()}
    faults = plan(part.seed, shares, rotate=part.number * len(kinds) // part.parts)
    made = tally.tried
    try:
        with world:
            run = Run(world, kinds, tally, part.say)
            run.strike_all(faults, lambda: part.enough(tally, idle=tally.tried == made))
            if tally.tried == made:
                tally.complaints.append(part.without_faults())
            run.end()
    except AssertionError as error:
        tally.complaints.append(f"{type(error).__name__}: {error}")


def _jobs(text: str) -> tuple[str, ...]:
    jobs = tuple(text.split(","))
    _check_known("job", jobs, JOBS)
    if {OrdersJob.name, OutputsJob.name} <= set(jobs):
        sys.exit("orders and outputs cannot run together, because each starts Spark; choose one of them")
    return jobs


def _check_known(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit(f"unknown {what}: {', '.join(unknown)}; must be one of {', '.join(known)}")


def report(tally: Tally, kinds: dict[str, Kind]) -> str:
    """The lines at the end; the line of sums is the last."""
    width = max(map(len, kinds))
    lines = [f"{'fault':{width}}  times  kills"]
    lines += [f"{name:{width}}  {tally.faults[name]:5}  {tally.kills[name]:5}" for name in kinds]
    gave_up = ", ".join(f"{error} {count}" for error, count in sorted(tally.gave_up.items())) or "none"
    lines.append(f"drivers that exited with an error and were restarted: {gave_up}")
    lines += [f"verify: {verdict}" for verdict in tally.verdicts]
    lines += [f"NO EFFECT {missed}" for missed in tally.missed]
    lines += [f"WRONG {complaint}" for complaint in tally.complaints]
    sums = f"kills={tally.kills.total()} faults={tally.faults.total()}"
    return "\n".join([*lines, f"{sums} lost={tally.lost} twice={tally.twice}"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the plan (default: the current time)"
    )
    parser.add_argument("--kills", type=int, help="number of kills after which to stop")
    parser.add_argument(
        "--minutes", type=float, help=f"run time in minutes (default without --kills: {_MINUTES_DEFAULT:g})"
    )
    parser.add_argument(
        "--broker", choices=(*BROKERS, "both"), default="both", help="broker to use (both: one after the other)"
    )
    parser.add_argument("--faults", help="comma-separated faults to make (default: all)")
    jobs_help = f"comma-separated jobs to run, of {', '.join(JOBS)} (default: %(default)s)"
    parser.add_argument("--jobs", default=",".join(JOBS_DEFAULT), help=jobs_help)
    parser.add_argument("--patience", type=float, default=1.0, help="factor for every deadline, on a busy machine")
    parser.add_argument("--verbose", action="store_true", help="print each fault as it is made")
    return parser


if __name__ == "__main__":
    sys.exit(main())
