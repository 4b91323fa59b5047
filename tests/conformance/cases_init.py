"""InitProducerId: the grid of section 2.1, its gates, fencing (1.2), overflow (1.3)."""

from __future__ import annotations

from spark_2pc_sink.codes import Code
from tests.conformance.cases import (
    CURRENT,
    EMPTY,
    EPOCH_MAX,
    NEVER_MS,
    NEW,
    NEWER,
    OK,
    ONGOING,
    PREVIOUS,
    SHARED,
    TIMEOUT_MS,
    UNKNOWN,
    Case,
    Exchange,
    Given,
    abort,
    add,
    case,
    commit,
    describe,
    granted,
    init,
    until,
    word_of,
)
from tests.conformance.operations import NO_PAIR

AT_REST = ("EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT")
DECIDED = ("PREPARE_COMMIT", "PREPARE_ABORT")


def _at_rest(state: str) -> list[Case]:
    """Rows 'Empty/Complete*' for an epoch that has room, and for one that has not."""
    given, last = Given(state=state), Given(state=state, epoch=EPOCH_MAX)
    before = Given(state=state, previous=PREVIOUS)
    word = word_of(state)
    rows: list[tuple[str, Given, list[Exchange]]] = [
        (f"{word}-no-pair", given, [(init(), granted(CURRENT.at(8))), (init(), granted(CURRENT.at(9)))]),
        (
            f"{word}-current-pair",
            given,
            [(init(CURRENT.at(7)), granted(CURRENT.at(8))), (init(CURRENT.at(8)), granted(CURRENT.at(9)))],
        ),
        (
            f"{word}-last-pair-again",
            given,
            [(init(CURRENT.at(7)), granted(CURRENT.at(8))), (init(CURRENT.at(7)), granted(CURRENT.at(8)))],
        ),
        (
            f"{word}-last-pair-after-no-pair",
            given,
            [(init(), granted(CURRENT.at(8))), (init(CURRENT.at(7)), Code.PRODUCER_FENCED)],
        ),
        (
            f"{word}-stale-epoch",
            given,
            [(init(CURRENT.at(6)), Code.PRODUCER_FENCED), (init(CURRENT.at(7)), granted(CURRENT.at(8)))],
        ),
        (f"{word}-epoch-ahead", given, [(init(CURRENT.at(8)), Code.PRODUCER_FENCED)]),
        (f"{word}-unknown-pair", given, [(init(UNKNOWN.at(7)), Code.PRODUCER_FENCED)]),
        (f"{word}-previous-id-with-room", before, [(init(PREVIOUS.at(7)), Code.PRODUCER_FENCED)]),
        (f"{word}-previous-id-at-its-end", before, [(init(PREVIOUS.at(EPOCH_MAX)), Code.PRODUCER_FENCED)]),
        (
            f"{word}-exhausted-no-pair",
            last,
            [(init(), granted(NEW.at(0))), (init(CURRENT.at(EPOCH_MAX)), Code.PRODUCER_FENCED)],
        ),
        (
            f"{word}-exhausted-current-pair",
            last,
            [
                (init(CURRENT.at(EPOCH_MAX)), granted(NEW.at(0))),
                (init(CURRENT.at(EPOCH_MAX)), granted(NEW.at(0))),
                (init(NEW.at(0)), granted(NEW.at(1))),
            ],
        ),
        (f"{word}-exhausted-stale-epoch", last, [(init(CURRENT.at(5)), Code.UNKNOWN_SERVER_ERROR)]),
        (
            f"{word}-exhausted-last-pair",
            Given(state=state, epoch=EPOCH_MAX - 1),
            [
                (init(CURRENT.at(EPOCH_MAX - 1)), granted(CURRENT.at(EPOCH_MAX))),
                (init(CURRENT.at(EPOCH_MAX - 1)), Code.UNKNOWN_SERVER_ERROR),
            ],
        ),
    ]
    previous = Given(state=state, epoch=EPOCH_MAX, previous=PREVIOUS)
    name = f"2.1/{word}-exhausted-previous-id"
    return [
        *(case(f"2.1/{name}", *steps, given=found) for name, found, steps in rows),
        case(name, (init(PREVIOUS.at(EPOCH_MAX)), granted(NEW.at(0))), given=previous, levels=(1, 2)),
        # The log of level 0 does not hold the id before.
        case(name, (init(PREVIOUS.at(EPOCH_MAX)), Code.PRODUCER_FENCED), given=previous, levels=(0,)),
    ]


def _ongoing() -> list[Case]:
    """Row 'Ongoing': fence, abort, and the second attempt."""
    given = ONGOING
    aborted = "CompleteAbort CURRENT 8 []"
    fenced = [(init(), Code.CONCURRENT_TRANSACTIONS), (describe(), aborted)]
    cases = [
        case("2.1/ongoing-no-pair", *fenced, (init(), granted(CURRENT.at(9))), given=given),
        case(
            "2.1/ongoing-stale-epoch",
            (init(CURRENT.at(6)), Code.CONCURRENT_TRANSACTIONS),
            (describe(), aborted),
            (init(CURRENT.at(6)), Code.PRODUCER_FENCED),
            given=given,
        ),
        case(
            "2.1/ongoing-epoch-ahead",
            (init(CURRENT.at(9)), Code.CONCURRENT_TRANSACTIONS),
            (describe(), aborted),
            given=given,
        ),
        case(
            "2.1/ongoing-unknown-pair",
            (init(UNKNOWN.at(7)), Code.PRODUCER_FENCED),
            (describe(), "Ongoing CURRENT 7 [shared0]"),
            given=given,
        ),
        case(
            "2.1/ongoing-previous-id-at-its-end",
            (init(PREVIOUS.at(EPOCH_MAX)), Code.CONCURRENT_TRANSACTIONS),
            (describe(), aborted),
            given=Given(state="ONGOING", previous=PREVIOUS),
            levels=(1, 2),
        ),
        case(
            "2.1/ongoing-previous-id-with-room",
            (init(PREVIOUS.at(7)), Code.PRODUCER_FENCED),
            given=Given(state="ONGOING", previous=PREVIOUS),
        ),
        case(
            "2.1/ongoing-current-pair-again",
            (init(CURRENT.at(7)), Code.CONCURRENT_TRANSACTIONS),
            (describe(), aborted),
            (init(CURRENT.at(7)), granted(CURRENT.at(8))),
            given=given,
            levels=(2,),
        ),
        case(
            "2.1/ongoing-current-pair-again",
            (init(CURRENT.at(7)), Code.CONCURRENT_TRANSACTIONS),
            (describe(), aborted),
            (init(CURRENT.at(7)), Code.PRODUCER_FENCED),
            given=given,
            levels=(0, 1),
        ),
    ]
    for state in DECIDED:
        pairs = (NO_PAIR, CURRENT.at(7), CURRENT.at(6), UNKNOWN.at(7), PREVIOUS.at(EPOCH_MAX))
        steps = [(init(pair), Code.CONCURRENT_TRANSACTIONS) for pair in pairs]
        stuck = Given(state=state, stuck=True, previous=PREVIOUS)
        cases.append(case(f"2.1/{word_of(state)}-any-pair", *steps, given=stuck))
    return cases


def _fences() -> list[Case]:
    """Fences of the last epochs, and of a transaction without a timeout."""
    return [
        case(
            "1.3/fence-of-the-last-epoch",
            (init(), Code.CONCURRENT_TRANSACTIONS),
            (describe(), "CompleteAbort NEW 0 []"),
            (init(), granted(NEW.at(1))),
            given=Given(state="ONGOING", epoch=EPOCH_MAX),
            levels=(2,),
        ),
        case(
            "1.3/fence-of-the-last-epoch",
            (init(), Code.CONCURRENT_TRANSACTIONS),
            (describe(), "CompleteAbort CURRENT 32767 []"),
            (init(), granted(NEW.at(0))),
            given=Given(state="ONGOING", epoch=EPOCH_MAX),
            levels=(0, 1),
        ),
        case(
            "1.3/fence-of-the-last-but-one-epoch",
            (init(), Code.CONCURRENT_TRANSACTIONS),
            (describe(), f"CompleteAbort CURRENT {EPOCH_MAX} []"),
            (init(), granted(NEW.at(0))),
            given=Given(state="ONGOING", epoch=EPOCH_MAX - 1),
        ),
        case(
            "2.10/force-termination-of-a-two-phase-transaction",
            (init(timeout_ms=30_000), Code.CONCURRENT_TRANSACTIONS),
            (describe(), f"CompleteAbort CURRENT 8 timeout={NEVER_MS} []"),
            (init(timeout_ms=30_000), granted(CURRENT.at(9))),
            (describe(), "Empty CURRENT 9 timeout=30000 unstarted []"),
            given=Given(state="ONGOING", timeout_ms=NEVER_MS, start_age_ms=TIMEOUT_MS),
        ),
    ]


def _gates() -> list[Case]:
    """What is looked at before the state."""
    return [
        *(case(f"2.1/new-id-v{version}", (init(version=version), granted(NEW.at(0)))) for version in (0, 2, 6)),
        case("2.1/new-id-with-a-pair", (init(UNKNOWN.at(5)), granted(NEW.at(0)))),
        case("2.1/no-id", (init(tid=None), granted(NEW.at(0))), (init(tid=None), granted(NEWER.at(0)))),
        case("2.1/no-id-nothing-is-checked", (init(tid=None, timeout_ms=-5), granted(NEW.at(0)))),
        case(
            "2.1/no-id-nothing-of-v6-is-checked",
            (init(tid=None, version=6, two_phase=True, keep=True), granted(NEW.at(0))),
        ),
        case("2.1/no-id-with-a-pair", (init(UNKNOWN.at(5), tid=None), granted(NEW.at(0)))),
        case("2.1/empty-id", (init(tid=""), Code.INVALID_REQUEST)),
        case("2.1/producer-id-alone", (init(UNKNOWN.at(-1)), Code.INVALID_REQUEST)),
        case("2.1/epoch-alone", (init((-1, 3)), Code.INVALID_REQUEST)),
        case("2.1/pair-in-halves-without-id", (init((-1, 3), tid=None), Code.INVALID_REQUEST)),
        case(
            "2.1/timeout-zero",
            (init(timeout_ms=0), Code.INVALID_TRANSACTION_TIMEOUT),
            (describe(), Code.TRANSACTIONAL_ID_NOT_FOUND),
        ),
        case("2.1/timeout-too-long", (init(timeout_ms=900_001), Code.INVALID_TRANSACTION_TIMEOUT)),
        case(
            "2.1/timeout-longest",
            (init(timeout_ms=900_000), granted(NEW.at(0))),
            (describe(), "Empty NEW 0 timeout=900000 unstarted []"),
        ),
        *_gates_of_two_phase_commit(),
        *_gates_by_version(),
    ]


def _gates_of_two_phase_commit() -> list[Case]:
    return [
        case(
            "2.1/two-phase-has-no-timeout",
            (init(timeout_ms=0, two_phase=True, version=6), granted(NEW.at(0))),
            (describe(), f"Empty NEW 0 timeout={NEVER_MS} unstarted []"),
            (init(version=6), granted(NEW.at(1))),
            (describe(), "Empty NEW 1 unstarted []"),
        ),
        case("2.1/keep-is-not-there", (init(keep=True, version=6), Code.UNSUPPORTED_VERSION)),
        case(
            "2.1/keep-before-the-state",
            (init(keep=True, two_phase=True, version=6), Code.UNSUPPORTED_VERSION),
            (describe(), "Ongoing CURRENT 7 [shared0]"),
            given=ONGOING,
        ),
        case("2.1/keep-with-empty-id", (init(tid="", keep=True, version=6), Code.INVALID_REQUEST)),
    ]


def _gates_by_version() -> list[Case]:
    return [
        case("2.1/fenced-v3", (init(CURRENT.at(6), version=3), Code.INVALID_PRODUCER_EPOCH), given=EMPTY),
        case("2.1/fenced-v4", (init(CURRENT.at(6), version=4), Code.PRODUCER_FENCED), given=EMPTY),
        case(
            "2.1/timeout-of-the-last-call",
            (init(timeout_ms=5000), granted(CURRENT.at(8))),
            (describe(), "Empty CURRENT 8 timeout=5000 unstarted []"),
            given=EMPTY,
        ),
    ]


def _after_the_end() -> list[Case]:
    """Notes below the grid, and the consequences in 2.4."""
    return [
        case(
            "2.1/commit-leaves-its-epoch-as-the-last",
            (commit(CURRENT.at(7)), granted(CURRENT.at(8))),
            (init(CURRENT.at(7)), granted(CURRENT.at(8))),
            given=ONGOING,
            levels=(2,),
        ),
        case(
            "2.1/old-commit-leaves-its-epoch",
            (commit(CURRENT.at(7), version=4), OK),
            (init(CURRENT.at(7)), granted(CURRENT.at(8))),
            given=ONGOING,
        ),
        case(
            "2.1/loaded-commit-has-no-last-epoch",
            (init(CURRENT.at(6)), Code.PRODUCER_FENCED),
            given=Given(state="COMPLETE_COMMIT"),
            levels=(2,),
        ),
        case(
            "2.4/between-fence-and-retry",
            (init(), Code.CONCURRENT_TRANSACTIONS),
            (commit(CURRENT.at(7)), Code.INVALID_TXN_STATE),
            (add(CURRENT.at(7)), Code.PRODUCER_FENCED),
            (abort(CURRENT.at(7)), granted(CURRENT.at(8))),
            (init(), granted(CURRENT.at(9))),
            (abort(CURRENT.at(7)), Code.PRODUCER_FENCED),
            (abort(CURRENT.at(8)), Code.PRODUCER_FENCED),
            (commit(CURRENT.at(8)), Code.PRODUCER_FENCED),
            given=ONGOING,
            levels=(2,),
        ),
        case(
            "2.4/after-a-timeout",
            until(describe(), "CompleteAbort CURRENT 8 timeout=1 []"),
            (commit(CURRENT.at(7)), Code.INVALID_TXN_STATE),
            (add(CURRENT.at(7)), Code.PRODUCER_FENCED),
            (abort(CURRENT.at(7)), granted(CURRENT.at(8))),
            (add(CURRENT.at(8)), OK),
            given=Given(state="ONGOING", timeout_ms=1),
            levels=(2,),
        ),
        case(
            "1.5/timeout",
            until(describe(), "CompleteAbort CURRENT 8 timeout=1000 []"),
            (add(CURRENT.at(7)), Code.PRODUCER_FENCED),
            (commit(CURRENT.at(7), version=4), Code.PRODUCER_FENCED),
            (abort(CURRENT.at(7), version=4), Code.PRODUCER_FENCED),
            given=Given(state="ONGOING", timeout_ms=1000, start_age_ms=2000, partitions=SHARED[:2]),
        ),
        case(
            "1.5/timeout-of-the-last-epoch",
            until(describe(), "CompleteAbort NEW 0 timeout=1000 []"),
            given=Given(state="ONGOING", epoch=EPOCH_MAX, timeout_ms=1000, start_age_ms=2000),
            levels=(2,),
        ),
        case(
            "1.5/two-phase-has-no-timeout",
            (describe(), f"Ongoing CURRENT 7 timeout={NEVER_MS} [shared0]"),
            given=Given(state="ONGOING", timeout_ms=NEVER_MS, start_age_ms=30 * 86_400_000),
        ),
    ]


def _expiry() -> list[Case]:
    old = 8 * 86_400_000
    cases = [
        case(
            f"1.5/expired-{word_of(state)}",
            until(describe(), Code.TRANSACTIONAL_ID_NOT_FOUND),
            (add(CURRENT.at(7)), Code.INVALID_PRODUCER_ID_MAPPING),
            (commit(CURRENT.at(7)), Code.INVALID_PRODUCER_ID_MAPPING),
            (init(CURRENT.at(3)), granted(NEW.at(0))),
            given=Given(state=state, update_age_ms=old, start_age_ms=old),
        )
        for state in AT_REST
    ]
    kept = Given(state="ONGOING", update_age_ms=old)
    return [*cases, case("1.5/open-is-not-expired", (describe(), "Ongoing CURRENT 7 [shared0]"), given=kept)]


CASES = [
    *(each for state in AT_REST for each in _at_rest(state)),
    *_ongoing(),
    *_fences(),
    *_gates(),
    *_after_the_end(),
    *_expiry(),
]
