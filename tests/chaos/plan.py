"""What happens, in which order: drawn from a seed, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

#: Right after these steps, and right before these calls, a driver can be told to stop (`tests.harness.driver_config`).
#: Between the two commits twice as often: there a death leaves the two sides apart.
PLACES = (
    "step:PLACE",
    "step:BEGIN",
    "step:PRODUCE",
    "step:PREPARE",
    "copy",
    "commit",
    *("step:DECIDE", "end") * 2,
    "step:COMPLETE",
    "step:NOTE",
)
#: Wherever it is, without being told.
ANYWHERE = "anywhere"
#: Where a driver can be stopped in its recovery.
RECOVERY_PLACES = ("init", "step:RECOVER")
#: While a driver of the orders job starts Spark again, this many cheap faults of the other job pass.
FILLERS = 6
_DELAY_S_MAX = 0.4
_HOLD_S_MIN, _HOLD_S_MAX = 0.2, 2.0


@dataclass(frozen=True)
class Planned:
    """One fault that is to happen. All of it is drawn, whether its kind uses it or not.

    Attributes:
        place: where the driver is then, `ANYWHERE` or one of `PLACES`.
        recovery_place: where it is then in its recovery.
        delay_s: how long to wait before, where nothing else says when.
        hold_s: how long a fault lasts that ends by itself.
        chance: for everything else, such as which of two executors: at least 0, below 1.
    """

    kind: str
    place: str
    recovery_place: str
    delay_s: float
    hold_s: float
    chance: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.place} ({self.delay_s:.2f} s, {self.hold_s:.2f} s, {self.chance:.2f})"


@dataclass(frozen=True)
class Share:
    """How often a kind happens.

    Attributes:
        weight: beyond the first time, against the others'.
        filler: it can pass while the other job restarts.
    """

    weight: int
    filler: bool = False
    slow: bool = False


def plan(seed: int, shares: Mapping[str, Share], *, rotate: int = 0) -> Iterator[Planned]:
    """Yield faults without an end: each kind once, in an order drawn from the seed, then by their weights.

    Args:
        seed: the same seed gives the same faults.
        rotate: begin this far in the first round, so that two short runs together have every kind.
    """
    draw = random.Random(seed)
    fillers = [name for name, share in shares.items() if share.filler]
    first = sorted(shares)
    draw.shuffle(first)
    at = rotate % len(first)
    later = (_weighted(sorted(shares), shares, draw) for _ in count())
    for kind in chain(first[at:], first[:at], later):
        yield _planned(kind, draw)
        if shares[kind].slow and fillers:
            for _ in range(FILLERS):
                yield _planned(_weighted(fillers, shares, draw), draw)


def _weighted(kinds: Sequence[str], shares: Mapping[str, Share], draw: random.Random) -> str:
    return draw.choices(kinds, [shares[kind].weight for kind in kinds])[0]


def _planned(kind: str, draw: random.Random) -> Planned:
    return Planned(
        kind=kind,
        place=draw.choice((ANYWHERE, *PLACES)),
        recovery_place=draw.choice(RECOVERY_PLACES),
        delay_s=draw.uniform(0, _DELAY_S_MAX),
        hold_s=draw.uniform(_HOLD_S_MIN, _HOLD_S_MAX),
        chance=draw.random(),
    )
