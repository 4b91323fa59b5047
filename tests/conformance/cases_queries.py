"""ListTransactions and DescribeTransactions: sections 2.7 and 2.8."""

from __future__ import annotations

from typing import TypeAlias

from spark_2pc_sink.codes import Code
from tests.conformance.cases import (
    CURRENT,
    EMPTY,
    NEVER_MS,
    NEW,
    NEWER,
    OK,
    OTHER_TID,
    TIMEOUT_MS,
    UNKNOWN,
    Case,
    Given,
    add,
    case,
    commit,
    describe,
    granted,
    init,
    listed,
    word_of,
)

_LABELS = {
    "EMPTY": "Empty",
    "ONGOING": "Ongoing",
    "PREPARE_COMMIT": "PrepareCommit",
    "PREPARE_ABORT": "PrepareAbort",
    "COMPLETE_COMMIT": "CompleteCommit",
    "COMPLETE_ABORT": "CompleteAbort",
}
_MINUTE_MS = 60_000
#: Code, unknown states, rows.
Row: TypeAlias = tuple[int, list[str], list[tuple[str, str, str]]]


def _states() -> list[Case]:
    cases = []
    for state, label in _LABELS.items():
        stuck = state.startswith("PREPARE")
        given = Given(state=state, stuck=stuck, start_age_ms=_MINUTE_MS, timeout_ms=TIMEOUT_MS)
        word = word_of(state)
        partitions = "[stuck0]" if stuck else "[shared0]" if state == "ONGOING" else "[]"
        started = " unstarted" if state == "EMPTY" else ""
        row: Row = (OK, [], [("@T", "CURRENT", label)])
        others = tuple(each for each in _LABELS.values() if each != label)
        steps = [
            (describe(), f"{label} CURRENT 7{started} {partitions}"),
            (listed(), row),
            (listed(version=0), row),
            (listed(states=(label,)), row),
            (listed(states=others), (OK, [], [])),
            (listed(states=(label, "Dead")), row),
            (listed(states=(label, "Nonsense")), (OK, ["Nonsense"], [("@T", "CURRENT", label)])),
            (listed(producer_ids=(CURRENT,)), row),
            (listed(producer_ids=(UNKNOWN, CURRENT)), row),
            (listed(producer_ids=(UNKNOWN,)), (OK, [], [])),
            (listed(states=(label,), producer_ids=(UNKNOWN,)), (OK, [], [])),
            (listed(duration_ms=0), row),
            (listed(duration_ms=_MINUTE_MS // 2, version=1), row),
            (listed(duration_ms=60 * _MINUTE_MS), row if state == "EMPTY" else (OK, [], [])),
        ]
        cases.append(case(f"2.7/{word}", *steps, given=given))
    return cases


def _others() -> list[Case]:
    nothing: Row = (OK, [], [])
    row: Row = (OK, [], [("@T", "CURRENT", "Empty")])
    return [
        case(
            "2.7/state-nobody-has",
            (listed(states=("Dead",)), nothing),
            (listed(states=("PrepareEpochFence",)), nothing),
            given=EMPTY,
        ),
        case(
            "2.7/unknown-states-alone",
            (listed(states=("Nonsense", "empty")), (OK, ["Nonsense", "empty"], [])),
            given=EMPTY,
        ),
        case(
            "2.7/pattern-must-match-all",
            (listed(pattern="@T"), row),
            (listed(pattern="T"), nothing),
            (listed(pattern=".*T"), row),
            (listed(pattern="case[0-9]*-(T|U)"), row),
            given=EMPTY,
        ),
        case("2.7/pattern-none-or-empty", (listed(pattern=""), row), (listed(pattern=None), row), given=EMPTY),
        case(
            "2.7/pattern-that-is-none",
            (listed(pattern="("), (Code.INVALID_REGULAR_EXPRESSION, [], [])),
            (listed(pattern="a**"), (Code.INVALID_REGULAR_EXPRESSION, [], [])),
            given=EMPTY,
        ),
        *_other_ids(),
    ]


def _other_ids() -> list[Case]:
    """Patterns that only RE2 refuses, several ids, unknown ids, and what stays after a transaction."""
    both: Row = (OK, [], [("@T", "NEW", "Empty"), ("@U", "NEWER", "Empty")])
    return [
        case(
            "2.7/pattern-of-re2",
            (listed(pattern="(?=x)"), (Code.INVALID_REGULAR_EXPRESSION, [], [])),
            (listed(pattern="(a)\\1"), (Code.INVALID_REGULAR_EXPRESSION, [], [])),
            given=EMPTY,
        ),
        case(
            "2.7/several-ids",
            (init(), granted(NEW.at(0))),
            (init(tid=OTHER_TID), granted(NEWER.at(0))),
            (listed(), both),
            (listed(producer_ids=(NEW,)), (OK, [], both[2][:1])),
        ),
        case("2.8/unknown-id", (describe(), Code.TRANSACTIONAL_ID_NOT_FOUND)),
        case("2.8/empty-id", (describe(""), Code.INVALID_REQUEST)),
        case(
            "2.8/two-phase",
            (describe(), f"Ongoing CURRENT 7 timeout={NEVER_MS} [shared0]"),
            given=Given(state="ONGOING", timeout_ms=NEVER_MS),
        ),
        case(
            "2.8/start-stays-after-the-end",
            (add(CURRENT.at(7)), OK),
            (commit(CURRENT.at(7), version=4), OK),
            (describe(), "CompleteCommit CURRENT 7 []"),
            (init(), granted(CURRENT.at(8))),
            (describe(), "Empty CURRENT 8 unstarted []"),
            given=EMPTY,
        ),
    ]


CASES = [*_states(), *_others()]
