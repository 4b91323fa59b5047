"""The command: what it takes, and the lines that it prints at the end."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.chaos import orders_job, outputs_job
from tests.chaos.faults import Kind, possible
from tests.chaos.plan import plan
from tests.chaos.run import Run, Tally
from tests.chaos.watch import summary
from tests.chaos.world import BROKERS, JOBS, JOBS_DEFAULT, World

#: Kept of the time for the jobs' end and the comparison.
_END_S = 25.0
_MINUTES_DEFAULT = 3.0
_KILLS_MAX = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when nothing was lost, nothing is there twice, every fault hit, and every job came back."""
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
        part = _Part(number, len(brokers), options, begun_s)
        with tempfile.TemporaryDirectory(prefix="spark-2pc-chaos-", ignore_cleanup_errors=True) as folder:
            world = World(Path(folder), broker=broker, jobs=jobs, seed=options.seed, patience=options.patience)
            _run(world, kinds, tally, part)
    print(report(tally, kinds))
    return 0 if tally.good else 1


class _Part:
    """How much of the whole is for one of the brokers."""

    def __init__(self, number: int, parts: int, options: argparse.Namespace, begun_s: float) -> None:
        self.number = number
        self.parts = parts
        self.seed: int = options.seed
        self._verbose: bool = options.verbose
        share = (number + 1) / parts
        self._begun_s = begun_s
        minutes = options.minutes if options.minutes or options.kills else _MINUTES_DEFAULT
        self._end_s = begun_s + minutes * 60 * share - _END_S if minutes else float("inf")
        self._kills = options.kills * share if options.kills else _KILLS_MAX

    def enough(self, tally: Tally) -> bool:
        """True when this part's time is over, or its kills are done."""
        return time.monotonic() > self._end_s or tally.kills.total() >= self._kills

    def say(self, text: str) -> None:
        if self._verbose:
            print(f"{time.monotonic() - self._begun_s:7.1f} s {text}", file=sys.stderr, flush=True)


def _run(world: World, kinds: dict[str, Kind], tally: Tally, part: _Part) -> None:
    shares = {name: kind.share for name, kind in kinds.items()}
    faults = plan(part.seed, shares, rotate=part.number * len(kinds) // part.parts)
    try:
        with world:
            run = Run(world, kinds, tally, part.say)
            run.strike_all(faults, lambda: part.enough(tally))
            run.end()
    except AssertionError as error:
        tally.verdict.complaints.append(f"{type(error).__name__}: {error}")


def _jobs(text: str) -> tuple[str, ...]:
    """The names of jobs that the command line has."""
    jobs = tuple(text.split(","))
    _check_known("job", jobs, JOBS)
    if {orders_job.NAME, outputs_job.NAME} <= set(jobs):
        sys.exit("orders and outputs do not run together, as each starts Spark: name one of them")
    return jobs


def _check_known(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")


def report(tally: Tally, kinds: dict[str, Kind]) -> str:
    """The lines at the end; the line of sums is the last."""
    width = max(map(len, kinds))
    lines = [f"{'fault':{width}}  times  kills"]
    lines += [f"{name:{width}}  {tally.faults[name]:5}  {tally.kills[name]:5}" for name in kinds]
    for job in JOBS:
        took = [one.took_s for one in tally.restarts if one.job == job]
        lines.append(summary(f"restart of {job}, first call of recovery to settled", took))
    lines.append(summary("readers blocked after the first call of recovery", tally.blocked))
    lines.append(summary("readers blocked after a fault that no driver died of", tally.blocked_otherwise))
    gave_up = ", ".join(f"{error} {count}" for error, count in sorted(tally.gave_up.items())) or "none"
    lines.append(f"drivers that gave up by themselves, and were started again: {gave_up}")
    lines += [f"verify: {verdict}" for verdict in tally.verdict.verdicts]
    lines += [f"MISSED {missed}" for missed in tally.missed]
    lines += [f"WRONG {complaint}" for complaint in tally.verdict.complaints]
    sums = f"kills={tally.kills.total()} faults={tally.faults.total()}"
    return "\n".join([*lines, f"{sums} lost={tally.verdict.lost} twice={tally.verdict.twice}"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the plan; default: the time")
    parser.add_argument("--kills", type=int, help="how many")
    parser.add_argument("--minutes", type=float, help=f"for all of it; default without --kills: {_MINUTES_DEFAULT:g}")
    parser.add_argument("--broker", choices=(*BROKERS, "both"), default="both", help="both: one after the other")
    parser.add_argument("--faults", help="only these, by name, with commas")
    jobs_help = f"of {', '.join(JOBS)}, with commas; default: %(default)s"
    parser.add_argument("--jobs", default=",".join(JOBS_DEFAULT), help=jobs_help)
    parser.add_argument("--patience", type=float, default=1.0, help="of a busy machine: every deadline this many times")
    parser.add_argument("--verbose", action="store_true", help="print each fault")
    return parser
