"""TxnOffsetCommit: section 2.5."""

from __future__ import annotations

from typing import Any

from spark_2pc_sink.codes import Code
from tests.conformance.cases import (
    ALL_LEVELS,
    CURRENT,
    EMPTY,
    NEW,
    NO_TOPIC,
    OK,
    UNKNOWN,
    Case,
    Exchange,
    Given,
    abort,
    add_offsets,
    case,
    commit,
    commit_offset,
    committed_offset,
    describe,
    granted,
    init,
)

_LONG = "m" * 5000
_INTERNAL = "[(__consumer_offsets, 0)]"


#: Version: answer for a group that was not added; none: it is added.
_ABSENT_BY_VERSION: dict[int, Code | None] = {5: None, 4: Code.TRANSACTION_ABORTABLE, 3: Code.INVALID_TXN_STATE}


def _versions() -> list[Case]:
    cases = []
    for version, absent in _ABSENT_BY_VERSION.items():
        levels = (1, 2) if version == 5 else ALL_LEVELS
        how: dict[str, Any] = {"version": version}
        word = f"v{version}"
        added = [(commit_offset(CURRENT.at(7), **how), OK), (describe(), f"Ongoing CURRENT 7 {_INTERNAL}")]
        rows: list[tuple[str, Given | None, list[Exchange]]] = [
            ("not-added", EMPTY, added if absent is None else [(commit_offset(CURRENT.at(7), **how), absent)]),
            ("added", EMPTY, [(add_offsets(CURRENT.at(7)), OK), (commit_offset(CURRENT.at(7), **how), OK)]),
            ("stale", EMPTY, [(commit_offset(CURRENT.at(6), **how), Code.INVALID_PRODUCER_EPOCH)]),
            ("ahead", EMPTY, [(commit_offset(CURRENT.at(8), **how), Code.INVALID_PRODUCER_EPOCH)]),
            ("unknown-producer-id", EMPTY, [(commit_offset(UNKNOWN.at(7), **how), Code.INVALID_PRODUCER_ID_MAPPING)]),
            ("unknown-id", None, [(commit_offset(UNKNOWN.at(7), **how), Code.INVALID_PRODUCER_ID_MAPPING)]),
            (
                "decided",
                Given(state="PREPARE_ABORT", stuck=True),
                [(commit_offset(CURRENT.at(7), **how), Code.CONCURRENT_TRANSACTIONS)],
            ),
            (
                "unknown-topic",
                EMPTY,
                [
                    (add_offsets(CURRENT.at(7)), OK),
                    (commit_offset(CURRENT.at(7), partition=NO_TOPIC, **how), Code.UNKNOWN_TOPIC_OR_PARTITION),
                ],
            ),
            ("no-group", EMPTY, [(commit_offset(CURRENT.at(7), group="", **how), Code.INVALID_GROUP_ID)]),
            (
                "metadata-too-long",
                EMPTY,
                [
                    (add_offsets(CURRENT.at(7)), OK),
                    (commit_offset(CURRENT.at(7), metadata=_LONG, **how), Code.OFFSET_METADATA_TOO_LARGE),
                ],
            ),
        ]
        if version >= 3:
            rows += [
                (
                    "unknown-group-with-a-generation",
                    EMPTY,
                    [
                        (add_offsets(CURRENT.at(7)), OK),
                        (commit_offset(CURRENT.at(7), generation=1, **how), Code.ILLEGAL_GENERATION),
                    ],
                ),
                (
                    "unknown-member",
                    EMPTY,
                    [
                        (add_offsets(CURRENT.at(7)), OK),
                        (commit_offset(CURRENT.at(7), generation=1, member="who", **how), Code.ILLEGAL_GENERATION),
                    ],
                ),
                (
                    "unknown-member-without-generation",
                    EMPTY,
                    [(add_offsets(CURRENT.at(7)), OK), (commit_offset(CURRENT.at(7), member="who", **how), OK)],
                ),
            ]
        cases += [case(f"2.5/{word}-{name}", *steps, given=given, levels=levels) for name, given, steps in rows]
    return cases


def _outcomes() -> list[Case]:
    nothing = (OK, -1)
    return [
        case(
            "2.5/pending",
            (add_offsets(CURRENT.at(7)), OK),
            (commit_offset(CURRENT.at(7), version=4), OK),
            (committed_offset(), nothing),
            (committed_offset(stable=True), (Code.UNSTABLE_OFFSET_COMMIT, -1)),
            given=EMPTY,
        ),
        case(
            "2.5/committed",
            (add_offsets(CURRENT.at(7)), OK),
            (commit_offset(CURRENT.at(7), version=4), OK),
            (commit(CURRENT.at(7), version=4), OK),
            (describe(), "CompleteCommit CURRENT 7 []"),
            (committed_offset(), (OK, 5)),
            (committed_offset(stable=True), (OK, 5)),
            given=EMPTY,
        ),
        case(
            "2.5/aborted",
            (add_offsets(CURRENT.at(7)), OK),
            (commit_offset(CURRENT.at(7), version=4), OK),
            (abort(CURRENT.at(7), version=4), OK),
            (describe(), "CompleteAbort CURRENT 7 []"),
            (committed_offset(stable=True), nothing),
            given=EMPTY,
        ),
        *_outcomes_for_new_clients(),
    ]


def _outcomes_for_new_clients() -> list[Case]:
    """The same with the implicit add."""
    nothing, new = (OK, -1), (init(), granted(NEW.at(0)))
    return [
        case(
            "2.5/abort-leaves-what-was",
            new,
            (commit_offset(NEW.at(0), offset=5), OK),
            (commit(NEW.at(0)), granted(NEW.at(1))),
            (commit_offset(NEW.at(1), offset=9), OK),
            (committed_offset(stable=True), (Code.UNSTABLE_OFFSET_COMMIT, -1)),
            (committed_offset(), (OK, 5)),
            (abort(NEW.at(1)), granted(NEW.at(2))),
            (describe(), "CompleteAbort NEW 2 []"),
            (committed_offset(stable=True), (OK, 5)),
            levels=(1, 2),
        ),
        case(
            "2.5/stale-at-the-leader",
            new,
            (commit_offset(NEW.at(0), offset=5), OK),
            (commit(NEW.at(0)), granted(NEW.at(1))),
            (describe(), "CompleteCommit NEW 1 []"),
            (commit_offset(NEW.at(0), offset=6), Code.INVALID_PRODUCER_EPOCH),
            (commit_offset(NEW.at(0), offset=6, version=4), Code.INVALID_PRODUCER_EPOCH),
            (commit_offset(NEW.at(0), offset=6, version=3), Code.INVALID_PRODUCER_EPOCH),
            levels=(1, 2),
        ),
        case(
            "2.5/fenced",
            new,
            (commit_offset(NEW.at(0), offset=5), OK),
            (init(), Code.CONCURRENT_TRANSACTIONS),
            (commit_offset(NEW.at(0), offset=6), Code.INVALID_PRODUCER_EPOCH),
            (init(), granted(NEW.at(2))),
            (committed_offset(stable=True), nothing),
            levels=(1, 2),
        ),
        case(
            "2.5/implicit-add-on-an-old-log",
            new,
            (commit_offset(NEW.at(0), offset=5), Code.UNSUPPORTED_VERSION),
            levels=(0,),
        ),
    ]


CASES = [*_versions(), *_outcomes()]
