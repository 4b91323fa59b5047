"""Produce: what the leader asks the coordinator, and what it checks itself; sections 3.1 to 3.3."""

from __future__ import annotations

from typing import Any

from tests.conformance.batches import batch
from tests.conformance.cases import (
    ALL_LEVELS,
    COMPACTED,
    HERE,
    NO_TOPIC,
    Case,
    Exchange,
    Given,
    N,
    P,
    X,
    abort,
    add,
    case,
    commit,
    describe,
    idempotent,
    init,
    latest,
    produce,
    produce_all,
    producers,
)
from tests.conformance.leader_operations import DeleteRecords, Write

#: Versions of Produce by what they make the leader do: add, verify, verify for old clients.
ADDING, VERIFYING, OLD = 12, 11, 9
SEQUENCE_MAX = 2_147_483_647
_NEW = (init(), (0, "N", 0))
KEYLESS = (87, (0, "Compacted topic cannot accept message without key in topic partition compacted-0"))


def _front_door() -> list[Case]:
    """3.1 for transactions. Most faults of a batch are found when it is appended: after the coordinator was asked."""
    one: dict[str, Any] = {"partition": HERE[0], "pair": (N, 0), "sequence": 0}
    batch([b"x"], now_ms=0, producer=(5, 0), sequence=0) + batch([b"x"], now_ms=0, producer=(5, 0), sequence=1)
    batch([b"x"], now_ms=0)
    return [
        case(
            "3.1/transactional-without-id",
            _NEW,
            (produce_all(Write(**one), tid=None), 53),
            (produce_all(Write(**one, broken=True), tid=None), 53),
            (produce_all(Write(**one), tid=None, version=9), 53),
            levels=ALL_LEVELS,
        ),
        # The coordinator is asked before the batch is looked at.
        case(
            "3.1/control-batch",
            _NEW,
            (produce((N, 0), 0, control=True), 87),
            (produce((N, 0), -1, control=True), 87),
            (describe(), "Ongoing N 0 [here0]"),
            levels=(1, 2),
        ),
        case(
            "3.1/broken-checksum-in-a-transaction",
            _NEW,
            (produce((N, 0), 0, broken=True), 2),
            (describe(), "Ongoing N 0 [here0]"),
            (producers(), []),
            (produce((N, 0), 0), (0, 0)),
            levels=(1, 2),
        ),
        case(
            "3.1/broken-checksum-after-the-coordinator",
            _NEW,
            (produce((N, 0), 0, broken=True, version=OLD), 48),
            (produce((N, 1), 0, broken=True, version=OLD), 47),
            levels=ALL_LEVELS,
        ),
        case(
            "3.1/negative-sequence-after-the-coordinator",
            _NEW,
            (produce((N, 0), -1, version=OLD), 48),
            (add((N, 0), HERE[0]), 0),
            (produce((N, 0), -1, version=OLD), 87),
            levels=ALL_LEVELS,
        ),
        case(
            "3.1/negative-epoch",
            _NEW,
            (produce((N, -1), 0, version=OLD), 47),
            # Taken for a producer without an epoch, whose sequences nobody counts.
            (idempotent((P, -1), 0), (0, 0)),
            (idempotent((P, -1), 2), (0, 1)),
            (idempotent((P, 0), 5), (0, 2)),
            (idempotent((P, 0), 7), 45),
            (idempotent((P, -1), 3), 47),
            levels=ALL_LEVELS,
        ),
        *_front_door_of_plain_batches(),
        *_front_door_of_compacted_topics(),
    ]


def _front_door_of_plain_batches() -> list[Case]:
    """3.1 without transactions, and with more than one producer."""
    one: dict[str, Any] = {"partition": HERE[0], "pair": (N, 0), "sequence": 0}
    two = batch([b"x"], now_ms=0, producer=(5, 0), sequence=0) + batch([b"x"], now_ms=0, producer=(5, 0), sequence=1)
    plain = batch([b"x"], now_ms=0)
    return [
        case(
            "3.1/control-batch-after-the-coordinator",
            _NEW,
            (produce((N, 0), 0, control=True, version=OLD), 48),
            (add((N, 0), HERE[0]), 0),
            (produce((N, 0), 0, control=True, version=OLD), 87),
            levels=ALL_LEVELS,
        ),
        case("3.1/negative-sequence", (idempotent((P, 0), -1), 87), levels=ALL_LEVELS),
        case(
            "3.1/two-batches",
            (produce_all(Write(partition=HERE[0], records=two, transactional=False), tid=None), 87),
            levels=ALL_LEVELS,
        ),
        case(
            "3.1/broken-checksum",
            (produce_all(Write(partition=HERE[0], records=plain[:-1] + b"?", transactional=False), tid=None), 2),
            levels=ALL_LEVELS,
        ),
        case(
            "3.1/two-pairs",
            _NEW,
            (produce_all(Write(**one), Write(partition=HERE[1], pair=(N, 1), sequence=0)), 49),
            (describe(), "Empty N 0 unstarted []"),
            levels=ALL_LEVELS,
        ),
        case(
            "3.1/two-ids",
            _NEW,
            (produce_all(Write(**one), Write(partition=HERE[1], pair=(X, 0), sequence=0)), 49),
            levels=ALL_LEVELS,
        ),
        case("3.1/unknown-topic", _NEW, (produce((N, 0), 0, partition=NO_TOPIC, version=OLD), 3), levels=ALL_LEVELS),
        case(
            "3.1/no-producer-id",
            (idempotent((-1, -1), -1), (0, 0)),
            (idempotent((-1, -1), -1, count=3), (0, 1)),
            (producers(), []),
            levels=ALL_LEVELS,
        ),
        case(
            "3.1/plain-batch-with-an-id",
            _NEW,
            (produce_all(Write(partition=HERE[0], transactional=False)), (0, 0)),
            (describe(), "Empty N 0 unstarted []"),
            levels=ALL_LEVELS,
        ),
    ]


def _front_door_of_compacted_topics() -> list[Case]:
    """3.1 where every record needs a key."""
    plain = batch([b"x"], now_ms=0)
    return [
        case(
            "3.1/compacted-without-a-key",
            (produce_all(Write(partition=COMPACTED, records=plain, transactional=False), tid=None), KEYLESS),
            (idempotent((P, 0), 5, partition=COMPACTED), KEYLESS),
            (idempotent((P, -1), 5, partition=COMPACTED), KEYLESS),
            (DeleteRecords(partition=COMPACTED, offset=-1), (44, -1)),
            (DeleteRecords(partition=COMPACTED, offset=9), (44, -1)),
            levels=ALL_LEVELS,
        ),
        # The coordinator is asked before the batch is looked at.
        case(
            "3.1/compacted-without-a-key-in-a-transaction",
            _NEW,
            (produce((N, 0), 0, partition=COMPACTED), KEYLESS),
            (describe(), "Ongoing N 0 [compacted0]"),
            (abort((N, 0)), (0, "N", 1)),
        ),
    ]


def _asked() -> list[Case]:
    """3.2: the answer of the coordinator, as each version of Produce passes it on."""
    cases = []
    for version, absent, pending in ((ADDING, None, 51), (VERIFYING, 120, 19), (OLD, 48, 19), (10, 48, 19)):
        # At level 0 the log cannot hold what an adding client does.
        levels = (1, 2) if version == ADDING else ALL_LEVELS
        empty, word = Given(state="EMPTY"), f"v{version}"
        rows: list[tuple[str, Given | None, list[Exchange]]] = [
            ("stale", Given(state="EMPTY"), [(produce((P, 6), 0, version=version), 47)]),
            ("ahead", Given(state="EMPTY"), [(produce((P, 8), 0, version=version), 47)]),
            ("unknown-producer-id", empty, [(produce((X, 7), 0, version=version), 49)]),
            ("unknown-id", None, [(produce((X, 7), 0, version=version), 49)]),
        ]
        rows += [
            (
                f"decided-{state[8:].lower()}",
                Given(state=state, stuck=True),
                [(produce((P, 7), 0, version=version), pending)],
            )
            for state in ("PREPARE_COMMIT", "PREPARE_ABORT")
        ]
        for state in ("EMPTY", "ONGOING", "COMPLETE_COMMIT", "COMPLETE_ABORT"):
            name = f"not-added-{state.lower().replace('_', '-')}"
            held = "here0, shared0" if state == "ONGOING" else "here0"
            added = [(produce((P, 7), 0, version=version), (0, 0)), (describe(), f"Ongoing P 7 [{held}]")]
            refused = [(produce((P, 7), 0, version=version), absent), (latest("uncommitted"), (0, 0))]
            rows.append((name, Given(state=state), added if absent is None else refused))
        rows.append(
            (
                "added",
                empty,
                [
                    (add((P, 7), HERE[0]), 0),
                    (produce((P, 7), 0, version=version), (0, 0)),
                    (producers(), ["P 7 sequence=0 coordinator=-1 open=0"]),
                ],
            )
        )
        both = [Write(partition=place, pair=(P, 7), sequence=0) for place in HERE[:2]]
        mixed = {"here0": (0, 0), "here1": (0, 0)} if absent is None else {"here0": (0, 0), "here1": absent}
        same = (0, 0) if absent is None else mixed
        rows.append(
            ("one-of-two-added", empty, [(add((P, 7), HERE[0]), 0), (produce_all(*both, version=version), same)])
        )
        cases += [case(f"3.2/{word}-{name}", *steps, given=given, levels=levels) for name, given, steps in rows]
        cases.append(_passed_by(version))
    return cases


def _passed_by(version: int) -> Case:
    """An older epoch than the leader knows is refused without a question, and the same epoch is not asked for twice."""
    return case(
        f"3.2/v{version}-known-to-the-leader",
        _NEW,
        (add((N, 0), HERE[0]), 0),
        (produce((N, 0), 0, version=version), (0, 0)),
        (produce((N, 0), 1, version=version), (0, 1)),
        (abort((N, 0)), (0, "N", 1)),
        (produce((N, 0), 2, version=version), 47),
        (produce((N, 0), 0, version=version), 47),
        levels=(1, 2),
    )


def _implicit() -> list[Case]:
    both = [Write(partition=place, pair=(N, 0), sequence=0) for place in (HERE[0], NO_TOPIC)]
    return [
        case(
            "3.2/implicit-add-to-open",
            _NEW,
            (produce((N, 0), 0), (0, 0)),
            (produce((N, 0), 0, partition=HERE[1]), (0, 0)),
            (describe(), "Ongoing N 0 [here0, here1]"),
            levels=(1, 2),
        ),
        case(
            "3.2/unknown-topic-beside-a-known-one",
            _NEW,
            (produce_all(*both), {"here0": (0, 0), NO_TOPIC: 3}),
            (describe(), "Ongoing N 0 [here0]"),
            levels=(1, 2),
        ),
        case(
            "3.2/implicit-add-after-the-end",
            _NEW,
            (produce((N, 0), 0), (0, 0)),
            (commit((N, 0)), (0, "N", 1)),
            (produce((N, 1), 0), (0, 2)),
            (describe(), "Ongoing N 1 [here0]"),
            levels=(1, 2),
        ),
        case("3.2/implicit-add-on-an-old-log", _NEW, (produce((N, 0), 0), 35), levels=(0,)),
        case(
            "3.2/fenced-by-a-second-producer",
            _NEW,
            (produce((N, 0), 0), (0, 0)),
            (init(), 51),
            (produce((N, 0), 1), 47),
            (init(), (0, "N", 2)),
            (produce((N, 0), 1), 47),
            (produce((N, 1), 0), 47),
            (produce((N, 2), 0), (0, 2)),
            levels=(1, 2),
        ),
    ]


def _idempotent_sequences() -> list[Case]:
    """3.3 for producers without transactions."""
    five = [(idempotent((P, 0), each), (0, each)) for each in range(6)]
    return [
        case(
            "3.3/duplicate",
            (idempotent((P, 0), 0, count=2), (0, 0)),
            (idempotent((P, 0), 2), (0, 2)),
            (idempotent((P, 0), 0, count=2), (0, 0, "again")),
            (latest("uncommitted"), (0, 3)),
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/duplicate-of-the-fifth-last",
            *five,
            (idempotent((P, 0), 1), (0, 1, "again")),
            (idempotent((P, 0), 5), (0, 5, "again")),
            levels=ALL_LEVELS,
        ),
        case("3.3/duplicate-of-the-sixth-last", *five, (idempotent((P, 0), 0), 45), levels=ALL_LEVELS),
        case(
            "3.3/overlap",
            (idempotent((P, 0), 0, count=3), (0, 0)),
            (idempotent((P, 0), 1, count=2), 45),
            (idempotent((P, 0), 2, count=3), 45),
            (idempotent((P, 0), 0, count=4), 45),
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/gap",
            (idempotent((P, 0), 0), (0, 0)),
            (idempotent((P, 0), 2), 45),
            (idempotent((P, 0), 1), (0, 1)),
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/any-first-sequence",
            (idempotent((P, 3), 17), (0, 0)),
            (idempotent((P, 3), 18), (0, 1)),
            (producers(), ["P 3 sequence=18 coordinator=-1 open=-1"]),
            levels=ALL_LEVELS,
        ),
        *_idempotent_epochs(),
    ]


def _idempotent_epochs() -> list[Case]:
    """Epochs, and sequences that begin again."""
    [(idempotent((P, 0), each), (0, each)) for each in range(6)]
    return [
        case(
            "3.3/older-epoch",
            (idempotent((P, 3), 0), (0, 0)),
            (idempotent((P, 2), 0), 47),
            (idempotent((P, 2), 1), 47),
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/newer-epoch-from-zero",
            (idempotent((P, 3), 0), (0, 0)),
            (idempotent((P, 4), 0), (0, 1)),
            (idempotent((P, 4), 1), (0, 2)),
            (producers(), ["P 4 sequence=1 coordinator=-1 open=-1"]),
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/newer-epoch-not-from-zero",
            (idempotent((P, 3), 0), (0, 0)),
            (idempotent((P, 4), 1), 45),
            (idempotent((P, 3), 1), (0, 1)),
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/sequences-begin-again",
            (idempotent((P, 0), SEQUENCE_MAX), (0, 0)),
            (idempotent((P, 0), 0), (0, 1)),
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/sequences-begin-again-in-a-batch",
            (idempotent((P, 0), SEQUENCE_MAX, count=2), (0, 0)),
            (idempotent((P, 0), 1), (0, 2)),
            (producers(), ["P 0 sequence=1 coordinator=-1 open=-1"]),
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/zero-only-after-the-last",
            (idempotent((P, 0), SEQUENCE_MAX - 1), (0, 0)),
            (idempotent((P, 0), 0), 45),
            (idempotent((P, 0), SEQUENCE_MAX), (0, 1)),
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/highest-epoch", (idempotent((P, 32767), 0), (0, 0)), (idempotent((P, 32766), 0), 47), levels=ALL_LEVELS
        ),
    ]


def _transactional_sequences() -> list[Case]:
    """3.3 for transactions."""
    old: dict[str, Any] = {"version": VERIFYING}
    opened = [(add((P, 7), HERE[0]), 0), (produce((P, 7), 0, **old), (0, 0))]
    empty = Given(state="EMPTY")
    return [
        case(
            "3.3/new-client-begins-at-zero",
            _NEW,
            (produce((N, 0), 1), 45),
            (describe(), "Ongoing N 0 [here0]"),
            (produce((N, 0), 0), (0, 0)),
            levels=(1, 2),
        ),
        case(
            "3.3/new-client-begins-at-zero-each-time",
            _NEW,
            (produce((N, 0), 0), (0, 0)),
            (abort((N, 0)), (0, "N", 1)),
            (produce((N, 1), 1), 45),
            (produce((N, 1), 0), (0, 2)),
            levels=(1, 2),
        ),
        case(
            "3.3/old-client-begins-anywhere",
            (add((P, 7), HERE[0]), 0),
            (produce((P, 7), 5, **old), (0, 0)),
            (produce((P, 7), 6, **old), (0, 1)),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/first-attempt-bounds-the-first-sequence",
            (produce((P, 7), 5, **old), 120),
            (add((P, 7), HERE[0]), 0),
            (produce((P, 7), 6, **old), 45),
            (produce((P, 7), 5, **old), (0, 0)),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/first-attempt-bounds-from-above-only",
            (produce((P, 7), 5, **old), 120),
            (add((P, 7), HERE[0]), 0),
            (produce((P, 7), 4, **old), (0, 0)),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/duplicate-in-a-transaction",
            *opened,
            (produce((P, 7), 1, count=2, **old), (0, 1)),
            (produce((P, 7), 1, count=2, **old), (0, 1, "again")),
            (produce((P, 7), 0, **old), (0, 0, "again")),
            (latest("uncommitted"), (0, 3)),
            given=empty,
            levels=ALL_LEVELS,
        ),
        *_sequences_across_transactions(),
    ]


def _sequences_across_transactions() -> list[Case]:
    """Gaps, and what is left of a transaction when the next one comes."""
    old: dict[str, Any] = {"version": VERIFYING}
    opened = [(add((P, 7), HERE[0]), 0), (produce((P, 7), 0, **old), (0, 0))]
    empty = Given(state="EMPTY")
    return [
        case("3.3/gap-in-a-transaction", *opened, (produce((P, 7), 2, **old), 45), given=empty, levels=ALL_LEVELS),
        case(
            "3.3/old-client-goes-on-counting",
            *opened,
            (commit((P, 7), version=4), 0),
            (add((P, 7), HERE[0]), 0),
            (produce((P, 7), 2, **old), 45),
            (produce((P, 7), 1, **old), (0, 2)),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/duplicate-of-the-transaction-before",
            *opened,
            (commit((P, 7), version=4), 0),
            (add((P, 7), HERE[0]), 0),
            (produce((P, 7), 0, **old), (0, 0, "again")),
            (producers(), ["P 7 sequence=0 coordinator=C open=-1"]),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/plain-batch-in-a-transaction",
            *opened,
            (idempotent((P, 7), 1), 48),
            (commit((P, 7), version=4), 0),
            (describe(), "CompleteCommit P 7 []"),
            (idempotent((P, 7), 1), (0, 2)),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/newer-epoch-in-an-open-transaction",
            *opened,
            (idempotent((P, 8), 0), 48),
            given=empty,
            levels=ALL_LEVELS,
        ),
        case(
            "3.3/duplicate-after-the-end-of-a-new-client",
            _NEW,
            (produce((N, 0), 0), (0, 0)),
            (commit((N, 0)), (0, "N", 1)),
            (produce((N, 0), 0), 47),
            levels=(1, 2),
        ),
    ]


CASES = [*_front_door(), *_asked(), *_implicit(), *_idempotent_sequences(), *_transactional_sequences()]
