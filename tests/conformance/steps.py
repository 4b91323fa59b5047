"""Random sequences of requests: what a step is, and how sequences are drawn from a seed.

A step says which producer acts by position ("the newest pair of the second id, one epoch older"), never by number, so
that it still means something when steps before it are left out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

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

    def __str__(self) -> str:
        return repr(self)


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


def draw(seed: int, length: int = STEPS, *, level: int = 2) -> list[Step]:
    """The sequence of a seed, for servers at this transaction.version."""
    chance = random.Random(seed)
    names = list(KINDS)
    weights = [KINDS[name][0] for name in names]
    # Every sequence begins with producers, or most of it would be about ids that nobody knows.
    steps = [Step("init", tid=index, version=5) for index in range(chance.choice((1, 2, IDS)))]
    while len(steps) < length:
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
