"""What readers see: last stable offset, aborted transactions, both isolation levels; section 3.5."""

from __future__ import annotations

from typing import Any

from spark_2pc_sink.codes import Code
from tests.conformance.cases import (
    CURRENT,
    EMPTY,
    HERE,
    NEW,
    NEWER,
    OK,
    OTHER_TID,
    Case,
    Exchange,
    abort,
    add,
    case,
    commit,
    describe,
    granted,
    idempotent,
    init,
    latest,
    marker,
    offset,
    produce,
    read,
    written,
)
from tests.conformance.leader_operations import ListOffsets
from tests.conformance.operations import NO_PAIR

_OLD = 11
_PLAIN = (idempotent(NO_PAIR, sequence=-1), written(0))
_TWO_IDS = [(init(), granted(NEW.at(0))), (init(tid=OTHER_TID), granted(NEWER.at(0)))]
_SETTLED = describe()


def _one() -> list[Case]:
    opened = [
        (add(CURRENT.at(7), HERE[0]), OK),
        (produce(CURRENT.at(7), sequence=0, count=2, version=_OLD), written(1)),
    ]
    plain, data = "-1 -1 #-1 plain@0", "CURRENT 7 #0@1-2"
    return [
        case(
            "3.5/open",
            _PLAIN,
            *opened,
            (latest("uncommitted"), offset(3)),
            (latest("committed"), offset(1)),
            (read("uncommitted"), ("high=3 stable=1 aborted=None", [plain, data])),
            (read("committed"), ("high=3 stable=1 aborted=[]", [plain])),
            (read("committed", offset=1), ("high=3 stable=1 aborted=[]", [])),
            (read("committed", offset=2), ("high=3 stable=1 aborted=[]", [])),
            (read("uncommitted", offset=2), ("high=3 stable=1 aborted=None", [data])),
            given=EMPTY,
        ),
        *(
            case(
                f"3.5/{end.__name__}",
                _PLAIN,
                *opened,
                (end(CURRENT.at(7), version=4), OK),
                (_SETTLED, f"Complete{end.__name__.capitalize()} CURRENT 7 []"),
                (latest("committed"), offset(4)),
                (
                    read("uncommitted"),
                    ("high=4 stable=4 aborted=None", [plain, data, f"CURRENT 7 {end.__name__.upper()}/OWN@3"]),
                ),
                (
                    read("committed"),
                    (
                        f"high=4 stable=4 aborted={'[CURRENT@1]' if end is abort else '[]'}",
                        [plain, data, f"CURRENT 7 {end.__name__.upper()}/OWN@3"],
                    ),
                ),
                (
                    read("committed", offset=3),
                    (
                        f"high=4 stable=4 aborted={'[CURRENT@1]' if end is abort else '[]'}",
                        [f"CURRENT 7 {end.__name__.upper()}/OWN@3"],
                    ),
                ),
                (read("committed", offset=4), ("high=4 stable=4 aborted=[]", [])),
                given=EMPTY,
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
            (read("committed", offset=2), Code.OFFSET_OUT_OF_RANGE),
            (read("uncommitted", offset=2), Code.OFFSET_OUT_OF_RANGE),
            (read("uncommitted", offset=-5), Code.OFFSET_OUT_OF_RANGE),
        ),
        case(
            "3.5/beyond-the-stable-offset",
            *_opened_at_zero(),
            (read("committed", offset=1), ("high=2 stable=0 aborted=[]", [])),
            (read("committed", offset=3), Code.OFFSET_OUT_OF_RANGE),
            given=EMPTY,
        ),
        case("3.5/empty", (read("committed"), ("high=0 stable=0 aborted=[]", [])), (latest("committed"), offset(0))),
        case(
            "3.5/earliest",
            _PLAIN,
            (ListOffsets(partition=HERE[0], timestamp_ms=-2), offset(0)),
            (ListOffsets(partition=HERE[0], timestamp_ms=-2, committed=True), offset(0)),
        ),
        case(
            "3.5/by-timestamp-only-below-the-stable-offset",
            *_opened_at_zero(),
            (ListOffsets(partition=HERE[0], timestamp_ms=0), offset(0)),
            (ListOffsets(partition=HERE[0], timestamp_ms=0, committed=True), offset(-1)),
            given=EMPTY,
        ),
    ]


def _opened_at_zero() -> list[Exchange]:
    """An open transaction at the start of the log."""
    return [(add(CURRENT.at(7), HERE[0]), OK), (produce(CURRENT.at(7), sequence=0, count=2, version=_OLD), written(0))]


def _several() -> list[Case]:
    """Two transactions in one partition."""
    other: dict[str, Any] = {"tid": OTHER_TID}
    both = [
        *_TWO_IDS,
        (produce(NEW.at(0), sequence=0), written(0)),
        (produce(NEWER.at(0), sequence=0, **other), written(1)),
    ]
    ended = {
        "first": [(abort(NEW.at(0)), granted(NEW.at(1))), (_SETTLED, "CompleteAbort NEW 1 []")],
        "second": [
            (abort(NEWER.at(0), **other), granted(NEWER.at(1))),
            (describe(OTHER_TID), "CompleteAbort NEWER 1 []"),
        ],
    }
    first, second = "NEW 0 #0@0", "NEWER 0 #0@1"
    return [
        case(
            "3.5/first-ends-first",
            *both,
            (latest("committed"), offset(0)),
            *ended["first"],
            (latest("committed"), offset(1)),
            (read("committed"), ("high=3 stable=1 aborted=[NEW@0]", [first])),
            *ended["second"],
            (
                read("committed"),
                (
                    "high=4 stable=4 aborted=[NEW@0, NEWER@1]",
                    [first, second, "NEW 1 ABORT/OWN@2", "NEWER 1 ABORT/OWN@3"],
                ),
            ),
            (read("committed", offset=3), ("high=4 stable=4 aborted=[NEWER@1]", ["NEWER 1 ABORT/OWN@3"])),
            levels=(1, 2),
        ),
        case(
            "3.5/second-ends-first",
            *both,
            *ended["second"],
            (latest("committed"), offset(0)),
            (read("committed"), ("high=3 stable=0 aborted=[]", [])),
            *ended["first"],
            (
                read("committed"),
                (
                    "high=4 stable=4 aborted=[NEWER@1, NEW@0]",
                    [first, second, "NEWER 1 ABORT/OWN@2", "NEW 1 ABORT/OWN@3"],
                ),
            ),
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
            (produce(NEW.at(0), sequence=0), written(0)),
            (abort(NEW.at(0)), granted(NEW.at(1))),
            (produce(NEW.at(1), sequence=0), written(2)),
            (commit(NEW.at(1)), granted(NEW.at(2))),
            (produce(NEW.at(2), sequence=0), written(4)),
            (abort(NEW.at(2)), granted(NEW.at(3))),
            (_SETTLED, "CompleteAbort NEW 3 []"),
            (
                read("committed"),
                (
                    "high=6 stable=6 aborted=[NEW@0, NEW@4]",
                    [
                        "NEW 0 #0@0",
                        "NEW 1 ABORT/OWN@1",
                        "NEW 1 #0@2",
                        "NEW 2 COMMIT/OWN@3",
                        "NEW 2 #0@4",
                        "NEW 3 ABORT/OWN@5",
                    ],
                ),
            ),
            (
                read("committed", offset=2),
                (
                    "high=6 stable=6 aborted=[NEW@4]",
                    ["NEW 1 #0@2", "NEW 2 COMMIT/OWN@3", "NEW 2 #0@4", "NEW 3 ABORT/OWN@5"],
                ),
            ),
            levels=(1, 2),
        ),
        case(
            "3.5/marker-of-nothing-is-not-listed",
            (marker(CURRENT.at(7), "ABORT"), OK),
            (read("committed"), ("high=1 stable=1 aborted=[]", ["CURRENT 7 ABORT/0@0"])),
        ),
    ]


CASES = [*_one(), *_several()]
