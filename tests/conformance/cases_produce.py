"""Produce: what the leader asks the coordinator, and what it checks itself; sections 3.1 to 3.3."""

from __future__ import annotations

from functools import partial
from typing import Any

from spark_2pc_sink.codes import Code
from tests.conformance.cases import (
    ALL_LEVELS,
    COMPACTED,
    CURRENT,
    EMPTY,
    HERE,
    NEW,
    NO_TOPIC,
    OK,
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
    idempotent,
    init,
    latest,
    offset,
    produce,
    produce_all,
    producers,
    written,
    written_before,
)
from tests.conformance.leader_operations import DeleteRecords, Write
from tests.conformance.operations import NO_PAIR
from tests.unit.reference.batches import client_batch

#: Versions of Produce by what they make the leader do: add, verify, verify for old clients.
ADDING, VERIFYING, OLD = 12, 11, 9
SEQUENCE_MAX = 2_147_483_647
_NEW = (init(), granted(NEW.at(0)))
NOT_ADDED = (Code.INVALID_TXN_STATE, "Partition was not added to the transaction")
UNVERIFIED = (
    Code.NOT_ENOUGH_REPLICAS,
    "Unable to verify the partition has been added to the transaction. Underlying error: CONCURRENT_TRANSACTIONS",
)
SEVERAL = (Code.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID")
#: Version: answer for a partition that was not added (none: it is added), and while the transaction is being ended.
_ANSWERS_BY_VERSION: dict[int, tuple[Any, Any]] = {
    ADDING: (None, Code.CONCURRENT_TRANSACTIONS),
    VERIFYING: (Code.TRANSACTION_ABORTABLE, UNVERIFIED),
    OLD: (NOT_ADDED, UNVERIFIED),
}
_NO_KEY = "Compacted topic cannot accept message without key in topic partition compacted-0"
_REJECTED = (
    "One or more records have been rejected due to 1 record errors in total, and only showing the first three errors "
    f"at most: [RecordError(batchIndex=0, message='{_NO_KEY}')]"
)
KEYLESS = (Code.INVALID_RECORD, _REJECTED, (0, _NO_KEY))
_LATE = "Timestamp … of message with offset {} is out of range. The timestamp should be within […, …]"
TOO_LATE = (
    Code.INVALID_TIMESTAMP,
    "One or more records have been rejected due to invalid timestamp",
    (0, _LATE.format(0)),
    (1, _LATE.format(1)),
)


def _front_door() -> list[Case]:
    """3.1 for transactions. Most faults of a batch are found when it is appended: after the coordinator was asked."""
    one: dict[str, Any] = {"partition": HERE[0], "pair": NEW.at(0), "sequence": 0}
    return [
        case(
            "3.1/transactional-without-id",
            _NEW,
            (produce_all(Write(**one), tid=None), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            (produce_all(Write(**one, broken=True), tid=None), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            (produce_all(Write(**one), tid=None, version=9), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ),
        # The coordinator is asked before the batch is looked at.
        case(
            "3.1/control-batch",
            _NEW,
            (produce(NEW.at(0), sequence=0, control=True), Code.INVALID_RECORD),
            (produce(NEW.at(0), sequence=-1, control=True), Code.INVALID_RECORD),
            (describe(), "Ongoing NEW 0 [here0]"),
            levels=(1, 2),
        ),
        case(
            "3.1/broken-checksum-in-a-transaction",
            _NEW,
            (produce(NEW.at(0), sequence=0, broken=True), Code.CORRUPT_MESSAGE),
            (describe(), "Ongoing NEW 0 [here0]"),
            (producers(), []),
            (produce(NEW.at(0), sequence=0), written(0)),
            levels=(1, 2),
        ),
        case(
            "3.1/negative-epoch",
            _NEW,
            (produce(NEW.at(-1), sequence=0, version=OLD), Code.INVALID_PRODUCER_EPOCH),
            # Taken for a producer without an epoch, whose sequences nobody counts.
            (idempotent(CURRENT.at(-1), sequence=0), written(0)),
            (idempotent(CURRENT.at(-1), sequence=2), written(1)),
            (idempotent(CURRENT.at(0), sequence=5), written(2)),
            (idempotent(CURRENT.at(0), sequence=7), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (idempotent(CURRENT.at(-1), sequence=3), Code.INVALID_PRODUCER_EPOCH),
        ),
        *_front_door_of_plain_batches(),
        *_front_door_of_compacted_topics(),
    ]


def _front_door_of_plain_batches() -> list[Case]:
    """3.1 without transactions, and with more than one producer."""
    one: dict[str, Any] = {"partition": HERE[0], "pair": NEW.at(0), "sequence": 0}
    two = b"".join(client_batch([b"x"], timestamps_ms=0, producer=(5, 0), sequence=each) for each in (0, 1))
    plain = client_batch([b"x"], timestamps_ms=0)
    return [
        case("3.1/negative-sequence", (idempotent(CURRENT.at(0), sequence=-1), Code.INVALID_RECORD)),
        case(
            "3.1/two-batches",
            (produce_all(Write(partition=HERE[0], records=two, transactional=False), tid=None), Code.INVALID_RECORD),
        ),
        case(
            "3.1/broken-checksum",
            (
                produce_all(Write(partition=HERE[0], records=plain[:-1] + b"?", transactional=False), tid=None),
                Code.CORRUPT_MESSAGE,
            ),
        ),
        case(
            "3.1/two-pairs",
            _NEW,
            (produce_all(Write(**one), Write(partition=HERE[1], pair=NEW.at(1), sequence=0)), SEVERAL),
            (describe(), "Empty NEW 0 unstarted []"),
        ),
        case(
            "3.1/two-ids",
            _NEW,
            (produce_all(Write(**one), Write(partition=HERE[1], pair=UNKNOWN.at(0), sequence=0)), SEVERAL),
        ),
        case(
            "3.1/unknown-topic",
            _NEW,
            (produce(NEW.at(0), sequence=0, partition=NO_TOPIC, version=OLD), Code.UNKNOWN_TOPIC_OR_PARTITION),
        ),
        case(
            "3.1/no-producer-id",
            (idempotent(NO_PAIR, sequence=-1), written(0)),
            (idempotent(NO_PAIR, sequence=-1, count=3), written(1)),
            (producers(), []),
        ),
        case(
            "3.1/plain-batch-with-an-id",
            _NEW,
            (produce_all(Write(partition=HERE[0], transactional=False)), written(0)),
            (describe(), "Empty NEW 0 unstarted []"),
        ),
    ]


def _front_door_of_compacted_topics() -> list[Case]:
    """3.1 where every record needs a key, and where no clock may be far ahead."""
    plain = client_batch([b"x"], timestamps_ms=0)
    late = [client_batch([b"x"] * count, timestamps_ms=1 << 50) for count in (1, 2)]
    return [
        case(
            "3.1/compacted-without-a-key",
            (produce_all(Write(partition=COMPACTED, records=plain, transactional=False), tid=None), KEYLESS),
            (idempotent(CURRENT.at(0), sequence=5, partition=COMPACTED), KEYLESS),
            (idempotent(CURRENT.at(-1), sequence=5, partition=COMPACTED), KEYLESS),
            (DeleteRecords(partition=COMPACTED, offset=-1), (Code.POLICY_VIOLATION, -1)),
            (DeleteRecords(partition=COMPACTED, offset=9), (Code.POLICY_VIOLATION, -1)),
        ),
        # A record without a key is looked at no further.
        case(
            "3.1/compacted-without-a-key-and-out-of-range",
            (produce_all(Write(partition=COMPACTED, records=late[0], transactional=False), tid=None), KEYLESS),
        ),
        case(
            "3.1/time-out-of-range",
            (produce_all(Write(partition=HERE[0], records=late[1], transactional=False), tid=None), TOO_LATE),
        ),
    ]


def _asked() -> list[Case]:
    """3.2: the answer of the coordinator, as each version of Produce passes it on."""
    cases = []
    for version, (absent, pending) in _ANSWERS_BY_VERSION.items():
        # At level 0 the log cannot hold what an adding client does.
        levels = (1, 2) if version == ADDING else ALL_LEVELS
        prefix = f"v{version}"
        sent = partial(produce, sequence=0, version=version)
        rows: list[tuple[str, Given | None, list[Exchange]]] = [
            ("stale", EMPTY, [(sent(CURRENT.at(6)), Code.INVALID_PRODUCER_EPOCH)]),
            ("ahead", EMPTY, [(sent(CURRENT.at(8)), Code.INVALID_PRODUCER_EPOCH)]),
            ("unknown-producer-id", EMPTY, [(sent(UNKNOWN.at(7)), Code.INVALID_PRODUCER_ID_MAPPING)]),
            ("unknown-id", None, [(sent(UNKNOWN.at(7)), Code.INVALID_PRODUCER_ID_MAPPING)]),
        ]
        rows += [
            (f"decided-{state[8:].lower()}", Given(state=state, stuck=True), [(sent(CURRENT.at(7)), pending)])
            for state in ("PREPARE_COMMIT", "PREPARE_ABORT")
        ]
        for state in ("EMPTY", "ONGOING", "COMPLETE_COMMIT", "COMPLETE_ABORT"):
            name = f"not-added-{state.lower().replace('_', '-')}"
            held = "here0, shared0" if state == "ONGOING" else "here0"
            added = [(sent(CURRENT.at(7)), written(0)), (describe(), f"Ongoing CURRENT 7 [{held}]")]
            refused = [(sent(CURRENT.at(7)), absent), (latest("uncommitted"), offset(0))]
            rows.append((name, Given(state=state), added if absent is None else refused))
        rows.append(
            (
                "added",
                EMPTY,
                [
                    (add(CURRENT.at(7), HERE[0]), OK),
                    (sent(CURRENT.at(7)), written(0)),
                    (producers(), ["CURRENT 7 sequence=0 coordinator=-1 open=0"]),
                ],
            )
        )
        both = [Write(partition=place, pair=CURRENT.at(7), sequence=0) for place in HERE[:2]]
        same = written(0) if absent is None else {"here0": written(0), "here1": absent}
        rows.append(
            (
                "one-of-two-added",
                EMPTY,
                [(add(CURRENT.at(7), HERE[0]), OK), (produce_all(*both, version=version), same)],
            )
        )
        cases += [case(f"3.2/{prefix}-{name}", *steps, given=given, levels=levels) for name, given, steps in rows]
        cases.append(_passed_by(version))
    return cases


def _passed_by(version: int) -> Case:
    """An older epoch than the leader knows is refused without a question, and the same epoch is not asked for twice."""
    return case(
        f"3.2/v{version}-known-to-the-leader",
        _NEW,
        (add(NEW.at(0), HERE[0]), OK),
        (produce(NEW.at(0), sequence=0, version=version), written(0)),
        (produce(NEW.at(0), sequence=1, version=version), written(1)),
        (abort(NEW.at(0)), granted(NEW.at(1))),
        (produce(NEW.at(0), sequence=2, version=version), Code.INVALID_PRODUCER_EPOCH),
        (produce(NEW.at(0), sequence=0, version=version), Code.INVALID_PRODUCER_EPOCH),
        levels=(1, 2),
    )


def _implicit() -> list[Case]:
    both = [Write(partition=place, pair=NEW.at(0), sequence=0) for place in (HERE[0], NO_TOPIC)]
    return [
        case(
            "3.2/implicit-add-to-open",
            _NEW,
            (produce(NEW.at(0), sequence=0), written(0)),
            (produce(NEW.at(0), sequence=0, partition=HERE[1]), written(0)),
            (describe(), "Ongoing NEW 0 [here0, here1]"),
            levels=(1, 2),
        ),
        case(
            "3.2/unknown-topic-beside-a-known-one",
            _NEW,
            (produce_all(*both), {"here0": written(0), NO_TOPIC: Code.UNKNOWN_TOPIC_OR_PARTITION}),
            (describe(), "Ongoing NEW 0 [here0]"),
            levels=(1, 2),
        ),
        case(
            "3.2/implicit-add-after-the-end",
            _NEW,
            (produce(NEW.at(0), sequence=0), written(0)),
            (commit(NEW.at(0)), granted(NEW.at(1))),
            (produce(NEW.at(1), sequence=0), written(2)),
            (describe(), "Ongoing NEW 1 [here0]"),
            levels=(1, 2),
        ),
        case(
            "3.2/implicit-add-on-an-old-log",
            _NEW,
            (produce(NEW.at(0), sequence=0), Code.UNSUPPORTED_VERSION),
            levels=(0,),
        ),
        case(
            "3.2/fenced-by-a-second-producer",
            _NEW,
            (produce(NEW.at(0), sequence=0), written(0)),
            (init(), Code.CONCURRENT_TRANSACTIONS),
            (produce(NEW.at(0), sequence=1), Code.INVALID_PRODUCER_EPOCH),
            (init(), granted(NEW.at(2))),
            (produce(NEW.at(0), sequence=1), Code.INVALID_PRODUCER_EPOCH),
            (produce(NEW.at(1), sequence=0), Code.INVALID_PRODUCER_EPOCH),
            (produce(NEW.at(2), sequence=0), written(2)),
            levels=(1, 2),
        ),
    ]


def _idempotent_sequences() -> list[Case]:
    """3.3 for producers without transactions."""
    five = [(idempotent(CURRENT.at(0), sequence=each), written(each)) for each in range(6)]
    return [
        case(
            "3.3/duplicate",
            (idempotent(CURRENT.at(0), sequence=0, count=2), written(0)),
            (idempotent(CURRENT.at(0), sequence=2), written(2)),
            (idempotent(CURRENT.at(0), sequence=0, count=2), written_before(0)),
            (latest("uncommitted"), offset(3)),
        ),
        case(
            "3.3/duplicate-of-the-fifth-last",
            *five,
            (idempotent(CURRENT.at(0), sequence=1), written_before(1)),
            (idempotent(CURRENT.at(0), sequence=5), written_before(5)),
        ),
        case(
            "3.3/duplicate-of-the-sixth-last",
            *five,
            (idempotent(CURRENT.at(0), sequence=0), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ),
        case(
            "3.3/overlap",
            (idempotent(CURRENT.at(0), sequence=0, count=3), written(0)),
            (idempotent(CURRENT.at(0), sequence=1, count=2), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (idempotent(CURRENT.at(0), sequence=2, count=3), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (idempotent(CURRENT.at(0), sequence=0, count=4), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ),
        case(
            "3.3/gap",
            (idempotent(CURRENT.at(0), sequence=0), written(0)),
            (idempotent(CURRENT.at(0), sequence=2), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (idempotent(CURRENT.at(0), sequence=1), written(1)),
        ),
        case(
            "3.3/any-first-sequence",
            (idempotent(CURRENT.at(3), sequence=17), written(0)),
            (idempotent(CURRENT.at(3), sequence=18), written(1)),
            (producers(), ["CURRENT 3 sequence=18 coordinator=-1 open=-1"]),
        ),
        *_idempotent_epochs(),
    ]


def _idempotent_epochs() -> list[Case]:
    """Epochs, and sequences that begin again."""
    return [
        case(
            "3.3/older-epoch",
            (idempotent(CURRENT.at(3), sequence=0), written(0)),
            (idempotent(CURRENT.at(2), sequence=0), Code.INVALID_PRODUCER_EPOCH),
            (idempotent(CURRENT.at(2), sequence=1), Code.INVALID_PRODUCER_EPOCH),
        ),
        case(
            "3.3/newer-epoch-from-zero",
            (idempotent(CURRENT.at(3), sequence=0), written(0)),
            (idempotent(CURRENT.at(4), sequence=0), written(1)),
            (idempotent(CURRENT.at(4), sequence=1), written(2)),
            (producers(), ["CURRENT 4 sequence=1 coordinator=-1 open=-1"]),
        ),
        case(
            "3.3/newer-epoch-not-from-zero",
            (idempotent(CURRENT.at(3), sequence=0), written(0)),
            (idempotent(CURRENT.at(4), sequence=1), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (idempotent(CURRENT.at(3), sequence=1), written(1)),
        ),
        case(
            "3.3/sequences-begin-again",
            (idempotent(CURRENT.at(0), sequence=SEQUENCE_MAX), written(0)),
            (idempotent(CURRENT.at(0), sequence=0), written(1)),
        ),
        case(
            "3.3/sequences-begin-again-in-a-batch",
            (idempotent(CURRENT.at(0), sequence=SEQUENCE_MAX, count=2), written(0)),
            (idempotent(CURRENT.at(0), sequence=1), written(2)),
            (producers(), ["CURRENT 0 sequence=1 coordinator=-1 open=-1"]),
        ),
        case(
            "3.3/zero-only-after-the-last",
            (idempotent(CURRENT.at(0), sequence=SEQUENCE_MAX - 1), written(0)),
            (idempotent(CURRENT.at(0), sequence=0), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (idempotent(CURRENT.at(0), sequence=SEQUENCE_MAX), written(1)),
        ),
        case(
            "3.3/highest-epoch",
            (idempotent(CURRENT.at(32767), sequence=0), written(0)),
            (idempotent(CURRENT.at(32766), sequence=0), Code.INVALID_PRODUCER_EPOCH),
        ),
    ]


def _transactional_sequences() -> list[Case]:
    """3.3 for transactions."""
    old: dict[str, Any] = {"version": VERIFYING}
    return [
        case(
            "3.3/new-client-begins-at-zero-each-time",
            _NEW,
            (produce(NEW.at(0), sequence=0), written(0)),
            (abort(NEW.at(0)), granted(NEW.at(1))),
            (produce(NEW.at(1), sequence=1), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (produce(NEW.at(1), sequence=0), written(2)),
            levels=(1, 2),
        ),
        case(
            "3.3/old-client-begins-anywhere",
            (add(CURRENT.at(7), HERE[0]), OK),
            (produce(CURRENT.at(7), sequence=5, **old), written(0)),
            (produce(CURRENT.at(7), sequence=6, **old), written(1)),
            given=EMPTY,
        ),
        case(
            "3.3/first-attempt-bounds-the-first-sequence",
            (produce(CURRENT.at(7), sequence=5, **old), Code.TRANSACTION_ABORTABLE),
            (add(CURRENT.at(7), HERE[0]), OK),
            (produce(CURRENT.at(7), sequence=6, **old), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (produce(CURRENT.at(7), sequence=5, **old), written(0)),
            given=EMPTY,
        ),
        case(
            "3.3/first-attempt-bounds-from-above-only",
            (produce(CURRENT.at(7), sequence=5, **old), Code.TRANSACTION_ABORTABLE),
            (add(CURRENT.at(7), HERE[0]), OK),
            (produce(CURRENT.at(7), sequence=4, **old), written(0)),
            given=EMPTY,
        ),
        *_sequences_across_transactions(),
    ]


def _sequences_across_transactions() -> list[Case]:
    """Gaps, and what is left of a transaction when the next one comes."""
    old: dict[str, Any] = {"version": VERIFYING}
    opened = [(add(CURRENT.at(7), HERE[0]), OK), (produce(CURRENT.at(7), sequence=0, **old), written(0))]
    return [
        case(
            "3.3/old-client-goes-on-counting",
            *opened,
            (commit(CURRENT.at(7), version=4), OK),
            (add(CURRENT.at(7), HERE[0]), OK),
            (produce(CURRENT.at(7), sequence=2, **old), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (produce(CURRENT.at(7), sequence=1, **old), written(2)),
            given=EMPTY,
        ),
        case(
            "3.3/duplicate-of-the-transaction-before",
            *opened,
            (commit(CURRENT.at(7), version=4), OK),
            (add(CURRENT.at(7), HERE[0]), OK),
            (produce(CURRENT.at(7), sequence=0, **old), written_before(0)),
            (producers(), ["CURRENT 7 sequence=0 coordinator=OWN open=-1"]),
            given=EMPTY,
        ),
        case(
            "3.3/plain-batch-in-a-transaction",
            *opened,
            (idempotent(CURRENT.at(7), sequence=1), Code.INVALID_TXN_STATE),
            (commit(CURRENT.at(7), version=4), OK),
            (describe(), "CompleteCommit CURRENT 7 []"),
            (idempotent(CURRENT.at(7), sequence=1), written(2)),
            given=EMPTY,
        ),
        case(
            "3.3/newer-epoch-in-an-open-transaction",
            *opened,
            (idempotent(CURRENT.at(8), sequence=0), Code.INVALID_TXN_STATE),
            given=EMPTY,
        ),
        case(
            "3.3/duplicate-after-the-end-of-a-new-client",
            _NEW,
            (produce(NEW.at(0), sequence=0), written(0)),
            (commit(NEW.at(0)), granted(NEW.at(1))),
            (produce(NEW.at(0), sequence=0), Code.INVALID_PRODUCER_EPOCH),
            levels=(1, 2),
        ),
    ]


CASES = [*_front_door(), *_asked(), *_implicit(), *_idempotent_sequences(), *_transactional_sequences()]
