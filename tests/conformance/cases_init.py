"""InitProducerId: the grid of section 2.1, its gates, fencing (1.2), overflow (1.3)."""

from __future__ import annotations

from tests.conformance.cases import (
    ALL_LEVELS,
    EPOCH_MAX,
    NEVER_MS,
    SHARED,
    TIMEOUT_MS,
    Case,
    Exchange,
    Given,
    N,
    P,
    Q,
    X,
    abort,
    add,
    case,
    commit,
    describe,
    init,
    until,
)

AT_REST = ("EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT")
DECIDED = ("PREPARE_COMMIT", "PREPARE_ABORT")


def _word(state: str) -> str:
    return state.lower().replace("_", "-")


def _at_rest(state: str) -> list[Case]:
    """Rows 'Empty/Complete*' for an epoch that has room, and for one that has not."""
    given, last = Given(state=state), Given(state=state, epoch=EPOCH_MAX)
    before = Given(state=state, previous=Q)
    word = _word(state)
    rows: list[tuple[str, Given, list[Exchange]]] = [
        (f"{word}-no-pair", given, [(init(), (0, "P", 8)), (init(), (0, "P", 9))]),
        (f"{word}-current-pair", given, [(init((P, 7)), (0, "P", 8)), (init((P, 8)), (0, "P", 9))]),
        (f"{word}-last-pair-again", given, [(init((P, 7)), (0, "P", 8)), (init((P, 7)), (0, "P", 8))]),
        (f"{word}-last-pair-after-no-pair", given, [(init(), (0, "P", 8)), (init((P, 7)), 90)]),
        (f"{word}-stale-epoch", given, [(init((P, 6)), 90), (init((P, 7)), (0, "P", 8))]),
        (f"{word}-epoch-ahead", given, [(init((P, 8)), 90)]),
        (f"{word}-unknown-pair", given, [(init((X, 7)), 90)]),
        (f"{word}-previous-id-with-room", before, [(init((Q, 7)), 90)]),
        (f"{word}-previous-id-at-its-end", before, [(init((Q, EPOCH_MAX)), 90)]),
        (f"{word}-exhausted-no-pair", last, [(init(), (0, "N", 0)), (init((P, EPOCH_MAX)), 90)]),
        (
            f"{word}-exhausted-current-pair",
            last,
            [(init((P, EPOCH_MAX)), (0, "N", 0)), (init((P, EPOCH_MAX)), (0, "N", 0)), (init((N, 0)), (0, "N", 1))],
        ),
        (f"{word}-exhausted-stale-epoch", last, [(init((P, 5)), -1)]),
        (
            f"{word}-exhausted-last-pair",
            Given(state=state, epoch=EPOCH_MAX - 1),
            [(init((P, EPOCH_MAX - 1)), (0, "P", EPOCH_MAX)), (init((P, EPOCH_MAX - 1)), -1)],
        ),
    ]
    previous = Given(state=state, epoch=EPOCH_MAX, previous=Q)
    name = f"2.1/{word}-exhausted-previous-id"
    return [
        *(case(f"2.1/{name}", *steps, given=found, levels=ALL_LEVELS) for name, found, steps in rows),
        case(name, (init((Q, EPOCH_MAX)), (0, "N", 0)), given=previous, levels=(1, 2)),
        # The log of level 0 does not hold the id before.
        case(name, (init((Q, EPOCH_MAX)), 90), given=previous, levels=(0,)),
    ]


def _ongoing() -> list[Case]:
    """Row 'Ongoing': fence, abort, and the second attempt."""
    given = Given(state="ONGOING")
    aborted = "CompleteAbort P 8 []"
    fenced = [(init(), 51), (describe(), aborted)]
    cases = [
        case("2.1/ongoing-no-pair", *fenced, (init(), (0, "P", 9)), given=given, levels=ALL_LEVELS),
        case(
            "2.1/ongoing-stale-epoch",
            (init((P, 6)), 51),
            (describe(), aborted),
            (init((P, 6)), 90),
            given=given,
            levels=ALL_LEVELS,
        ),
        case("2.1/ongoing-epoch-ahead", (init((P, 9)), 51), (describe(), aborted), given=given, levels=ALL_LEVELS),
        case(
            "2.1/ongoing-unknown-pair",
            (init((X, 7)), 90),
            (describe(), "Ongoing P 7 [shared0]"),
            given=given,
            levels=ALL_LEVELS,
        ),
        case(
            "2.1/ongoing-previous-id-at-its-end",
            (init((Q, EPOCH_MAX)), 51),
            (describe(), aborted),
            given=Given(state="ONGOING", previous=Q),
            levels=(1, 2),
        ),
        case(
            "2.1/ongoing-previous-id-with-room",
            (init((Q, 7)), 90),
            given=Given(state="ONGOING", previous=Q),
            levels=ALL_LEVELS,
        ),
        case(
            "2.1/ongoing-current-pair-again",
            (init((P, 7)), 51),
            (describe(), aborted),
            (init((P, 7)), (0, "P", 8)),
            given=given,
        ),
        case(
            "2.1/ongoing-current-pair-again",
            (init((P, 7)), 51),
            (describe(), aborted),
            (init((P, 7)), 90),
            given=given,
            levels=(0, 1),
        ),
    ]
    for number, pair in enumerate([(-1, -1), (P, 7), (P, 6), (X, 7), (Q, EPOCH_MAX)]):
        for state in DECIDED:
            stuck = Given(state=state, stuck=True, previous=Q)
            cases.append(
                case(f"2.1/{_word(state)}-any-pair-{number}", (init(pair), 51), given=stuck, levels=ALL_LEVELS)
            )
    return cases


def _fences() -> list[Case]:
    """Fences of the last epochs, and of a transaction without a timeout."""
    return [
        case(
            "1.3/fence-of-the-last-epoch",
            (init(), 51),
            (describe(), "CompleteAbort N 0 []"),
            (init(), (0, "N", 1)),
            given=Given(state="ONGOING", epoch=EPOCH_MAX),
        ),
        case(
            "1.3/fence-of-the-last-epoch",
            (init(), 51),
            (describe(), "CompleteAbort P 32767 []"),
            (init(), (0, "N", 0)),
            given=Given(state="ONGOING", epoch=EPOCH_MAX),
            levels=(0, 1),
        ),
        case(
            "1.3/fence-of-the-last-but-one-epoch",
            (init(), 51),
            (describe(), f"CompleteAbort P {EPOCH_MAX} []"),
            (init(), (0, "N", 0)),
            given=Given(state="ONGOING", epoch=EPOCH_MAX - 1),
            levels=ALL_LEVELS,
        ),
        case(
            "2.10/force-termination-of-a-two-phase-transaction",
            (init(timeout_ms=30_000), 51),
            (describe(), f"CompleteAbort P 8 timeout={NEVER_MS} []"),
            (init(timeout_ms=30_000), (0, "P", 9)),
            (describe(), "Empty P 9 timeout=30000 unstarted []"),
            given=Given(state="ONGOING", timeout_ms=NEVER_MS, start_age_ms=TIMEOUT_MS),
            levels=ALL_LEVELS,
        ),
    ]


def _gates() -> list[Case]:
    """What is looked at before the state."""
    return [
        *(
            case(f"2.1/new-id-v{version}", (init(version=version), (0, "N", 0)), levels=ALL_LEVELS)
            for version in range(7)
        ),
        case("2.1/new-id-with-a-pair", (init((X, 5)), (0, "N", 0)), levels=ALL_LEVELS),
        case("2.1/new-id-then-retry", (init(), (0, "N", 0)), (init((N, 0)), (0, "N", 1)), levels=ALL_LEVELS),
        case("2.1/no-id", (init(tid=None), (0, "N", 0)), (init(tid=None), (0, "M", 0)), levels=ALL_LEVELS),
        case("2.1/no-id-nothing-is-checked", (init(tid=None, timeout_ms=-5), (0, "N", 0)), levels=ALL_LEVELS),
        case(
            "2.1/no-id-nothing-of-v6-is-checked",
            (init(tid=None, version=6, two_phase=True, keep=True), (0, "N", 0)),
            levels=ALL_LEVELS,
        ),
        case("2.1/no-id-with-a-pair", (init((X, 5), tid=None), (0, "N", 0)), levels=ALL_LEVELS),
        case("2.1/empty-id", (init(tid=""), 42), levels=ALL_LEVELS),
        case("2.1/empty-id-before-timeout", (init(tid="", timeout_ms=0), 42), levels=ALL_LEVELS),
        case("2.1/producer-id-alone", (init((X, -1)), 42), levels=ALL_LEVELS),
        case("2.1/epoch-alone", (init((-1, 3)), 42), levels=ALL_LEVELS),
        case("2.1/pair-in-halves-without-id", (init((-1, 3), tid=None), 42), levels=ALL_LEVELS),
        case("2.1/timeout-zero", (init(timeout_ms=0), 50), (describe(), 105), levels=ALL_LEVELS),
        case("2.1/timeout-negative", (init(timeout_ms=-1), 50), levels=ALL_LEVELS),
        case("2.1/timeout-too-long", (init(timeout_ms=900_001), 50), levels=ALL_LEVELS),
        case(
            "2.1/timeout-longest",
            (init(timeout_ms=900_000), (0, "N", 0)),
            (describe(), "Empty N 0 timeout=900000 unstarted []"),
            levels=ALL_LEVELS,
        ),
        case(
            "2.1/two-phase-has-no-timeout",
            (init(timeout_ms=0, two_phase=True, version=6), (0, "N", 0)),
            (describe(), f"Empty N 0 timeout={NEVER_MS} unstarted []"),
            (init(version=6), (0, "N", 1)),
            (describe(), "Empty N 1 unstarted []"),
            levels=ALL_LEVELS,
        ),
        case("2.1/keep-is-not-there", (init(keep=True, version=6), 35), levels=ALL_LEVELS),
        case("2.1/keep-before-timeout", (init(keep=True, version=6, timeout_ms=0), 35), levels=ALL_LEVELS),
        case("2.1/keep-with-two-phase", (init(keep=True, two_phase=True, version=6), 35), levels=ALL_LEVELS),
        case(
            "2.1/keep-before-the-state",
            (init(keep=True, two_phase=True, version=6), 35),
            (describe(), "Ongoing P 7 [shared0]"),
            given=Given(state="ONGOING"),
            levels=ALL_LEVELS,
        ),
        case("2.1/keep-with-empty-id", (init(tid="", keep=True, version=6), 42), levels=ALL_LEVELS),
        case("2.1/fenced-v3", (init((P, 6), version=3), 47), given=Given(state="EMPTY"), levels=ALL_LEVELS),
        case("2.1/fenced-v4", (init((P, 6), version=4), 90), given=Given(state="EMPTY"), levels=ALL_LEVELS),
        case(
            "2.1/timeout-of-the-last-call",
            (init(timeout_ms=5000), (0, "P", 8)),
            (describe(), "Empty P 8 timeout=5000 unstarted []"),
            given=Given(state="EMPTY"),
            levels=ALL_LEVELS,
        ),
    ]


def _after_the_end() -> list[Case]:
    """Notes below the grid, and the consequences in 2.4."""
    ongoing = Given(state="ONGOING")
    return [
        case(
            "2.1/commit-leaves-its-epoch-as-the-last",
            (commit((P, 7)), (0, "P", 8)),
            (init((P, 7)), (0, "P", 8)),
            given=ongoing,
        ),
        case(
            "2.1/old-commit-leaves-its-epoch",
            (commit((P, 7), version=4), 0),
            (init((P, 7)), (0, "P", 8)),
            given=ongoing,
            levels=ALL_LEVELS,
        ),
        case("2.1/loaded-commit-has-no-last-epoch", (init((P, 6)), 90), given=Given(state="COMPLETE_COMMIT")),
        case(
            "2.4/between-fence-and-retry",
            (init(), 51),
            (commit((P, 7)), 48),
            (add((P, 7)), 90),
            (abort((P, 7)), (0, "P", 8)),
            (init(), (0, "P", 9)),
            (abort((P, 7)), 90),
            (abort((P, 8)), 90),
            (commit((P, 8)), 90),
            given=ongoing,
        ),
        case(
            "2.4/after-a-timeout",
            until(describe(), "CompleteAbort P 8 timeout=1 []"),
            (commit((P, 7)), 48),
            (add((P, 7)), 90),
            (abort((P, 7)), (0, "P", 8)),
            (add((P, 8)), 0),
            given=Given(state="ONGOING", timeout_ms=1),
        ),
        case(
            "1.5/timeout",
            until(describe(), "CompleteAbort P 8 timeout=1000 []"),
            (add((P, 7)), 90),
            (commit((P, 7), version=4), 90),
            (abort((P, 7), version=4), 90),
            given=Given(state="ONGOING", timeout_ms=1000, start_age_ms=2000, partitions=SHARED[:2]),
            levels=ALL_LEVELS,
        ),
        case(
            "1.5/timeout-of-the-last-epoch",
            until(describe(), "CompleteAbort N 0 timeout=1000 []"),
            given=Given(state="ONGOING", epoch=EPOCH_MAX, timeout_ms=1000, start_age_ms=2000),
        ),
        case(
            "1.5/two-phase-has-no-timeout",
            (describe(), f"Ongoing P 7 timeout={NEVER_MS} [shared0]"),
            given=Given(state="ONGOING", timeout_ms=NEVER_MS, start_age_ms=30 * 86_400_000),
            levels=ALL_LEVELS,
        ),
    ]


def _expiry() -> list[Case]:
    old = 8 * 86_400_000
    cases = [
        case(
            f"1.5/expired-{_word(state)}",
            until(describe(), 105),
            (add((P, 7)), 49),
            (commit((P, 7)), 49),
            (init((P, 3)), (0, "N", 0)),
            given=Given(state=state, update_age_ms=old, start_age_ms=old),
            levels=ALL_LEVELS,
        )
        for state in AT_REST
    ]
    kept = Given(state="ONGOING", update_age_ms=old)
    return [
        *cases,
        case("1.5/open-is-not-expired", (describe(), "Ongoing P 7 [shared0]"), given=kept, levels=ALL_LEVELS),
    ]


CASES = [
    *(each for state in AT_REST for each in _at_rest(state)),
    *_ongoing(),
    *_fences(),
    *_gates(),
    *_after_the_end(),
    *_expiry(),
]
