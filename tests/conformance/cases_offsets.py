"""TxnOffsetCommit: section 2.5."""

from __future__ import annotations

from typing import Any

from tests.conformance.cases import (
    ALL_LEVELS,
    NO_TOPIC,
    Case,
    Exchange,
    Given,
    N,
    P,
    X,
    abort,
    add_offsets,
    case,
    commit,
    commit_offset,
    committed_offset,
    describe,
    init,
)

_EMPTY = Given(state="EMPTY")
_LONG = "m" * 5000
_INTERNAL = "[(__consumer_offsets, 0)]"


def _versions() -> list[Case]:
    cases = []
    for version, absent, pending in ((5, None, 51), (4, 120, 51), (3, 48, 51), (0, 48, 51)):
        levels = (1, 2) if version == 5 else ALL_LEVELS
        how: dict[str, Any] = {"version": version}
        word = f"v{version}"
        added = [(commit_offset((P, 7), **how), 0), (describe(), f"Ongoing P 7 {_INTERNAL}")]
        rows: list[tuple[str, Given | None, list[Exchange]]] = [
            ("not-added", _EMPTY, added if absent is None else [(commit_offset((P, 7), **how), absent)]),
            ("added", _EMPTY, [(add_offsets((P, 7)), 0), (commit_offset((P, 7), **how), 0)]),
            ("stale", _EMPTY, [(commit_offset((P, 6), **how), 47)]),
            ("ahead", _EMPTY, [(commit_offset((P, 8), **how), 47)]),
            ("unknown-producer-id", _EMPTY, [(commit_offset((X, 7), **how), 49)]),
            ("unknown-id", None, [(commit_offset((X, 7), **how), 49)]),
            ("decided", Given(state="PREPARE_ABORT", stuck=True), [(commit_offset((P, 7), **how), pending)]),
            (
                "unknown-topic",
                _EMPTY,
                [(add_offsets((P, 7)), 0), (commit_offset((P, 7), partition=NO_TOPIC, **how), 3)],
            ),
            ("no-group", _EMPTY, [(commit_offset((P, 7), group="", **how), 24)]),
            (
                "metadata-too-long",
                _EMPTY,
                [(add_offsets((P, 7)), 0), (commit_offset((P, 7), metadata=_LONG, **how), 12)],
            ),
        ]
        if version >= 3:
            rows += [
                (
                    "unknown-group-with-a-generation",
                    _EMPTY,
                    [(add_offsets((P, 7)), 0), (commit_offset((P, 7), generation=1, **how), 22)],
                ),
                (
                    "unknown-member",
                    _EMPTY,
                    [(add_offsets((P, 7)), 0), (commit_offset((P, 7), generation=1, member="who", **how), 22)],
                ),
                (
                    "unknown-member-without-generation",
                    _EMPTY,
                    [(add_offsets((P, 7)), 0), (commit_offset((P, 7), member="who", **how), 0)],
                ),
            ]
        cases += [case(f"2.5/{word}-{name}", *steps, given=given, levels=levels) for name, given, steps in rows]
    return cases


def _outcomes() -> list[Case]:
    nothing = (0, -1)
    return [
        case(
            "2.5/pending",
            (add_offsets((P, 7)), 0),
            (commit_offset((P, 7), version=4), 0),
            (committed_offset(), nothing),
            (committed_offset(stable=True), (88, -1)),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
        case(
            "2.5/committed",
            (add_offsets((P, 7)), 0),
            (commit_offset((P, 7), version=4), 0),
            (commit((P, 7), version=4), 0),
            (describe(), "CompleteCommit P 7 []"),
            (committed_offset(), (0, 5)),
            (committed_offset(stable=True), (0, 5)),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
        case(
            "2.5/aborted",
            (add_offsets((P, 7)), 0),
            (commit_offset((P, 7), version=4), 0),
            (abort((P, 7), version=4), 0),
            (describe(), "CompleteAbort P 7 []"),
            (committed_offset(stable=True), nothing),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
        case(
            "2.5/last-one-counts",
            (add_offsets((P, 7)), 0),
            (commit_offset((P, 7), 5, version=4), 0),
            (commit_offset((P, 7), 3, version=4), 0),
            (commit((P, 7), version=4), 0),
            (describe(), "CompleteCommit P 7 []"),
            (committed_offset(stable=True), (0, 3)),
            given=_EMPTY,
            levels=ALL_LEVELS,
        ),
        *_outcomes_for_new_clients(),
    ]


def _outcomes_for_new_clients() -> list[Case]:
    """The same with the implicit add."""
    nothing, new = (0, -1), (init(), (0, "N", 0))
    return [
        case(
            "2.5/abort-leaves-what-was",
            new,
            (commit_offset((N, 0), 5), 0),
            (commit((N, 0)), (0, "N", 1)),
            (commit_offset((N, 1), 9), 0),
            (committed_offset(stable=True), (88, -1)),
            (committed_offset(), (0, 5)),
            (abort((N, 1)), (0, "N", 2)),
            (describe(), "CompleteAbort N 2 []"),
            (committed_offset(stable=True), (0, 5)),
            levels=(1, 2),
        ),
        case(
            "2.5/stale-at-the-leader",
            new,
            (commit_offset((N, 0), 5), 0),
            (commit((N, 0)), (0, "N", 1)),
            (describe(), "CompleteCommit N 1 []"),
            (commit_offset((N, 0), 6), 47),
            (commit_offset((N, 0), 6, version=4), 47),
            (commit_offset((N, 0), 6, version=3), 47),
            levels=(1, 2),
        ),
        case(
            "2.5/fenced",
            new,
            (commit_offset((N, 0), 5), 0),
            (init(), 51),
            (commit_offset((N, 0), 6), 47),
            (init(), (0, "N", 2)),
            (committed_offset(stable=True), nothing),
            levels=(1, 2),
        ),
        case("2.5/implicit-add-on-an-old-log", new, (commit_offset((N, 0), 5), 35), levels=(0,)),
    ]


CASES = [*_versions(), *_outcomes()]
