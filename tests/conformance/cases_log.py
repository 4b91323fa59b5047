"""What the coordinator writes to its log, and what it does with what it finds there: sections 1.2 to 1.4."""

from __future__ import annotations

from tests.conformance.cases import (
    ALL_LEVELS,
    BROKEN_EPOCH,
    DAY_MS,
    EPOCH_MAX,
    HERE,
    NEVER_MS,
    SHARED,
    Case,
    Exchange,
    Given,
    N,
    P,
    Q,
    abort,
    add,
    add_offsets,
    case,
    commit,
    describe,
    init,
    latest,
    produce,
    read,
    state_records,
    until,
)

_NEW: Exchange = (init(), (0, "N", 0))


def _lines(level: int, *lines: tuple[str, str]) -> list[str]:
    """Records with their tags, which the log of level 0 has not."""
    return [f"v{min(level, 1)} {text} {tags if level else '{}'}" for text, tags in lines]


def _previous(name: str, rest: str = "") -> str:
    return f"{{previous: {name}{rest}}}"


def _old_clients(level: int) -> list[Case]:
    """Below EndTxn v5 the records say nothing of the client, at any level."""
    empty = ("Empty N 0 unstarted None", _previous("N"))
    open_ = ("Ongoing N 0 [shared0]", _previous("N"))
    # The fence of a server at level 2 bumps in the decision itself, at the others before it.
    fenced = ("PrepareAbort N 1 [shared0]", _previous("N", ", client: 2" if level == 2 else ""))
    after = ("CompleteAbort N 1 []", fenced[1])
    cases = [
        case(f"1.4/new-id-{level}", _NEW, (state_records(), _lines(level, empty)), levels=(level,)),
        case(
            f"1.4/add-twice-{level}",
            _NEW,
            (add((N, 0)), 0),
            (add((N, 0)), 0),
            (add((N, 0), SHARED[1]), 0),
            (
                state_records(),
                _lines(level, empty, open_, ("Ongoing N 0 [shared0, shared1]", _previous("N"))),
            ),
            levels=(level,),
        ),
        case(
            f"1.4/fence-{level}",
            _NEW,
            (add((N, 0)), 0),
            (init(), 51),
            (describe(), "CompleteAbort N 1 []"),
            (init(), (0, "N", 2)),
            (state_records(), _lines(level, empty, open_, fenced, after, ("Empty N 2 unstarted None", fenced[1]))),
            levels=(level,),
        ),
        case(
            f"1.4/two-phase-{level}",
            (init(two_phase=True, version=6), (0, "N", 0)),
            (state_records(), _lines(level, (f"Empty N 0 timeout={NEVER_MS} unstarted None", _previous("N")))),
            levels=(level,),
        ),
        case(
            f"1.4/offsets-{level}",
            _NEW,
            (add_offsets((N, 0)), 0),
            (state_records(), _lines(level, empty, ("Ongoing N 0 [(__consumer_offsets, 0)]", _previous("N")))),
            levels=(level,),
        ),
        case(
            f"1.4/no-change-no-record-{level}",
            _NEW,
            (init((N, 5)), 90),
            (add((N, 3)), 90),
            (commit((N, 0), version=4), 48),
            (abort((N, 0), version=4), 48),
            (state_records(), _lines(level, empty)),
            levels=(level,),
        ),
    ]
    return [*cases, *_old_ends(level, empty, open_)]


def _old_ends(level: int, empty: tuple[str, str], open_: tuple[str, str]) -> list[Case]:
    cases = []
    for end, word in ((commit, "Commit"), (abort, "Abort")):
        lines = [
            empty,
            open_,
            (f"Prepare{word} N 0 [shared0]", _previous("N")),
            (f"Complete{word} N 0 []", _previous("N")),
        ]
        cases.append(
            case(
                f"1.4/old-{word.lower()}-{level}",
                _NEW,
                (add((N, 0)), 0),
                (end((N, 0), version=4), 0),
                (describe(), f"Complete{word} N 0 []"),
                (end((N, 0), version=4), 0),
                (state_records(), _lines(level, *lines)),
                levels=(level,),
            )
        )
    return cases


def _new_clients() -> list[Case]:
    tags, both = "{previous: P, client: 2}", (1, 2)
    rotated = "{previous: P, next: N, client: 2}"
    return [
        case(
            "1.4/new-commit",
            _NEW,
            (produce((N, 0), 0), (0, 0)),
            (commit((N, 0)), (0, "N", 1)),
            (describe(), "CompleteCommit N 1 []"),
            (commit((N, 0)), (0, "N", 1)),
            (
                state_records(),
                [
                    "v1 Empty N 0 unstarted None {previous: N}",
                    "v1 Ongoing N 0 [here0] {previous: N, client: 2}",
                    "v1 PrepareCommit N 1 [here0] {previous: N, client: 2}",
                    "v1 CompleteCommit N 1 [] {previous: N, client: 2}",
                ],
            ),
            levels=both,
        ),
        case(
            "1.4/empty-abort",
            _NEW,
            (abort((N, 0)), (0, "N", 1)),
            (describe(), "CompleteAbort N 1 []"),
            (
                state_records(),
                [
                    "v1 Empty N 0 unstarted None {previous: N}",
                    "v1 PrepareAbort N 1 [] {previous: N, client: 2}",
                    "v1 CompleteAbort N 1 [] {previous: N, client: 2}",
                ],
            ),
            levels=both,
        ),
        case(
            "1.3/overflow-in-the-log",
            (abort((P, EPOCH_MAX)), (0, "N", 0)),
            (describe(), "CompleteAbort N 0 []"),
            (init(), (0, "N", 1)),
            (
                state_records(),
                [
                    f"v1 Ongoing P {EPOCH_MAX} [shared0] {tags}",
                    f"v1 PrepareAbort P {BROKEN_EPOCH} [shared0] {rotated}",
                    f"v1 CompleteAbort N 0 [] {tags}",
                    "v1 Empty N 1 unstarted None {previous: N, client: 2}",
                ],
            ),
            given=Given(state="ONGOING", epoch=EPOCH_MAX),
        ),
        *_without_clients(),
    ]


def _without_clients() -> list[Case]:
    """What the coordinator writes of its own accord."""
    return [
        case(
            "1.2/fence-at-level-1-of-a-new-client",
            _NEW,
            (add((N, 0), version=5), 0),
            (init(), 51),
            (describe(), "CompleteAbort N 1 []"),
            (
                state_records(),
                [
                    "v1 Empty N 0 unstarted None {previous: N}",
                    "v1 Ongoing N 0 [shared0] {previous: N, client: 2}",
                    "v1 PrepareAbort N 1 [shared0] {previous: N}",
                    "v1 CompleteAbort N 1 [] {previous: N}",
                ],
            ),
            levels=(1,),
        ),
        case(
            "1.5/timeout-in-the-log",
            until(describe(), "CompleteAbort P 8 timeout=1000 []"),
            (
                state_records(),
                [
                    "v1 Ongoing P 7 timeout=1000 [shared0] {previous: P}",
                    "v1 PrepareAbort P 8 timeout=1000 [shared0] {previous: P}",
                    "v1 CompleteAbort P 8 timeout=1000 [] {previous: P}",
                ],
            ),
            given=Given(state="ONGOING", timeout_ms=1000, start_age_ms=2000),
            levels=(1,),
        ),
        case(
            "1.5/timeout-in-the-log",
            until(describe(), "CompleteAbort P 8 timeout=1000 []"),
            (
                state_records(),
                [
                    "v1 Ongoing P 7 timeout=1000 [shared0] {previous: P, client: 2}",
                    "v1 PrepareAbort P 8 timeout=1000 [shared0] {previous: P, client: 2}",
                    "v1 CompleteAbort P 8 timeout=1000 [] {previous: P, client: 2}",
                ],
            ),
            given=Given(state="ONGOING", timeout_ms=1000, start_age_ms=2000),
        ),
        case(
            "1.5/tombstone",
            until(describe(), 105),
            (state_records(), ["v1 Empty P 7 unstarted None {previous: P, client: 2}", None]),
            given=Given(state="EMPTY", update_age_ms=8 * DAY_MS),
        ),
    ]


def _loaded() -> list[Case]:
    """A decided transaction is driven to its end as soon as it is loaded."""
    cases = []
    for word in ("Commit", "Abort"):
        state = f"PREPARE_{word.upper()}"
        given = Given(state=state, partitions=HERE[:2])
        line = f"P 7 {word.upper()}/C@0"
        cases += [
            case(
                f"1.4/decided-{word.lower()}-is-completed-when-loaded",
                until(describe(), f"Complete{word} P 7 []"),
                (read("committed"), ("high=1 stable=1 aborted=[]", [line])),
                (latest("committed", HERE[1]), (0, 1)),
                (init(), (0, "P", 8)),
                given=given,
                levels=ALL_LEVELS,
            ),
            case(
                f"1.4/decided-{word.lower()}-without-partitions",
                until(describe(), f"Complete{word} P 7 []"),
                given=Given(state=state, partitions=()),
                levels=ALL_LEVELS,
            ),
            case(
                f"1.3/decided-{word.lower()}-of-the-last-epoch-is-completed-when-loaded",
                until(describe(), f"Complete{word} Q 0 []"),
                (read("committed"), ("high=1 stable=1 aborted=[]", [f"P {BROKEN_EPOCH} {word.upper()}/C@0"])),
                ((commit if word == "Commit" else abort)((P, EPOCH_MAX)), (0, "Q", 0)),
                (add((Q, 0)), 0),
                given=Given(state=state, epoch=BROKEN_EPOCH, following=Q, partitions=HERE[:1]),
            ),
            case(
                f"1.4/{word.lower()}-again-after-loading",
                ((commit if word == "Commit" else abort)((P, 6)), (0, "P", 7)),
                given=Given(state=f"COMPLETE_{word.upper()}"),
                levels=(1, 2),
            ),
        ]
    return cases


CASES = [*(each for level in ALL_LEVELS for each in _old_clients(level)), *_new_clients(), *_loaded()]
