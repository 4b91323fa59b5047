"""End markers and what they do to the leader's view: sections 2.6, 2.9 and 3.4."""

from __future__ import annotations

from typing import Any

from tests.conformance.cases import (
    ALL_LEVELS,
    DAY_MS,
    HERE,
    NO_TOPIC,
    SHARED,
    Case,
    Given,
    N,
    P,
    Q,
    abort,
    add,
    case,
    commit,
    describe,
    idempotent,
    init,
    latest,
    marker,
    produce,
    producers,
    read,
    until,
)
from tests.conformance.leader_operations import Marker, Markers

_OLD = 11
#: A transaction of P at epoch 7 that the coordinator knows nothing of: it hangs until somebody writes its marker.
_OPEN = [(add((P, 7), HERE[0]), 0), (produce((P, 7), 0, version=_OLD), (0, 0))]
_EMPTY = Given(state="EMPTY")


def _epochs() -> list[Case]:
    cases = []
    for version in (1, 2):
        for level in (0, 1, 2) if version == 2 else (0,):
            strict = level == 2
            how: dict[str, Any] = {"level": level, "version": version}
            word = f"v{version}-of-{level}"
            rows = [
                ("older", (P, 6), 47, "P 7 sequence=0 coordinator=-1 open=0"),
                (
                    "same",
                    (P, 7),
                    47 if strict else 0,
                    f"P 7 sequence=0 coordinator={-1 if strict else 0} open={0 if strict else -1}",
                ),
                ("newer", (P, 8), 0, "P 8 sequence=-1 coordinator=0 open=-1"),
                ("much-newer", (P, 32767), 0, "P 32767 sequence=-1 coordinator=0 open=-1"),
            ]
            cases += [
                case(
                    f"3.4/{word}-{name}",
                    *_OPEN,
                    (marker(pair, "ABORT", **how), code),
                    (producers(), [left]),
                    given=_EMPTY,
                    levels=ALL_LEVELS,
                )
                for name, pair, code, left in rows
            ]
            again = [(marker((P, 7), "COMMIT", **how), 0), (marker((P, 7), "COMMIT", **how), 0)]
            cases += [
                case(
                    f"3.4/{word}-unknown-producer",
                    *again,
                    (producers(), ["P 7 sequence=-1 coordinator=0 open=-1"]),
                    (latest("committed"), (0, 2)),
                    levels=ALL_LEVELS,
                ),
                case(
                    f"3.4/{word}-older-than-a-marker",
                    again[0],
                    (marker((P, 6), "COMMIT", **how), 47),
                    (marker((P, 8), "ABORT", **how), 0),
                    levels=ALL_LEVELS,
                ),
                case(
                    f"3.4/{word}-highest-epoch-again",
                    (marker((P, 32767), "ABORT", **how), 0),
                    (marker((P, 32767), "ABORT", **how), 0),
                    levels=ALL_LEVELS,
                ),
                case(
                    f"3.4/{word}-idempotent-producer",
                    (idempotent((P, 7), 0), (0, 0)),
                    (marker((P, 7), "ABORT", **how), 0),
                    (producers(), ["P 7 sequence=0 coordinator=0 open=-1"]),
                    (idempotent((P, 7), 1), (0, 2)),
                    levels=ALL_LEVELS,
                ),
            ]
    return cases


def _coordinators() -> list[Case]:
    first = (marker((P, 7), "COMMIT", coordinator=3), 0)
    return [
        case(
            "3.4/older-coordinator",
            first,
            (marker((P, 7), "COMMIT", coordinator=2), 52),
            (marker((P, 8), "COMMIT", coordinator=2), 52),
            levels=ALL_LEVELS,
        ),
        case("3.4/same-coordinator", first, (marker((P, 7), "ABORT", coordinator=3), 0), levels=ALL_LEVELS),
        case(
            "3.4/newer-coordinator",
            first,
            (marker((P, 7), "ABORT", coordinator=4), 0),
            (producers(), ["P 7 sequence=-1 coordinator=4 open=-1"]),
            levels=ALL_LEVELS,
        ),
        case("3.4/epoch-before-coordinator", first, (marker((P, 6), "COMMIT", coordinator=2), 47), levels=ALL_LEVELS),
        case(
            "2.6/no-coordinator-at-first",
            (marker((P, 7), "COMMIT", coordinator=-1), 0),
            (marker((P, 7), "COMMIT", coordinator=-1), 0),
            (marker((P, 7), "COMMIT", coordinator=0), 0),
            (marker((P, 7), "COMMIT", coordinator=-1), 52),
            levels=ALL_LEVELS,
        ),
    ]


def _requests() -> list[Case]:
    pair = Marker(pair=(P, 7), commit=True, partitions=HERE[:2])
    other = Marker(pair=(Q, 3), commit=False, partitions=HERE[1:2])
    return [
        case("2.6/unknown-partition", (marker((P, 7), "COMMIT", NO_TOPIC), 3), levels=ALL_LEVELS),
        case(
            "2.6/known-beside-unknown",
            (marker((P, 7), "COMMIT", HERE[0], NO_TOPIC), {("P", "here0"): 0, ("P", NO_TOPIC): 3}),
            (latest("uncommitted"), (0, 1)),
            levels=ALL_LEVELS,
        ),
        case("2.6/no-markers", (Markers(markers=()), {}), (Markers(markers=(), version=1), {}), levels=ALL_LEVELS),
        case(
            "2.6/two-producers",
            (Markers(markers=(pair, other)), 0),
            (producers(HERE[1]), ["P 7 sequence=-1 coordinator=0 open=-1", "Q 3 sequence=-1 coordinator=0 open=-1"]),
            levels=ALL_LEVELS,
        ),
        case(
            "2.6/hanging-transaction-is-ended",
            *_OPEN,
            (latest("committed"), (0, 0)),
            (marker((P, 7), "ABORT"), 0),
            (latest("committed"), (0, 2)),
            (describe(), "Ongoing P 7 [here0]"),
            (produce((P, 7), 1, version=_OLD), (0, 2)),
            (abort((P, 7), version=4), 0),
            (describe(), "CompleteAbort P 7 []"),
            (latest("committed"), (0, 4)),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
        case(
            "2.6/marker-ahead-of-the-coordinator",
            *_OPEN,
            (marker((P, 9), "ABORT"), 0),
            (commit((P, 7), version=4), 0),
            (latest("committed"), (0, 2)),
            given=Given(state="EMPTY", stuck=True),
            levels=ALL_LEVELS,
        ),
    ]


def _effects() -> list[Case]:
    new = (init(), (0, "N", 0))
    return [
        case(
            "3.4/new-end-bumps-at-the-leader",
            new,
            (produce((N, 0), 0), (0, 0)),
            (commit((N, 0)), (0, "N", 1)),
            (describe(), "CompleteCommit N 1 []"),
            (producers(), ["N 1 sequence=-1 coordinator=C open=-1"]),
            levels=(1, 2),
        ),
        case(
            "3.4/old-end-keeps-the-epoch-at-the-leader",
            *_OPEN,
            (abort((P, 7), version=4), 0),
            (describe(), "CompleteAbort P 7 []"),
            (producers(), ["P 7 sequence=0 coordinator=C open=-1"]),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
        case(
            "3.4/fence-bumps-at-the-leader",
            *_OPEN,
            (init(), 51),
            (describe(), "CompleteAbort P 8 []"),
            (producers(), ["P 8 sequence=-1 coordinator=C open=-1"]),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
        case(
            "1.3/marker-of-the-last-epoch",
            (produce((P, 32766), 0), (0, 0)),
            (commit((P, 32766)), (0, "N", 0)),
            (describe(), "CompleteCommit N 0 []"),
            (producers(), ["P 32767 sequence=-1 coordinator=C open=-1"]),
            (produce((N, 0), 0), (0, 2)),
            given=Given(state="EMPTY", epoch=32766),
            levels=(1, 2),
        ),
        *_effects_at_the_edge(),
    ]


def _effects_at_the_edge() -> list[Case]:
    """The last epoch, the guard, and partitions without data."""
    (init(), (0, "N", 0))
    return [
        case(
            "1.3/marker-of-the-fence-of-the-last-epoch",
            (add((P, 32766), HERE[0]), 0),
            (produce((P, 32766), 0, version=_OLD), (0, 0)),
            (init(), 51),
            (describe(), "CompleteAbort N 0 []"),
            (producers(), ["P 32767 sequence=-1 coordinator=C open=-1"]),
            given=Given(state="EMPTY", epoch=32766),
        ),
        case(
            "1.3/marker-of-the-fence-of-the-last-epoch",
            (add((P, 32766), HERE[0]), 0),
            (produce((P, 32766), 0, version=_OLD), (0, 0)),
            (init(), 51),
            (describe(), "CompleteAbort P 32767 []"),
            (producers(), ["P 32767 sequence=-1 coordinator=C open=-1"]),
            given=Given(state="EMPTY", epoch=32766),
            levels=(0, 1),
        ),
        case(
            "3.4/marker-removes-the-guard",
            (produce((P, 7), 5, version=_OLD), 120),
            (marker((P, 7), "ABORT"), 0),
            (add((P, 7), HERE[0]), 0),
            (produce((P, 7), 6, version=_OLD), 45),
            (produce((P, 7), 0, version=_OLD), (0, 1)),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
        case(
            "3.4/marker-without-data-is-written",
            (add((P, 7), HERE[0]), 0),
            (commit((P, 7), version=4), 0),
            (describe(), "CompleteCommit P 7 []"),
            (read("committed"), ("high=1 stable=1 aborted=[]", ["P 7 COMMIT/C@0"])),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
    ]


def _described() -> list[Case]:
    bad = ("not a topic?", 0)
    return [
        case("2.9/bad-name", (producers(bad), 17), levels=ALL_LEVELS),
        case("2.9/unknown-topic", (producers(NO_TOPIC), 3), levels=ALL_LEVELS),
        case("2.9/unknown-partition", (producers((SHARED[0][0], 1000)), 3), levels=ALL_LEVELS),
        case("2.9/nobody", (producers(), []), levels=ALL_LEVELS),
        case(
            "2.9/open",
            *_OPEN,
            (produce((P, 7), 1, count=3, version=_OLD), (0, 1)),
            (producers(), ["P 7 sequence=3 coordinator=-1 open=0"]),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
        case(
            "2.9/several",
            (idempotent((P, 1), 0), (0, 0)),
            (idempotent((Q, 2), 4), (0, 1)),
            (producers(), ["P 1 sequence=0 coordinator=-1 open=-1", "Q 2 sequence=4 coordinator=-1 open=-1"]),
            levels=ALL_LEVELS,
        ),
        case(
            "3.5/idle-producer-is-forgotten",
            (idempotent((P, 1), 0, now_ms=-2 * DAY_MS), (0, 0)),
            until(producers(), []),
            (idempotent((P, 1), 9), (0, 1)),
            levels=ALL_LEVELS,
        ),
        case(
            "3.5/open-transaction-is-not-forgotten",
            (add((P, 7), HERE[0]), 0),
            (produce((P, 7), 0, version=_OLD), (0, 0)),
            (idempotent((Q, 1), 0, now_ms=-2 * DAY_MS), (0, 1)),
            until(producers(), ["P 7 sequence=0 coordinator=-1 open=0"]),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
    ]


CASES = [*_epochs(), *_coordinators(), *_requests(), *_effects(), *_described()]
