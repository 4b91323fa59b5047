"""AddPartitionsToTxn, of clients and of leaders, and AddOffsetsToTxn: section 2.2."""

from __future__ import annotations

from tests.conformance.cases import (
    ALL_LEVELS,
    INTERNAL,
    NO_TOPIC,
    SHARED,
    Case,
    Exchange,
    Given,
    N,
    P,
    Q,
    X,
    add,
    add_nothing,
    add_offsets,
    case,
    describe,
    init,
    verify,
)

STATES = ("EMPTY", "ONGOING", "COMPLETE_COMMIT", "COMPLETE_ABORT")
DECIDED = ("PREPARE_COMMIT", "PREPARE_ABORT")


def _word(state: str) -> str:
    return state.lower().replace("_", "-")


def _grid() -> list[Case]:
    cases = []
    for state in STATES:
        given, word = Given(state=state), _word(state)
        held = "[shared0, shared1]" if state == "ONGOING" else "[shared1]"
        for version in (3, 4, 5):
            if version == 3:
                levels: tuple[int, ...] = ALL_LEVELS
            else:
                levels = (1, 2)
            cases.append(
                case(
                    f"2.2/{word}-v{version}",
                    (add((P, 7), SHARED[1], version=version), 0),
                    (describe(), f"Ongoing P 7 {held}"),
                    given=given,
                    levels=levels,
                )
            )
        cases += [
            case(f"2.2/{word}-{name}", (add(pair), code), (add_offsets(pair), code), given=given, levels=ALL_LEVELS)
            for name, pair, code in (
                ("stale", (P, 6), 90),
                ("ahead", (P, 8), 90),
                ("unknown", (X, 7), 49),
                ("previous-id", (Q, 7), 49),
            )
        ]
        cases.append(case(f"2.2/{word}-offsets", (add_offsets((P, 7)), 0), given=given, levels=ALL_LEVELS))
        cases.append(_verified(state))
    for state in DECIDED:
        for name, pair in (("current", (P, 7)), ("stale", (P, 6)), ("unknown", (X, 7))):
            given = Given(state=state, stuck=True)
            steps = [(add(pair), 51), (add_offsets(pair), 51), (add(pair, version=5), 51)]
            cases.append(case(f"2.2/{_word(state)}-{name}", *steps, given=given, levels=ALL_LEVELS))
        cases.append(_verified(state))
    return cases


def _verified(state: str) -> Case:
    """verifyOnly: nothing is added, and what is pending is not looked at."""
    decided = state in DECIDED
    rows: list[Exchange] = [
        (verify((P, 6)), 90),
        (verify((P, 8)), 90),
        (verify((X, 7)), 49),
        (verify((P, 7), SHARED[1]), 51 if decided else 120),
        (verify((P, 7)), 51 if decided else 0 if state == "ONGOING" else 120),
        (verify((P, 7), version=4), 51 if decided else 0 if state == "ONGOING" else 120),
    ]
    if state == "ONGOING":
        rows.append((verify((P, 7), *SHARED[:2]), {"shared0": 0, "shared1": 120}))
        rows.append((describe(), "Ongoing P 7 [shared0]"))
    return case(f"2.2/{_word(state)}-verify", *rows, given=Given(state=state, stuck=decided), levels=ALL_LEVELS)


def _others() -> list[Case]:
    ongoing = Given(state="ONGOING")
    return [
        case(
            "2.2/unknown-id",
            (add((X, 0)), 49),
            (add_offsets((X, 0)), 49),
            (verify((X, 0)), 49),
            (add((X, 0), version=4), 49),
            levels=ALL_LEVELS,
        ),
        case(
            "2.2/empty-id",
            (add((X, 0), tid=""), 42),
            (add_offsets((X, 0), tid=""), 42),
            (verify((X, 0), tid=""), 42),
            levels=ALL_LEVELS,
        ),
        case(
            "2.2/already-there",
            (add((P, 7)), 0),
            (add((P, 7), *SHARED[:2]), 0),
            (describe(), "Ongoing P 7 [shared0, shared1]"),
            given=ongoing,
            levels=ALL_LEVELS,
        ),
        case(
            "2.2/fenced-v1",
            (add((P, 6), version=1), 47),
            (add_offsets((P, 6), version=1), 47),
            given=ongoing,
            levels=ALL_LEVELS,
        ),
        case(
            "2.2/fenced-v0",
            (add((P, 6), version=0), 47),
            (add_offsets((P, 6), version=0), 47),
            given=ongoing,
            levels=ALL_LEVELS,
        ),
        case(
            "2.2/fenced-v2",
            (add((P, 6), version=2), 90),
            (add_offsets((P, 6), version=2), 90),
            given=ongoing,
            levels=ALL_LEVELS,
        ),
        case(
            "2.2/fenced-v4",
            (add((P, 6), version=4), 90),
            (add_offsets((P, 6), version=4), 90),
            given=ongoing,
            levels=ALL_LEVELS,
        ),
        *_partitions(),
    ]


def _partitions() -> list[Case]:
    """What is asked for, rather than by whom."""
    ongoing = Given(state="ONGOING")
    return [
        case(
            "2.2/unknown-partition",
            (add((P, 7), SHARED[1], NO_TOPIC), {"shared1": 55, NO_TOPIC: 3}),
            (describe(), "Ongoing P 7 [shared0]"),
            given=ongoing,
            levels=ALL_LEVELS,
        ),
        case(
            "2.2/internal-topic",
            (add((P, 7), SHARED[1], INTERNAL), {"shared1": 55, INTERNAL: 29}),
            (describe(), "Ongoing P 7 [shared0]"),
            given=ongoing,
            levels=ALL_LEVELS,
        ),
        case(
            "2.2/unknown-partition-first",
            (add((P, 6), NO_TOPIC), 3),
            (add((X, 6), NO_TOPIC), 3),
            given=ongoing,
            levels=ALL_LEVELS,
        ),
        case(
            "2.2/no-partitions-open-a-transaction",
            (add_nothing((P, 7)), {}),
            (describe(), "Ongoing P 7 []"),
            given=Given(state="EMPTY"),
            levels=ALL_LEVELS,
        ),
        case(
            "2.2/no-partitions-stale",
            (add_nothing((P, 6)), {}),
            (describe(), "Empty P 7 unstarted []"),
            given=Given(state="EMPTY"),
            levels=ALL_LEVELS,
        ),
        case("2.2/leaders-add-any-topic", (add((P, 7), INTERNAL, version=5), 0), given=ongoing),
        case(
            "2.2/offsets-add-their-partition",
            (add_offsets((P, 7)), 0),
            (describe(), "Ongoing P 7 [(__consumer_offsets, 0), shared0]"),
            given=ongoing,
            levels=ALL_LEVELS,
        ),
        case(
            "2.2/new-id",
            (init(), (0, "N", 0)),
            (add((N, 0), *SHARED), 0),
            (describe(), "Ongoing N 0 [shared0, shared1, shared2]"),
            levels=ALL_LEVELS,
        ),
        case(
            "1.4/leader-add-on-an-old-log",
            (add((P, 7), SHARED[1], version=5), 35),
            given=Given(state="EMPTY"),
            levels=(0,),
        ),
    ]


CASES = [*_grid(), *_others()]
