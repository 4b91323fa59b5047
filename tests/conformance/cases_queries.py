"""ListTransactions and DescribeTransactions: sections 2.7 and 2.8."""

from __future__ import annotations

from typing import TypeAlias

from tests.conformance.cases import (
    ALL_LEVELS,
    NEVER_MS,
    OTHER_TID,
    TIMEOUT_MS,
    Case,
    Given,
    N,
    P,
    X,
    add,
    case,
    commit,
    describe,
    init,
    listed,
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
        word = state.lower().replace("_", "-")
        partitions = "[stuck0]" if stuck else "[shared0]" if state == "ONGOING" else "[]"
        started = " unstarted" if state == "EMPTY" else ""
        row: Row = (0, [], [("@T", "P", label)])
        others = tuple(each for each in _LABELS.values() if each != label)
        steps = [
            (describe(), f"{label} P 7{started} {partitions}"),
            (listed(), row),
            (listed(version=0), row),
            (listed(states=(label,)), row),
            (listed(states=others), (0, [], [])),
            (listed(states=(label, "Dead")), row),
            (listed(states=(label, "Nonsense")), (0, ["Nonsense"], [("@T", "P", label)])),
            (listed(producer_ids=(P,)), row),
            (listed(producer_ids=(X, P)), row),
            (listed(producer_ids=(X,)), (0, [], [])),
            (listed(states=(label,), producer_ids=(X,)), (0, [], [])),
            (listed(duration_ms=0), row),
            (listed(duration_ms=_MINUTE_MS // 2, version=1), row),
            (listed(duration_ms=60 * _MINUTE_MS), row if state == "EMPTY" else (0, [], [])),
        ]
        cases.append(case(f"2.7/{word}", *steps, given=given, levels=ALL_LEVELS))
    return cases


def _others() -> list[Case]:
    empty = Given(state="EMPTY")
    nothing: Row = (0, [], [])
    row: Row = (0, [], [("@T", "P", "Empty")])
    return [
        case(
            "2.7/state-nobody-has",
            (listed(states=("Dead",)), nothing),
            (listed(states=("PrepareEpochFence",)), nothing),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "2.7/unknown-states-alone",
            (listed(states=("Nonsense", "empty")), (0, ["Nonsense", "empty"], [])),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "2.7/pattern-must-match-all",
            (listed(pattern="@T"), row),
            (listed(pattern="T"), nothing),
            (listed(pattern=".*T"), row),
            (listed(pattern="case[0-9]*-(T|U)"), row),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "2.7/pattern-none-or-empty",
            (listed(pattern=""), row),
            (listed(pattern=None), row),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "2.7/pattern-that-is-none",
            (listed(pattern="("), (128, [], [])),
            (listed(pattern="a**"), (128, [], [])),
            given=empty,
            levels=ALL_LEVELS,
        ),
        *_other_ids(),
    ]


def _other_ids() -> list[Case]:
    """Patterns that only RE2 refuses, several ids, unknown ids, and what stays after a transaction."""
    empty = Given(state="EMPTY")
    both: Row = (0, [], [("@T", "N", "Empty"), ("@U", "M", "Empty")])
    return [
        case(
            "2.7/pattern-of-re2",
            (listed(pattern="(?=x)"), (128, [], [])),
            (listed(pattern="(a)\\1"), (128, [], [])),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "2.7/several-ids",
            (init(), (0, "N", 0)),
            (init(tid=OTHER_TID), (0, "M", 0)),
            (listed(), both),
            (listed(producer_ids=(N,)), (0, [], both[2][:1])),
            levels=ALL_LEVELS,
        ),
        case("2.8/unknown-id", (describe(), 105), levels=ALL_LEVELS),
        case("2.8/empty-id", (describe(""), 42), levels=ALL_LEVELS),
        case(
            "2.8/two-phase",
            (describe(), f"Ongoing P 7 timeout={NEVER_MS} [shared0]"),
            given=Given(state="ONGOING", timeout_ms=NEVER_MS),
            levels=ALL_LEVELS,
        ),
        case(
            "2.8/start-stays-after-the-end",
            (add((P, 7)), 0),
            (commit((P, 7), version=4), 0),
            (describe(), "CompleteCommit P 7 []"),
            (init(), (0, "P", 8)),
            (describe(), "Empty P 8 unstarted []"),
            given=empty,
            levels=ALL_LEVELS,
        ),
    ]


CASES = [*_states(), *_others()]
