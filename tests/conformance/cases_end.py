"""EndTxn: the grids of sections 2.3 (v4 and below) and 2.4 (v5), and overflow (1.3)."""

from __future__ import annotations

from typing import Any

from tests.conformance.cases import (
    ALL_LEVELS,
    EPOCH_MAX,
    SHARED,
    Case,
    Given,
    N,
    P,
    Q,
    X,
    abort,
    add,
    add_nothing,
    case,
    commit,
    describe,
    init,
)

#: State: answer to commit, to abort (v4 and below, section 2.3).
OLD_GRID: dict[str, tuple[int, int]] = {
    "ONGOING": (0, 0),
    "EMPTY": (48, 48),
    "COMPLETE_COMMIT": (0, 48),
    "COMPLETE_ABORT": (48, 0),
}
_NEXT = (0, "P", 8)
_STORED = (0, "P", 7)
#: State: answers to commit of the current pair and of the one before, abort of the same (v5, section 2.4).
NEW_GRID: dict[str, tuple[Any, Any, Any, Any]] = {
    "ONGOING": (_NEXT, 90, _NEXT, 90),
    "EMPTY": (48, 90, _NEXT, 90),
    "COMPLETE_COMMIT": (48, _STORED, _NEXT, 48),
    "COMPLETE_ABORT": (48, 48, _NEXT, _STORED),
}
DECIDED = ("PREPARE_COMMIT", "PREPARE_ABORT")
#: What a transaction is, once it is over.
OUTCOME = {True: "CompleteCommit", False: "CompleteAbort"}


def _word(state: str) -> str:
    return state.lower().replace("_", "-")


def _old_grid() -> list[Case]:
    cases = []
    for state, (committed, aborted) in OLD_GRID.items():
        given, word = Given(state=state), _word(state)
        for version in (3, 4):
            steps = {"commit": (commit((P, 7), version=version), committed)}
            steps["abort"] = (abort((P, 7), version=version), aborted)
            cases += [case(f"2.3/{word}-{k}-v{version}", v, given=given, levels=ALL_LEVELS) for k, v in steps.items()]
        for name, pair, code in (("stale", (P, 6), 90), ("ahead", (P, 8), 90), ("unknown", (X, 7), 49)):
            for end in (commit, abort):
                steps = {end.__name__: (end(pair, version=4), code)}
                name_ = f"2.3/{word}-{name}-{end.__name__}"
                cases.append(case(name_, *steps.values(), given=given, levels=ALL_LEVELS))
    for state in DECIDED:
        stuck = Given(state=state, stuck=True)
        word = _word(state)
        rows = [("current", (P, 7), 51), ("stale", (P, 6), 90), ("unknown", (X, 7), 49)]
        for name, pair, code in rows:
            cases.append(
                case(
                    f"2.3/{word}-{name}",
                    (commit(pair, version=4), code),
                    (abort(pair, version=4), code),
                    given=stuck,
                    levels=ALL_LEVELS,
                )
            )
    return cases


def _old_endings() -> list[Case]:
    """The epoch stays, below v5."""
    cases = []
    for end in (commit, abort):
        outcome = OUTCOME[end is commit]
        cases += [
            case(
                f"1.2/old-{end.__name__}-keeps-the-epoch",
                (end((P, 7), version=4), 0),
                (describe(), f"{outcome} P 7 []"),
                (end((P, 7), version=4), 0),
                (add((P, 7), SHARED[1]), 0),
                (describe(), "Ongoing P 7 [shared1]"),
                given=Given(state="ONGOING"),
                levels=ALL_LEVELS,
            ),
            case(
                f"2.3/{end.__name__}-of-the-last-epoch",
                (end((P, EPOCH_MAX), version=4), 0),
                (describe(), f"{outcome} P {EPOCH_MAX} []"),
                given=Given(state="ONGOING", epoch=EPOCH_MAX),
                levels=ALL_LEVELS,
            ),
        ]
    return [
        *cases,
        case("2.3/unknown-id", (commit((X, 0), version=4), 49), levels=ALL_LEVELS),
        case("2.3/empty-id", (commit((X, 0), version=4, tid=""), 42), levels=ALL_LEVELS),
        case("2.3/fenced-v1", (commit((P, 6), version=1), 47), given=Given(state="ONGOING"), levels=ALL_LEVELS),
        case("2.3/fenced-v2", (commit((P, 6), version=2), 90), given=Given(state="ONGOING"), levels=ALL_LEVELS),
        case("2.3/fenced-v0", (abort((P, 6), version=0), 47), given=Given(state="ONGOING"), levels=ALL_LEVELS),
        case(
            "2.3/commit-without-partitions",
            (add_nothing((P, 7)), {}),
            (describe(), "Ongoing P 7 []"),
            (commit((P, 7), version=4), 0),
            (describe(), "CompleteCommit P 7 []"),
            given=Given(state="EMPTY"),
            levels=ALL_LEVELS,
        ),
    ]


def _new_grid() -> list[Case]:
    cases = []
    for state, answers in NEW_GRID.items():
        given, word = Given(state=state), _word(state)
        requests = {
            "commit": commit((P, 7)),
            "commit-again": commit((P, 6)),
            "abort": abort((P, 7)),
            "abort-again": abort((P, 6)),
        }
        cases += [
            case(f"2.4/{word}-{name}", (request, answer), given=given, levels=(1, 2))
            for (name, request), answer in zip(requests.items(), answers, strict=True)
        ]
        for end in (commit, abort):
            word_ = f"2.4/{word}-{end.__name__}"
            cases += [
                case(f"{word_}-ahead", (end((P, 8)), 90), given=given, levels=(1, 2)),
                case(f"{word_}-long-ago", (end((P, 4)), 90), given=given, levels=(1, 2)),
                case(f"{word_}-unknown", (end((X, 7)), 49), given=given, levels=(1, 2)),
                case(f"{word_}-previous-id", (end((Q, 7)), 49), given=Given(state=state, previous=Q), levels=(1, 2)),
            ]
    for state in DECIDED:
        for name, pair in (("current", (P, 7)), ("again", (P, 6)), ("stale", (P, 3)), ("unknown", (X, 7))):
            steps = [(commit(pair), 51), (abort(pair), 51)]
            given = Given(state=state, stuck=True)
            cases.append(case(f"2.4/{_word(state)}-{name}", *steps, given=given, levels=(1, 2)))
    return cases


def _new_endings() -> list[Case]:
    cases = [case("2.4/unknown-id", (commit((X, 0)), 49)), case("2.4/empty-id", (commit((X, 0), tid=""), 42))]
    for end in (commit, abort):
        outcome, word = OUTCOME[end is commit], end.__name__
        cases += [
            case(
                f"2.4/{word}-bumps-and-its-retry-does-not",
                (end((P, 7)), (0, "P", 8)),
                (describe(), f"{outcome} P 8 []"),
                (end((P, 7)), (0, "P", 8)),
                (add((P, 8), SHARED[1]), 0),
                (end((P, 7)), 90),
                (end((P, 8)), (0, "P", 9)),
                given=Given(state="ONGOING"),
                levels=(1, 2),
            ),
            case(
                f"1.3/{word}-of-the-last-epoch",
                (end((P, EPOCH_MAX)), (0, "N", 0)),
                (describe(), f"{outcome} N 0 []"),
                (end((P, EPOCH_MAX)), (0, "N", 0)),
                (add((P, EPOCH_MAX)), 49),
                (add((N, 0)), 0),
                (end((P, EPOCH_MAX)), 49),
                (end((N, 0)), (0, "N", 1)),
                (end((P, EPOCH_MAX)), 49),
                given=Given(state="ONGOING", epoch=EPOCH_MAX),
                levels=(1, 2),
            ),
            case(
                f"1.3/{word}-of-the-last-but-one-epoch",
                (end((P, EPOCH_MAX - 1)), (0, "P", EPOCH_MAX)),
                (describe(), f"{outcome} P {EPOCH_MAX} []"),
                (add((P, EPOCH_MAX)), 0),
                (end((P, EPOCH_MAX)), (0, "N", 0)),
                given=Given(state="ONGOING", epoch=EPOCH_MAX - 1),
                levels=(1, 2),
            ),
            case(
                f"2.4/{word}-of-the-overflow-passes-the-id",
                (end((Q, EPOCH_MAX)), 90),
                given=Given(state="ONGOING", epoch=0, previous=Q),
                levels=(1, 2),
            ),
            case(
                f"2.4/{word}-of-the-overflow-when-empty",
                (end((P, EPOCH_MAX)), (0, "N", 0)),
                (init((N, 0)), (0, "N", 1)),
                (end((P, EPOCH_MAX)), 49),
                given=Given(state="ONGOING", epoch=EPOCH_MAX),
                levels=(1, 2),
            ),
            case(
                f"2.4/{word}-looks-like-an-overflow",
                (end((P, 0), version=4), 0),
                (end((P, EPOCH_MAX)), (0, "P", 0)),
                (add((P, 0)), 0),
                (end((P, EPOCH_MAX)), 90),
                given=Given(state="ONGOING", epoch=0),
                levels=(1, 2),
            ),
        ]
    return [*cases, *_empty_aborts()]


def _empty_aborts() -> list[Case]:
    return [
        case(
            "2.4/empty-aborts-burn-epochs",
            (abort((P, 7)), (0, "P", 8)),
            (describe(), "CompleteAbort P 8 []"),
            (abort((P, 8)), (0, "P", 9)),
            (abort((P, 8)), (0, "P", 9)),
            (abort((P, 9)), (0, "P", 10)),
            (commit((P, 10)), 48),
            given=Given(state="EMPTY"),
        ),
        case(
            "1.3/empty-abort-of-the-last-epoch",
            (abort((P, EPOCH_MAX)), (0, "N", 0)),
            (abort((P, EPOCH_MAX)), (0, "N", 0)),
            (describe(), "CompleteAbort N 0 []"),
            given=Given(state="COMPLETE_COMMIT", epoch=EPOCH_MAX),
            levels=(1, 2),
        ),
        case(
            "2.4/commit-without-partitions",
            (add_nothing((P, 7)), {}),
            (commit((P, 7)), (0, "P", 8)),
            given=Given(state="EMPTY"),
            levels=(1, 2),
        ),
        case(
            "1.4/new-client-on-an-old-log",
            (commit((P, 7)), 35),
            (describe(), "Ongoing P 7 [shared0]"),
            given=Given(state="ONGOING"),
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
            (abort((P, 7)), 35),
            (abort((P, 7), version=4), 51),
            (init(), 51),
            given=Given(state="ONGOING"),
            levels=(0,),
        ),
        case("1.4/new-empty-abort-on-an-old-log", (abort((P, 7)), 35), given=Given(state="EMPTY"), levels=(0,)),
        case(
            "1.3/broken-epoch-abort",
            (abort((P, 32767)), (0, "N", 0)),
            (describe(), "CompleteAbort N 0 []"),
            given=Given(state="ONGOING", epoch=32767),
            levels=(1, 2),
        ),
        case(
            "1.3/broken-epoch-commit",
            (commit((P, 32767)), -1),
            given=Given(state="ONGOING", epoch=32767),
            levels=(1, 2),
        ),
        case(
            "2.3/old-client-after-a-new-one",
            (commit((P, 7)), (0, "P", 8)),
            (add((P, 8)), 0),
            (commit((P, 8), version=4), 0),
            (describe(), "CompleteCommit P 8 []"),
            given=Given(state="ONGOING"),
            levels=(1, 2),
        ),
        case(
            "2.4/new-client-after-an-old-one",
            (commit((P, 7), version=4), 0),
            (add((P, 7)), 0),
            (commit((P, 7)), (0, "P", 8)),
            (describe(), "CompleteCommit P 8 []"),
            given=Given(state="ONGOING"),
            levels=(1, 2),
        ),
    ]


CASES = [*_old_grid(), *_old_endings(), *_new_grid(), *_new_endings()]
