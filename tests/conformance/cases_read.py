"""What readers see: last stable offset, aborted transactions, both isolation levels; section 3.5."""

from __future__ import annotations

from typing import Any

from tests.conformance.cases import (
    ALL_LEVELS,
    HERE,
    OTHER_TID,
    Case,
    Exchange,
    Given,
    M,
    N,
    P,
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
    read,
)
from tests.conformance.leader_operations import ListOffsets

_OLD = 11
_EMPTY = Given(state="EMPTY")
_NOBODY = (-1, -1)
_PLAIN = (idempotent(_NOBODY, -1), (0, 0))
_TWO_IDS = [(init(), (0, "N", 0)), (init(tid=OTHER_TID), (0, "M", 0))]
_SETTLED = describe()


def _one() -> list[Case]:
    opened = [(add((P, 7), HERE[0]), 0), (produce((P, 7), 0, count=2, version=_OLD), (0, 1))]
    plain, data = "-1 -1 #-1 plain@0", "P 7 #0@1-2"
    return [
        case(
            "3.5/open",
            _PLAIN,
            *opened,
            (latest("uncommitted"), (0, 3)),
            (latest("committed"), (0, 1)),
            (read("uncommitted"), ("high=3 stable=1 aborted=None", [plain, data])),
            (read("committed"), ("high=3 stable=1 aborted=[]", [plain])),
            (read("committed", 1), ("high=3 stable=1 aborted=[]", [])),
            (read("committed", 2), ("high=3 stable=1 aborted=[]", [])),
            (read("uncommitted", 2), ("high=3 stable=1 aborted=None", [data])),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
        *(
            case(
                f"3.5/{end.__name__}",
                _PLAIN,
                *opened,
                (end((P, 7), version=4), 0),
                (_SETTLED, f"Complete{end.__name__.capitalize()} P 7 []"),
                (latest("committed"), (0, 4)),
                (
                    read("uncommitted"),
                    ("high=4 stable=4 aborted=None", [plain, data, f"P 7 {end.__name__.upper()}/C@3"]),
                ),
                (
                    read("committed"),
                    (
                        f"high=4 stable=4 aborted={'[P@1]' if end is abort else '[]'}",
                        [plain, data, f"P 7 {end.__name__.upper()}/C@3"],
                    ),
                ),
                (
                    read("committed", 3),
                    (
                        f"high=4 stable=4 aborted={'[P@1]' if end is abort else '[]'}",
                        [f"P 7 {end.__name__.upper()}/C@3"],
                    ),
                ),
                (read("committed", 4), ("high=4 stable=4 aborted=[]", [])),
                given=_EMPTY,
                levels=ALL_LEVELS,
            )
            for end in (commit, abort)
        ),
        *_edges(),
    ]


def _edges() -> list[Case]:
    """Offsets at the edges, and by time."""
    return [
        case(
            "3.5/out-of-range",
            _PLAIN,
            (read("committed", 2), 1),
            (read("uncommitted", 2), 1),
            (read("uncommitted", -5), 1),
            levels=ALL_LEVELS,
        ),
        case(
            "3.5/beyond-the-stable-offset",
            *_opened_at_zero(),
            (read("committed", 1), ("high=2 stable=0 aborted=[]", [])),
            (read("committed", 3), 1),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
        case(
            "3.5/empty",
            (read("committed"), ("high=0 stable=0 aborted=[]", [])),
            (latest("committed"), (0, 0)),
            levels=ALL_LEVELS,
        ),
        case(
            "3.5/earliest",
            _PLAIN,
            (ListOffsets(partition=HERE[0], timestamp_ms=-2), (0, 0)),
            (ListOffsets(partition=HERE[0], timestamp_ms=-2, committed=True), (0, 0)),
            levels=ALL_LEVELS,
        ),
        case(
            "3.5/by-timestamp-only-below-the-stable-offset",
            *_opened_at_zero(),
            (ListOffsets(partition=HERE[0], timestamp_ms=0), (0, 0)),
            (ListOffsets(partition=HERE[0], timestamp_ms=0, committed=True), (0, -1)),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
    ]


def _opened_at_zero() -> list[Exchange]:
    """An open transaction at the start of the log."""
    return [(add((P, 7), HERE[0]), 0), (produce((P, 7), 0, count=2, version=_OLD), (0, 0))]


def _several() -> list[Case]:
    """Two transactions in one partition."""
    other: dict[str, Any] = {"tid": OTHER_TID}
    both = [*_TWO_IDS, (produce((N, 0), 0), (0, 0)), (produce((M, 0), 0, **other), (0, 1))]
    ended = {
        "first": [(abort((N, 0)), (0, "N", 1)), (_SETTLED, "CompleteAbort N 1 []")],
        "second": [(abort((M, 0), **other), (0, "M", 1)), (describe(OTHER_TID), "CompleteAbort M 1 []")],
    }
    first, second = "N 0 #0@0", "M 0 #0@1"
    return [
        case(
            "3.5/first-ends-first",
            *both,
            (latest("committed"), (0, 0)),
            *ended["first"],
            (latest("committed"), (0, 1)),
            (read("committed"), ("high=3 stable=1 aborted=[N@0]", [first])),
            *ended["second"],
            (
                read("committed"),
                ("high=4 stable=4 aborted=[N@0, M@1]", [first, second, "N 1 ABORT/C@2", "M 1 ABORT/C@3"]),
            ),
            (read("committed", 3), ("high=4 stable=4 aborted=[M@1]", ["M 1 ABORT/C@3"])),
            levels=(1, 2),
        ),
        case(
            "3.5/second-ends-first",
            *both,
            *ended["second"],
            (latest("committed"), (0, 0)),
            (read("committed"), ("high=3 stable=0 aborted=[]", [])),
            *ended["first"],
            (
                read("committed"),
                ("high=4 stable=4 aborted=[M@1, N@0]", [first, second, "M 1 ABORT/C@2", "N 1 ABORT/C@3"]),
            ),
            levels=(1, 2),
        ),
        case(
            "3.5/one-commits-one-aborts",
            *both,
            (commit((M, 0), **other), (0, "M", 1)),
            (describe(OTHER_TID), "CompleteCommit M 1 []"),
            *ended["first"],
            (read("committed"), ("high=4 stable=4 aborted=[N@0]", [first, second, "M 1 COMMIT/C@2", "N 1 ABORT/C@3"])),
            levels=(1, 2),
        ),
        *_markers(),
    ]


def _markers() -> list[Case]:
    """Several markers, with and without a transaction."""
    return [
        case(
            "3.5/again-and-again",
            _TWO_IDS[0],
            (produce((N, 0), 0), (0, 0)),
            (abort((N, 0)), (0, "N", 1)),
            (produce((N, 1), 0), (0, 2)),
            (commit((N, 1)), (0, "N", 2)),
            (produce((N, 2), 0), (0, 4)),
            (abort((N, 2)), (0, "N", 3)),
            (_SETTLED, "CompleteAbort N 3 []"),
            (
                read("committed"),
                (
                    "high=6 stable=6 aborted=[N@0, N@4]",
                    ["N 0 #0@0", "N 1 ABORT/C@1", "N 1 #0@2", "N 2 COMMIT/C@3", "N 2 #0@4", "N 3 ABORT/C@5"],
                ),
            ),
            (
                read("committed", 2),
                ("high=6 stable=6 aborted=[N@4]", ["N 1 #0@2", "N 2 COMMIT/C@3", "N 2 #0@4", "N 3 ABORT/C@5"]),
            ),
            levels=(1, 2),
        ),
        case(
            "3.5/marker-of-nothing-is-not-listed",
            (marker((P, 7), "ABORT"), 0),
            (read("committed"), ("high=1 stable=1 aborted=[]", ["P 7 ABORT/0@0"])),
            levels=ALL_LEVELS,
        ),
        case(
            "3.5/coordinator-epoch-is-in-the-marker",
            (marker((P, 7), "COMMIT", coordinator=9), 0),
            (read("uncommitted"), ("high=1 stable=1 aborted=None", ["P 7 COMMIT/9@0"])),
            levels=ALL_LEVELS,
        ),
    ]


CASES = [*_one(), *_several()]
