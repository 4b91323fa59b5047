"""EndTxn: the grids of sections 2.3 (v4 and below) and 2.4 (v5), and overflow (1.3)."""

from __future__ import annotations

from typing import Any

from spark_2pc_sink.codes import Code
from tests.conformance.cases import (
    CURRENT,
    EMPTY,
    EPOCH_MAX,
    NEW,
    OK,
    ONGOING,
    PREVIOUS,
    SHARED,
    UNKNOWN,
    Case,
    Given,
    abort,
    add,
    add_nothing,
    case,
    commit,
    describe,
    granted,
    init,
    word_of,
)

#: State: answer to commit, to abort (v4 and below, section 2.3).
OLD_GRID: dict[str, tuple[Code, Code]] = {
    "ONGOING": (OK, OK),
    "EMPTY": (Code.INVALID_TXN_STATE, Code.INVALID_TXN_STATE),
    "COMPLETE_COMMIT": (OK, Code.INVALID_TXN_STATE),
    "COMPLETE_ABORT": (Code.INVALID_TXN_STATE, OK),
}
_NEXT = granted(CURRENT.at(8))
_STORED = granted(CURRENT.at(7))
#: State: answers to commit of the current pair and of the one before, abort of the same (v5, section 2.4).
NEW_GRID: dict[str, tuple[Any, Any, Any, Any]] = {
    "ONGOING": (_NEXT, Code.PRODUCER_FENCED, _NEXT, Code.PRODUCER_FENCED),
    "EMPTY": (Code.INVALID_TXN_STATE, Code.PRODUCER_FENCED, _NEXT, Code.PRODUCER_FENCED),
    "COMPLETE_COMMIT": (Code.INVALID_TXN_STATE, _STORED, _NEXT, Code.INVALID_TXN_STATE),
    "COMPLETE_ABORT": (Code.INVALID_TXN_STATE, Code.INVALID_TXN_STATE, _NEXT, _STORED),
}
DECIDED = ("PREPARE_COMMIT", "PREPARE_ABORT")
#: What a transaction is, once it is over.
OUTCOME = {True: "CompleteCommit", False: "CompleteAbort"}


def _old_grid() -> list[Case]:
    cases = []
    for state, (committed, aborted) in OLD_GRID.items():
        given, word = Given(state=state), word_of(state)
        cases += [
            case(f"2.3/{word}-commit", (commit(CURRENT.at(7), version=4), committed), given=given),
            case(f"2.3/{word}-abort", (abort(CURRENT.at(7), version=4), aborted), given=given),
            case(
                f"2.3/{word}-refused",
                *(
                    (end(pair, version=4), code)
                    for pair, code in (
                        (CURRENT.at(6), Code.PRODUCER_FENCED),
                        (CURRENT.at(8), Code.PRODUCER_FENCED),
                        (UNKNOWN.at(7), Code.INVALID_PRODUCER_ID_MAPPING),
                    )
                    for end in (commit, abort)
                ),
                given=given,
            ),
        ]
    for state in DECIDED:
        stuck = Given(state=state, stuck=True)
        rows = (
            (CURRENT.at(7), Code.CONCURRENT_TRANSACTIONS),
            (CURRENT.at(6), Code.PRODUCER_FENCED),
            (UNKNOWN.at(7), Code.INVALID_PRODUCER_ID_MAPPING),
        )
        steps = [(end(pair, version=4), code) for pair, code in rows for end in (commit, abort)]
        cases.append(case(f"2.3/{word_of(state)}-any-pair", *steps, given=stuck))
    return cases


def _old_endings() -> list[Case]:
    """The epoch stays, below v5."""
    cases = []
    for end in (commit, abort):
        outcome = OUTCOME[end is commit]
        cases += [
            case(
                f"1.2/old-{end.__name__}-keeps-the-epoch",
                (end(CURRENT.at(7), version=4), OK),
                (describe(), f"{outcome} CURRENT 7 []"),
                (end(CURRENT.at(7), version=4), OK),
                (add(CURRENT.at(7), SHARED[1]), OK),
                (describe(), "Ongoing CURRENT 7 [shared1]"),
                given=ONGOING,
            ),
            case(
                f"2.3/{end.__name__}-of-the-last-epoch",
                (end(CURRENT.at(EPOCH_MAX), version=4), OK),
                (describe(), f"{outcome} CURRENT {EPOCH_MAX} []"),
                given=Given(state="ONGOING", epoch=EPOCH_MAX),
            ),
        ]
    return [
        *cases,
        case("2.3/unknown-id", (commit(UNKNOWN.at(0), version=4), Code.INVALID_PRODUCER_ID_MAPPING)),
        case("2.3/empty-id", (commit(UNKNOWN.at(0), version=4, tid=""), Code.INVALID_REQUEST)),
        case("2.3/fenced-v1", (commit(CURRENT.at(6), version=1), Code.INVALID_PRODUCER_EPOCH), given=ONGOING),
        case("2.3/fenced-v2", (commit(CURRENT.at(6), version=2), Code.PRODUCER_FENCED), given=ONGOING),
    ]


def _new_grid() -> list[Case]:
    cases = []
    for state, answers in NEW_GRID.items():
        given, word = Given(state=state), word_of(state)
        requests = {
            "commit": commit(CURRENT.at(7)),
            "commit-again": commit(CURRENT.at(6)),
            "abort": abort(CURRENT.at(7)),
            "abort-again": abort(CURRENT.at(6)),
        }
        cases += [
            case(f"2.4/{word}-{name}", (request, answer), given=given, levels=(1, 2))
            for (name, request), answer in zip(requests.items(), answers, strict=True)
        ]
        refused = [
            (end(pair), code)
            for pair, code in (
                (CURRENT.at(8), Code.PRODUCER_FENCED),
                (CURRENT.at(4), Code.PRODUCER_FENCED),
                (UNKNOWN.at(7), Code.INVALID_PRODUCER_ID_MAPPING),
                (PREVIOUS.at(7), Code.INVALID_PRODUCER_ID_MAPPING),
            )
            for end in (commit, abort)
        ]
        cases.append(case(f"2.4/{word}-refused", *refused, given=Given(state=state, previous=PREVIOUS), levels=(1, 2)))
    for state in DECIDED:
        pairs = (CURRENT.at(7), CURRENT.at(6), CURRENT.at(3), UNKNOWN.at(7))
        steps = [(end(pair), Code.CONCURRENT_TRANSACTIONS) for pair in pairs for end in (commit, abort)]
        given = Given(state=state, stuck=True)
        cases.append(case(f"2.4/{word_of(state)}-any-pair", *steps, given=given, levels=(1, 2)))
    return cases


def _new_endings() -> list[Case]:
    cases = [
        case("2.4/unknown-id", (commit(UNKNOWN.at(0)), Code.INVALID_PRODUCER_ID_MAPPING), levels=(2,)),
        case("2.4/empty-id", (commit(UNKNOWN.at(0), tid=""), Code.INVALID_REQUEST), levels=(2,)),
    ]
    for end in (commit, abort):
        outcome, word = OUTCOME[end is commit], end.__name__
        cases += [
            case(
                f"2.4/{word}-bumps-and-its-retry-does-not",
                (end(CURRENT.at(7)), granted(CURRENT.at(8))),
                (describe(), f"{outcome} CURRENT 8 []"),
                (end(CURRENT.at(7)), granted(CURRENT.at(8))),
                (add(CURRENT.at(8), SHARED[1]), OK),
                (end(CURRENT.at(7)), Code.PRODUCER_FENCED),
                (end(CURRENT.at(8)), granted(CURRENT.at(9))),
                given=ONGOING,
                levels=(1, 2),
            ),
            case(
                f"1.3/{word}-of-the-last-epoch",
                (end(CURRENT.at(EPOCH_MAX)), granted(NEW.at(0))),
                (describe(), f"{outcome} NEW 0 []"),
                (end(CURRENT.at(EPOCH_MAX)), granted(NEW.at(0))),
                (add(CURRENT.at(EPOCH_MAX)), Code.INVALID_PRODUCER_ID_MAPPING),
                (add(NEW.at(0)), OK),
                (end(CURRENT.at(EPOCH_MAX)), Code.INVALID_PRODUCER_ID_MAPPING),
                (end(NEW.at(0)), granted(NEW.at(1))),
                (end(CURRENT.at(EPOCH_MAX)), Code.INVALID_PRODUCER_ID_MAPPING),
                given=Given(state="ONGOING", epoch=EPOCH_MAX),
                levels=(1, 2),
            ),
            case(
                f"1.3/{word}-of-the-last-but-one-epoch",
                (end(CURRENT.at(EPOCH_MAX - 1)), granted(CURRENT.at(EPOCH_MAX))),
                (describe(), f"{outcome} CURRENT {EPOCH_MAX} []"),
                (add(CURRENT.at(EPOCH_MAX)), OK),
                (end(CURRENT.at(EPOCH_MAX)), granted(NEW.at(0))),
                given=Given(state="ONGOING", epoch=EPOCH_MAX - 1),
                levels=(1, 2),
            ),
            case(
                f"2.4/{word}-of-the-overflow-passes-the-id",
                (end(PREVIOUS.at(EPOCH_MAX)), Code.PRODUCER_FENCED),
                given=Given(state="ONGOING", epoch=0, previous=PREVIOUS),
                levels=(1, 2),
            ),
            case(
                f"2.4/{word}-of-the-overflow-when-empty",
                (end(CURRENT.at(EPOCH_MAX)), granted(NEW.at(0))),
                (init(NEW.at(0)), granted(NEW.at(1))),
                (end(CURRENT.at(EPOCH_MAX)), Code.INVALID_PRODUCER_ID_MAPPING),
                given=Given(state="ONGOING", epoch=EPOCH_MAX),
                levels=(1, 2),
            ),
            case(
                f"2.4/{word}-looks-like-an-overflow",
                (end(CURRENT.at(0), version=4), OK),
                (end(CURRENT.at(EPOCH_MAX)), granted(CURRENT.at(0))),
                (add(CURRENT.at(0)), OK),
                (end(CURRENT.at(EPOCH_MAX)), Code.PRODUCER_FENCED),
                given=Given(state="ONGOING", epoch=0),
                levels=(1, 2),
            ),
        ]
    return [*cases, *_empty_aborts()]


def _empty_aborts() -> list[Case]:
    return [
        case(
            "2.4/empty-aborts-burn-epochs",
            (abort(CURRENT.at(7)), granted(CURRENT.at(8))),
            (describe(), "CompleteAbort CURRENT 8 []"),
            (abort(CURRENT.at(8)), granted(CURRENT.at(9))),
            (abort(CURRENT.at(8)), granted(CURRENT.at(9))),
            (abort(CURRENT.at(9)), granted(CURRENT.at(10))),
            (commit(CURRENT.at(10)), Code.INVALID_TXN_STATE),
            given=EMPTY,
            levels=(2,),
        ),
        case(
            "1.3/empty-abort-of-the-last-epoch",
            (abort(CURRENT.at(EPOCH_MAX)), granted(NEW.at(0))),
            (abort(CURRENT.at(EPOCH_MAX)), granted(NEW.at(0))),
            (describe(), "CompleteAbort NEW 0 []"),
            given=Given(state="COMPLETE_COMMIT", epoch=EPOCH_MAX),
            levels=(1, 2),
        ),
        case(
            "2.4/commit-without-partitions",
            (add_nothing(CURRENT.at(7)), {}),
            (commit(CURRENT.at(7)), granted(CURRENT.at(8))),
            given=EMPTY,
            levels=(1, 2),
        ),
        case(
            "1.4/new-client-on-an-old-log",
            (commit(CURRENT.at(7)), Code.UNSUPPORTED_VERSION),
            (describe(), "Ongoing CURRENT 7 [shared0]"),
            given=ONGOING,
            levels=(0,),
        ),
        *_clients_and_logs(),
    ]


def _clients_and_logs() -> list[Case]:
    """What clients of one kind find after those of the other, and what an old log cannot hold."""
    return [
        # Kafka fails on the way and forgets to take back that a change is under way: nothing helps but a new load.
        case(
            "1.4/new-abort-on-an-old-log",
            (abort(CURRENT.at(7)), Code.UNSUPPORTED_VERSION),
            (abort(CURRENT.at(7), version=4), Code.CONCURRENT_TRANSACTIONS),
            (init(), Code.CONCURRENT_TRANSACTIONS),
            given=ONGOING,
            levels=(0,),
        ),
        case(
            "1.4/new-empty-abort-on-an-old-log",
            (abort(CURRENT.at(7)), Code.UNSUPPORTED_VERSION),
            given=EMPTY,
            levels=(0,),
        ),
        case(
            "1.3/broken-epoch-abort",
            (abort(CURRENT.at(32767)), granted(NEW.at(0))),
            (describe(), "CompleteAbort NEW 0 []"),
            given=Given(state="ONGOING", epoch=32767),
            levels=(1, 2),
        ),
        case(
            "1.3/broken-epoch-commit",
            (commit(CURRENT.at(32767)), Code.UNKNOWN_SERVER_ERROR),
            given=Given(state="ONGOING", epoch=32767),
            levels=(1, 2),
        ),
        case(
            "2.3/old-client-after-a-new-one",
            (commit(CURRENT.at(7)), granted(CURRENT.at(8))),
            (add(CURRENT.at(8)), OK),
            (commit(CURRENT.at(8), version=4), OK),
            (describe(), "CompleteCommit CURRENT 8 []"),
            given=ONGOING,
            levels=(1, 2),
        ),
        case(
            "2.4/new-client-after-an-old-one",
            (commit(CURRENT.at(7), version=4), OK),
            (add(CURRENT.at(7)), OK),
            (commit(CURRENT.at(7)), granted(CURRENT.at(8))),
            (describe(), "CompleteCommit CURRENT 8 []"),
            given=ONGOING,
            levels=(1, 2),
        ),
    ]


CASES = [*_old_grid(), *_old_endings(), *_new_grid(), *_new_endings()]
