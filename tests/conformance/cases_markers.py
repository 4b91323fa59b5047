"""End markers and what they do to the leader's view: sections 2.6, 2.9 and 3.4."""

from __future__ import annotations

from typing import Any

from spark_2pc_sink.codes import Code
from tests.conformance.cases import (
    CURRENT,
    DAY_MS,
    EMPTY,
    HERE,
    NEW,
    NO_TOPIC,
    OK,
    PREVIOUS,
    SHARED,
    Case,
    Given,
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
    producers,
    read,
    until,
    written,
)
from tests.conformance.leader_operations import Marker, Markers

_OLD = 11
#: A transaction of CURRENT at epoch 7 that the coordinator knows nothing of: it hangs until somebody writes its marker.
_OPEN = [(add(CURRENT.at(7), HERE[0]), OK), (produce(CURRENT.at(7), sequence=0, version=_OLD), written(0))]


def _epochs() -> list[Case]:
    cases = []
    for version in (1, 2):
        for level in (0, 2) if version == 2 else (0,):
            strict = level == 2
            how: dict[str, Any] = {"level": level, "version": version}
            word = f"v{version}-of-{level}"
            rows = [
                ("older", CURRENT.at(6), Code.INVALID_PRODUCER_EPOCH, "CURRENT 7 sequence=0 coordinator=-1 open=0"),
                (
                    "same",
                    CURRENT.at(7),
                    Code.INVALID_PRODUCER_EPOCH if strict else OK,
                    f"CURRENT 7 sequence=0 coordinator={-1 if strict else 0} open={0 if strict else -1}",
                ),
                ("newer", CURRENT.at(8), OK, "CURRENT 8 sequence=-1 coordinator=0 open=-1"),
            ]
            cases += [
                case(
                    f"3.4/{word}-{name}",
                    *_OPEN,
                    (marker(pair, "ABORT", **how), code),
                    (producers(), [left]),
                    given=EMPTY,
                )
                for name, pair, code, left in rows
            ]
            again = [(marker(CURRENT.at(7), "COMMIT", **how), OK), (marker(CURRENT.at(7), "COMMIT", **how), OK)]
            cases += [
                case(
                    f"3.4/{word}-unknown-producer",
                    *again,
                    (producers(), ["CURRENT 7 sequence=-1 coordinator=0 open=-1"]),
                    (latest("committed"), offset(2)),
                ),
                case(
                    f"3.4/{word}-older-than-a-marker",
                    again[0],
                    (marker(CURRENT.at(6), "COMMIT", **how), Code.INVALID_PRODUCER_EPOCH),
                    (marker(CURRENT.at(8), "ABORT", **how), OK),
                ),
                case(
                    f"3.4/{word}-highest-epoch-again",
                    (marker(CURRENT.at(32767), "ABORT", **how), OK),
                    (marker(CURRENT.at(32767), "ABORT", **how), OK),
                ),
                case(
                    f"3.4/{word}-idempotent-producer",
                    (idempotent(CURRENT.at(7), sequence=0), written(0)),
                    (marker(CURRENT.at(7), "ABORT", **how), OK),
                    (producers(), ["CURRENT 7 sequence=0 coordinator=0 open=-1"]),
                    (idempotent(CURRENT.at(7), sequence=1), written(2)),
                ),
            ]
    return cases


def _coordinators() -> list[Case]:
    first = (marker(CURRENT.at(7), "COMMIT", coordinator=3), OK)
    return [
        case(
            "3.4/older-coordinator",
            first,
            (marker(CURRENT.at(7), "COMMIT", coordinator=2), Code.TRANSACTION_COORDINATOR_FENCED),
            (marker(CURRENT.at(8), "COMMIT", coordinator=2), Code.TRANSACTION_COORDINATOR_FENCED),
        ),
        case(
            "3.4/newer-coordinator",
            first,
            (marker(CURRENT.at(7), "ABORT", coordinator=4), OK),
            (producers(), ["CURRENT 7 sequence=-1 coordinator=4 open=-1"]),
        ),
        case(
            "3.4/epoch-before-coordinator",
            first,
            (marker(CURRENT.at(6), "COMMIT", coordinator=2), Code.INVALID_PRODUCER_EPOCH),
        ),
        case(
            "2.6/no-coordinator-at-first",
            (marker(CURRENT.at(7), "COMMIT", coordinator=-1), OK),
            (marker(CURRENT.at(7), "COMMIT", coordinator=-1), OK),
            (marker(CURRENT.at(7), "COMMIT", coordinator=0), OK),
            (marker(CURRENT.at(7), "COMMIT", coordinator=-1), Code.TRANSACTION_COORDINATOR_FENCED),
        ),
    ]


def _requests() -> list[Case]:
    pair = Marker(pair=CURRENT.at(7), commit=True, partitions=HERE[:2])
    other = Marker(pair=PREVIOUS.at(3), commit=False, partitions=HERE[1:2])
    return [
        case("2.6/unknown-partition", (marker(CURRENT.at(7), "COMMIT", NO_TOPIC), Code.UNKNOWN_TOPIC_OR_PARTITION)),
        case(
            "2.6/known-beside-unknown",
            (
                marker(CURRENT.at(7), "COMMIT", HERE[0], NO_TOPIC),
                {("CURRENT", "here0"): OK, ("CURRENT", NO_TOPIC): Code.UNKNOWN_TOPIC_OR_PARTITION},
            ),
            (latest("uncommitted"), offset(1)),
        ),
        case("2.6/no-markers", (Markers(markers=()), {}), (Markers(markers=(), version=1), {})),
        case(
            "2.6/two-producers",
            (Markers(markers=(pair, other)), OK),
            (
                producers(HERE[1]),
                ["CURRENT 7 sequence=-1 coordinator=0 open=-1", "PREVIOUS 3 sequence=-1 coordinator=0 open=-1"],
            ),
        ),
        case(
            "2.6/hanging-transaction-is-ended",
            *_OPEN,
            (latest("committed"), offset(0)),
            (marker(CURRENT.at(7), "ABORT"), OK),
            (latest("committed"), offset(2)),
            (describe(), "Ongoing CURRENT 7 [here0]"),
            (produce(CURRENT.at(7), sequence=1, version=_OLD), written(2)),
            (abort(CURRENT.at(7), version=4), OK),
            (describe(), "CompleteAbort CURRENT 7 []"),
            (latest("committed"), offset(4)),
            given=EMPTY,
        ),
        case(
            "2.6/marker-ahead-of-the-coordinator",
            *_OPEN,
            (marker(CURRENT.at(9), "ABORT"), OK),
            (commit(CURRENT.at(7), version=4), OK),
            (latest("committed"), offset(2)),
            given=Given(state="EMPTY", stuck=True),
        ),
    ]


def _effects() -> list[Case]:
    new = (init(), granted(NEW.at(0)))
    return [
        case(
            "3.4/new-end-bumps-at-the-leader",
            new,
            (produce(NEW.at(0), sequence=0), written(0)),
            (commit(NEW.at(0)), granted(NEW.at(1))),
            (describe(), "CompleteCommit NEW 1 []"),
            (producers(), ["NEW 1 sequence=-1 coordinator=OWN open=-1"]),
            levels=(1, 2),
        ),
        case(
            "3.4/old-end-keeps-the-epoch-at-the-leader",
            *_OPEN,
            (abort(CURRENT.at(7), version=4), OK),
            (describe(), "CompleteAbort CURRENT 7 []"),
            (producers(), ["CURRENT 7 sequence=0 coordinator=OWN open=-1"]),
            given=EMPTY,
        ),
        case(
            "3.4/fence-bumps-at-the-leader",
            *_OPEN,
            (init(), Code.CONCURRENT_TRANSACTIONS),
            (describe(), "CompleteAbort CURRENT 8 []"),
            (producers(), ["CURRENT 8 sequence=-1 coordinator=OWN open=-1"]),
            given=EMPTY,
        ),
        case(
            "1.3/marker-of-the-last-epoch",
            (produce(CURRENT.at(32766), sequence=0), written(0)),
            (commit(CURRENT.at(32766)), granted(NEW.at(0))),
            (describe(), "CompleteCommit NEW 0 []"),
            (producers(), ["CURRENT 32767 sequence=-1 coordinator=OWN open=-1"]),
            (produce(NEW.at(0), sequence=0), written(2)),
            given=Given(state="EMPTY", epoch=32766),
            levels=(1, 2),
        ),
        *_effects_at_the_edge(),
    ]


def _effects_at_the_edge() -> list[Case]:
    """The last epoch, the guard, and partitions without data."""
    return [
        case(
            "1.3/marker-of-the-fence-of-the-last-epoch",
            (add(CURRENT.at(32766), HERE[0]), OK),
            (produce(CURRENT.at(32766), sequence=0, version=_OLD), written(0)),
            (init(), Code.CONCURRENT_TRANSACTIONS),
            (describe(), "CompleteAbort NEW 0 []"),
            (producers(), ["CURRENT 32767 sequence=-1 coordinator=OWN open=-1"]),
            given=Given(state="EMPTY", epoch=32766),
            levels=(2,),
        ),
        case(
            "1.3/marker-of-the-fence-of-the-last-epoch",
            (add(CURRENT.at(32766), HERE[0]), OK),
            (produce(CURRENT.at(32766), sequence=0, version=_OLD), written(0)),
            (init(), Code.CONCURRENT_TRANSACTIONS),
            (describe(), "CompleteAbort CURRENT 32767 []"),
            (producers(), ["CURRENT 32767 sequence=-1 coordinator=OWN open=-1"]),
            given=Given(state="EMPTY", epoch=32766),
            levels=(0, 1),
        ),
        case(
            "3.4/marker-removes-the-guard",
            (produce(CURRENT.at(7), sequence=5, version=_OLD), Code.TRANSACTION_ABORTABLE),
            (marker(CURRENT.at(7), "ABORT"), OK),
            (add(CURRENT.at(7), HERE[0]), OK),
            (produce(CURRENT.at(7), sequence=6, version=_OLD), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (produce(CURRENT.at(7), sequence=0, version=_OLD), written(1)),
            given=EMPTY,
        ),
        case(
            "3.4/marker-without-data-is-written",
            (add(CURRENT.at(7), HERE[0]), OK),
            (commit(CURRENT.at(7), version=4), OK),
            (describe(), "CompleteCommit CURRENT 7 []"),
            (read("committed"), ("high=1 stable=1 aborted=[]", ["CURRENT 7 COMMIT/OWN@0"])),
            given=EMPTY,
        ),
    ]


def _described() -> list[Case]:
    bad = ("not a topic?", 0)
    return [
        case("2.9/bad-name", (producers(bad), Code.INVALID_TOPIC_EXCEPTION)),
        case("2.9/unknown-topic", (producers(NO_TOPIC), Code.UNKNOWN_TOPIC_OR_PARTITION)),
        case("2.9/unknown-partition", (producers((SHARED[0][0], 1000)), Code.UNKNOWN_TOPIC_OR_PARTITION)),
        case("2.9/nobody", (producers(), [])),
        case(
            "2.9/open",
            *_OPEN,
            (produce(CURRENT.at(7), sequence=1, count=3, version=_OLD), written(1)),
            (producers(), ["CURRENT 7 sequence=3 coordinator=-1 open=0"]),
            given=EMPTY,
        ),
        case(
            "3.5/idle-producer-is-forgotten",
            (idempotent(CURRENT.at(1), sequence=0, now_ms=-2 * DAY_MS), written(0)),
            until(producers(), []),
            (idempotent(CURRENT.at(1), sequence=9), written(1)),
        ),
        case(
            "3.5/open-transaction-is-not-forgotten",
            (add(CURRENT.at(7), HERE[0]), OK),
            (produce(CURRENT.at(7), sequence=0, version=_OLD), written(0)),
            (idempotent(PREVIOUS.at(1), sequence=0, now_ms=-2 * DAY_MS), written(1)),
            until(producers(), ["CURRENT 7 sequence=0 coordinator=-1 open=0"]),
            given=EMPTY,
        ),
    ]


CASES = [*_epochs(), *_coordinators(), *_requests(), *_effects(), *_described()]
