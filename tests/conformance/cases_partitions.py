"""AddPartitionsToTxn, of clients and of leaders, and AddOffsetsToTxn: section 2.2."""

from __future__ import annotations

from spark_2pc_sink.codes import Code
from tests.conformance.cases import (
    ALL_LEVELS,
    CURRENT,
    EMPTY,
    INTERNAL,
    NO_TOPIC,
    OK,
    ONGOING,
    PREVIOUS,
    SHARED,
    UNKNOWN,
    Case,
    Exchange,
    Given,
    add,
    add_nothing,
    add_offsets,
    case,
    describe,
    verify,
    word_of,
)

STATES = ("EMPTY", "ONGOING", "COMPLETE_COMMIT", "COMPLETE_ABORT")
DECIDED = ("PREPARE_COMMIT", "PREPARE_ABORT")


def _grid() -> list[Case]:
    cases = []
    for state in STATES:
        given, word = Given(state=state), word_of(state)
        held = "[shared0, shared1]" if state == "ONGOING" else "[shared1]"
        for version, levels in ((3, ALL_LEVELS), (4, (1, 2))):
            steps = [(add(CURRENT.at(7), SHARED[1], version=version), OK), (describe(), f"Ongoing CURRENT 7 {held}")]
            cases.append(case(f"2.2/{word}-v{version}", *steps, given=given, levels=levels))
        refused = [
            (ask(pair), code)
            for pair, code in (
                (CURRENT.at(6), Code.PRODUCER_FENCED),
                (CURRENT.at(8), Code.PRODUCER_FENCED),
                (UNKNOWN.at(7), Code.INVALID_PRODUCER_ID_MAPPING),
                (PREVIOUS.at(7), Code.INVALID_PRODUCER_ID_MAPPING),
            )
            for ask in (add, add_offsets)
        ]
        cases.append(case(f"2.2/{word}-refused", *refused, given=given))
        cases.append(case(f"2.2/{word}-offsets", (add_offsets(CURRENT.at(7)), OK), given=given))
        cases.append(_verified(state))
    for state in DECIDED:
        steps = [
            (request, Code.CONCURRENT_TRANSACTIONS)
            for pair in (CURRENT.at(7), CURRENT.at(6), UNKNOWN.at(7))
            for request in (add(pair), add_offsets(pair), add(pair, version=5))
        ]
        given = Given(state=state, stuck=True)
        cases.append(case(f"2.2/{word_of(state)}-any-pair", *steps, given=given))
        cases.append(_verified(state))
    return cases


def _verified(state: str) -> Case:
    """verifyOnly: nothing is added, and what is pending is not looked at."""
    decided = state in DECIDED
    rows: list[Exchange] = [
        (verify(CURRENT.at(6)), Code.PRODUCER_FENCED),
        (verify(CURRENT.at(8)), Code.PRODUCER_FENCED),
        (verify(UNKNOWN.at(7)), Code.INVALID_PRODUCER_ID_MAPPING),
        (verify(CURRENT.at(7), SHARED[1]), Code.CONCURRENT_TRANSACTIONS if decided else Code.TRANSACTION_ABORTABLE),
        (
            verify(CURRENT.at(7)),
            Code.CONCURRENT_TRANSACTIONS if decided else OK if state == "ONGOING" else Code.TRANSACTION_ABORTABLE,
        ),
        (
            verify(CURRENT.at(7), version=4),
            Code.CONCURRENT_TRANSACTIONS if decided else OK if state == "ONGOING" else Code.TRANSACTION_ABORTABLE,
        ),
    ]
    if state == "ONGOING":
        rows.append((verify(CURRENT.at(7), *SHARED[:2]), {"shared0": OK, "shared1": Code.TRANSACTION_ABORTABLE}))
        rows.append((describe(), "Ongoing CURRENT 7 [shared0]"))
    return case(f"2.2/{word_of(state)}-verify", *rows, given=Given(state=state, stuck=decided))


def _others() -> list[Case]:
    return [
        case(
            "2.2/unknown-id",
            (add(UNKNOWN.at(0)), Code.INVALID_PRODUCER_ID_MAPPING),
            (add_offsets(UNKNOWN.at(0)), Code.INVALID_PRODUCER_ID_MAPPING),
            (verify(UNKNOWN.at(0)), Code.INVALID_PRODUCER_ID_MAPPING),
            (add(UNKNOWN.at(0), version=4), Code.INVALID_PRODUCER_ID_MAPPING),
        ),
        case(
            "2.2/empty-id",
            (add(UNKNOWN.at(0), tid=""), Code.INVALID_REQUEST),
            (add_offsets(UNKNOWN.at(0), tid=""), Code.INVALID_REQUEST),
            (verify(UNKNOWN.at(0), tid=""), Code.INVALID_REQUEST),
        ),
        case(
            "2.2/already-there",
            (add(CURRENT.at(7)), OK),
            (add(CURRENT.at(7), *SHARED[:2]), OK),
            (describe(), "Ongoing CURRENT 7 [shared0, shared1]"),
            given=ONGOING,
        ),
        *(
            case(
                f"2.2/fenced-v{version}",
                (add(CURRENT.at(6), version=version), code),
                (add_offsets(CURRENT.at(6), version=version), code),
                given=ONGOING,
            )
            for version, code in (
                (1, Code.INVALID_PRODUCER_EPOCH),
                (2, Code.PRODUCER_FENCED),
                (4, Code.PRODUCER_FENCED),
            )
        ),
        *_partitions(),
    ]


def _partitions() -> list[Case]:
    """What is asked for, rather than by whom."""
    asked = (CURRENT.at(7), SHARED[1], NO_TOPIC)
    absent = {"shared1": Code.OPERATION_NOT_ATTEMPTED, NO_TOPIC: Code.UNKNOWN_TOPIC_OR_PARTITION}
    return [
        case(
            "2.2/unknown-partition",
            *((request, absent) for request in (*(add(*asked, version=each) for each in (3, 4, 5)), verify(*asked))),
            (describe(), "Ongoing CURRENT 7 [shared0]"),
            given=ONGOING,
        ),
        case(
            "2.2/internal-topic",
            (
                add(CURRENT.at(7), SHARED[1], INTERNAL),
                {"shared1": Code.OPERATION_NOT_ATTEMPTED, INTERNAL: Code.TOPIC_AUTHORIZATION_FAILED},
            ),
            (describe(), "Ongoing CURRENT 7 [shared0]"),
            given=ONGOING,
        ),
        case(
            "2.2/unknown-partition-first",
            (add(CURRENT.at(6), NO_TOPIC), Code.UNKNOWN_TOPIC_OR_PARTITION),
            (add(UNKNOWN.at(6), NO_TOPIC), Code.UNKNOWN_TOPIC_OR_PARTITION),
            given=ONGOING,
        ),
        case(
            "2.2/no-partitions-open-a-transaction",
            (add_nothing(CURRENT.at(7)), {}),
            (describe(), "Ongoing CURRENT 7 []"),
            given=EMPTY,
        ),
        case(
            "2.2/no-partitions-stale",
            (add_nothing(CURRENT.at(6)), {}),
            (describe(), "Empty CURRENT 7 unstarted []"),
            given=EMPTY,
        ),
        case("2.2/leaders-add-any-topic", (add(CURRENT.at(7), INTERNAL, version=5), OK), given=ONGOING, levels=(2,)),
        case(
            "2.2/offsets-add-their-partition",
            (add_offsets(CURRENT.at(7)), OK),
            (describe(), "Ongoing CURRENT 7 [(__consumer_offsets, 0), shared0]"),
            given=ONGOING,
        ),
        case(
            "1.4/leader-add-on-an-old-log",
            (add(CURRENT.at(7), SHARED[1], version=5), Code.UNSUPPORTED_VERSION),
            given=EMPTY,
            levels=(0,),
        ),
    ]


CASES = [*_grid(), *_others()]
