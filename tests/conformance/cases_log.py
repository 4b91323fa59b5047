"""What the coordinator writes to its log, and what it does with what it finds there: sections 1.2 to 1.4."""

from __future__ import annotations

from spark_2pc_sink.codes import Code
from tests.conformance.cases import (
    ALL_LEVELS,
    BROKEN_EPOCH,
    CURRENT,
    DAY_MS,
    EPOCH_MAX,
    HERE,
    NEVER_MS,
    NEW,
    OK,
    PREVIOUS,
    SHARED,
    Case,
    Exchange,
    Given,
    abort,
    add,
    add_offsets,
    case,
    commit,
    describe,
    granted,
    init,
    latest,
    offset,
    produce,
    read,
    state_records,
    until,
    written,
)

_NEW: Exchange = (init(), granted(NEW.at(0)))


def _lines(level: int, *lines: tuple[str, str]) -> list[str]:
    """Records with their tags, which the log of level 0 has not."""
    return [f"v{min(level, 1)} {text} {tags if level else '{}'}" for text, tags in lines]


def _previous(name: str, rest: str = "") -> str:
    return f"{{previous: {name}{rest}}}"


def _old_clients(level: int) -> list[Case]:
    """Below EndTxn v5 the records say nothing of the client, at any level."""
    empty = ("Empty NEW 0 unstarted None", _previous("NEW"))
    open_ = ("Ongoing NEW 0 [shared0]", _previous("NEW"))
    # The fence of a server at level 2 bumps in the decision itself, at the others before it.
    fenced = ("PrepareAbort NEW 1 [shared0]", _previous("NEW", ", client: 2" if level == 2 else ""))
    after = ("CompleteAbort NEW 1 []", fenced[1])
    cases = [
        case(f"1.4/new-id-{level}", _NEW, (state_records(), _lines(level, empty)), levels=(level,)),
        case(
            f"1.4/add-twice-{level}",
            _NEW,
            (add(NEW.at(0)), OK),
            (add(NEW.at(0)), OK),
            (add(NEW.at(0), SHARED[1]), OK),
            (state_records(), _lines(level, empty, open_, ("Ongoing NEW 0 [shared0, shared1]", _previous("NEW")))),
            levels=(level,),
        ),
        case(
            f"1.4/fence-{level}",
            _NEW,
            (add(NEW.at(0)), OK),
            (init(), Code.CONCURRENT_TRANSACTIONS),
            (describe(), "CompleteAbort NEW 1 []"),
            (init(), granted(NEW.at(2))),
            (state_records(), _lines(level, empty, open_, fenced, after, ("Empty NEW 2 unstarted None", fenced[1]))),
            levels=(level,),
        ),
        case(
            f"1.4/two-phase-{level}",
            (init(two_phase=True, version=6), granted(NEW.at(0))),
            (state_records(), _lines(level, (f"Empty NEW 0 timeout={NEVER_MS} unstarted None", _previous("NEW")))),
            levels=(level,),
        ),
        case(
            f"1.4/offsets-{level}",
            _NEW,
            (add_offsets(NEW.at(0)), OK),
            (state_records(), _lines(level, empty, ("Ongoing NEW 0 [(__consumer_offsets, 0)]", _previous("NEW")))),
            levels=(level,),
        ),
        case(
            f"1.4/no-change-no-record-{level}",
            _NEW,
            (init(NEW.at(5)), Code.PRODUCER_FENCED),
            (add(NEW.at(3)), Code.PRODUCER_FENCED),
            (commit(NEW.at(0), version=4), Code.INVALID_TXN_STATE),
            (abort(NEW.at(0), version=4), Code.INVALID_TXN_STATE),
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
            (f"Prepare{word} NEW 0 [shared0]", _previous("NEW")),
            (f"Complete{word} NEW 0 []", _previous("NEW")),
        ]
        cases.append(
            case(
                f"1.4/old-{word.lower()}-{level}",
                _NEW,
                (add(NEW.at(0)), OK),
                (end(NEW.at(0), version=4), OK),
                (describe(), f"Complete{word} NEW 0 []"),
                (end(NEW.at(0), version=4), OK),
                (state_records(), _lines(level, *lines)),
                levels=(level,),
            )
        )
    return cases


def _new_clients() -> list[Case]:
    tags, both = "{previous: CURRENT, client: 2}", (1, 2)
    rotated = "{previous: CURRENT, next: NEW, client: 2}"
    return [
        case(
            "1.4/new-commit",
            _NEW,
            (produce(NEW.at(0), sequence=0), written(0)),
            (commit(NEW.at(0)), granted(NEW.at(1))),
            (describe(), "CompleteCommit NEW 1 []"),
            (commit(NEW.at(0)), granted(NEW.at(1))),
            (
                state_records(),
                [
                    "v1 Empty NEW 0 unstarted None {previous: NEW}",
                    "v1 Ongoing NEW 0 [here0] {previous: NEW, client: 2}",
                    "v1 PrepareCommit NEW 1 [here0] {previous: NEW, client: 2}",
                    "v1 CompleteCommit NEW 1 [] {previous: NEW, client: 2}",
                ],
            ),
            levels=both,
        ),
        case(
            "1.4/empty-abort",
            _NEW,
            (abort(NEW.at(0)), granted(NEW.at(1))),
            (describe(), "CompleteAbort NEW 1 []"),
            (
                state_records(),
                [
                    "v1 Empty NEW 0 unstarted None {previous: NEW}",
                    "v1 PrepareAbort NEW 1 [] {previous: NEW, client: 2}",
                    "v1 CompleteAbort NEW 1 [] {previous: NEW, client: 2}",
                ],
            ),
            levels=both,
        ),
        case(
            "1.3/overflow-in-the-log",
            (abort(CURRENT.at(EPOCH_MAX)), granted(NEW.at(0))),
            (describe(), "CompleteAbort NEW 0 []"),
            (init(), granted(NEW.at(1))),
            (
                state_records(),
                [
                    f"v1 Ongoing CURRENT {EPOCH_MAX} [shared0] {tags}",
                    f"v1 PrepareAbort CURRENT {BROKEN_EPOCH} [shared0] {rotated}",
                    f"v1 CompleteAbort NEW 0 [] {tags}",
                    "v1 Empty NEW 1 unstarted None {previous: NEW, client: 2}",
                ],
            ),
            given=Given(state="ONGOING", epoch=EPOCH_MAX),
            levels=(2,),
        ),
        *_without_clients(),
    ]


def _without_clients() -> list[Case]:
    """What the coordinator writes of its own accord."""
    return [
        case(
            "1.2/fence-at-level-1-of-a-new-client",
            _NEW,
            (add(NEW.at(0), version=5), OK),
            (init(), Code.CONCURRENT_TRANSACTIONS),
            (describe(), "CompleteAbort NEW 1 []"),
            (
                state_records(),
                [
                    "v1 Empty NEW 0 unstarted None {previous: NEW}",
                    "v1 Ongoing NEW 0 [shared0] {previous: NEW, client: 2}",
                    "v1 PrepareAbort NEW 1 [shared0] {previous: NEW}",
                    "v1 CompleteAbort NEW 1 [] {previous: NEW}",
                ],
            ),
            levels=(1,),
        ),
        case(
            "1.5/timeout-in-the-log",
            until(describe(), "CompleteAbort CURRENT 8 timeout=1000 []"),
            (
                state_records(),
                [
                    "v1 Ongoing CURRENT 7 timeout=1000 [shared0] {previous: CURRENT}",
                    "v1 PrepareAbort CURRENT 8 timeout=1000 [shared0] {previous: CURRENT}",
                    "v1 CompleteAbort CURRENT 8 timeout=1000 [] {previous: CURRENT}",
                ],
            ),
            given=Given(state="ONGOING", timeout_ms=1000, start_age_ms=2000),
            levels=(1,),
        ),
        case(
            "1.5/timeout-in-the-log",
            until(describe(), "CompleteAbort CURRENT 8 timeout=1000 []"),
            (
                state_records(),
                [
                    "v1 Ongoing CURRENT 7 timeout=1000 [shared0] {previous: CURRENT, client: 2}",
                    "v1 PrepareAbort CURRENT 8 timeout=1000 [shared0] {previous: CURRENT, client: 2}",
                    "v1 CompleteAbort CURRENT 8 timeout=1000 [] {previous: CURRENT, client: 2}",
                ],
            ),
            given=Given(state="ONGOING", timeout_ms=1000, start_age_ms=2000),
            levels=(2,),
        ),
        case(
            "1.5/tombstone",
            until(describe(), Code.TRANSACTIONAL_ID_NOT_FOUND),
            (state_records(), ["v1 Empty CURRENT 7 unstarted None {previous: CURRENT, client: 2}", None]),
            given=Given(state="EMPTY", update_age_ms=8 * DAY_MS),
            levels=(2,),
        ),
    ]


def _loaded() -> list[Case]:
    """A decided transaction is driven to its end as soon as it is loaded."""
    cases = []
    for word in ("Commit", "Abort"):
        state = f"PREPARE_{word.upper()}"
        given = Given(state=state, partitions=HERE[:2])
        line = f"CURRENT 7 {word.upper()}/OWN@0"
        cases += [
            case(
                f"1.4/decided-{word.lower()}-is-completed-when-loaded",
                until(describe(), f"Complete{word} CURRENT 7 []"),
                (read("committed"), ("high=1 stable=1 aborted=[]", [line])),
                (latest("committed", HERE[1]), offset(1)),
                (init(), granted(CURRENT.at(8))),
                given=given,
            ),
            case(
                f"1.4/decided-{word.lower()}-without-partitions",
                until(describe(), f"Complete{word} CURRENT 7 []"),
                given=Given(state=state, partitions=()),
            ),
            case(
                f"1.3/decided-{word.lower()}-of-the-last-epoch-is-completed-when-loaded",
                until(describe(), f"Complete{word} PREVIOUS 0 []"),
                (read("committed"), ("high=1 stable=1 aborted=[]", [f"CURRENT {BROKEN_EPOCH} {word.upper()}/OWN@0"])),
                ((commit if word == "Commit" else abort)(CURRENT.at(EPOCH_MAX)), granted(PREVIOUS.at(0))),
                (add(PREVIOUS.at(0)), OK),
                given=Given(state=state, epoch=BROKEN_EPOCH, following=PREVIOUS, partitions=HERE[:1]),
                levels=(2,),
            ),
            case(
                f"1.4/{word.lower()}-again-after-loading",
                ((commit if word == "Commit" else abort)(CURRENT.at(6)), granted(CURRENT.at(7))),
                given=Given(state=f"COMPLETE_{word.upper()}"),
                levels=(1, 2),
            ),
        ]
    return cases


CASES = [*(each for level in ALL_LEVELS for each in _old_clients(level)), *_new_clients(), *_loaded()]
