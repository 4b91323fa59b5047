"""What a history says of batches, whatever people have done in between."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from jdbc_state import DECIDED, DONE, OWED, HistoryLine, StateRow
from jdbc_state.history import ACCEPTED, ADOPTED, CLAIMED, EMPTY, PASSED, RESENT
from jdbc_state.history import DECIDED as DECIDED_LINE
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.history import OPEN_END, claims_of

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
HERE = "cluster"
PLACE = TopicPartition("orders", 0)


def line(
    decision: int, batch: int | None, first: int = 0, last: int = 0, event: str = DECIDED_LINE, **row: Any
) -> HistoryLine:
    values: dict[str, Any] = {
        "status": DONE,
        "batch_id": batch,
        "record_count": 1,
        "digest": "ab",
        "kafka_offsets": {"orders-0": (first, last)},
        "topic_ids": {"orders": "id"},
        "cluster_id": HERE,
        **row,
    }
    return HistoryLine(event, StateRow(transactional_id="t", generation=1, decision=decision, claimed_at=AT, **values))


def new() -> HistoryLine:
    return line(0, None, event=CLAIMED, status="none", kafka_offsets={}, record_count=0)


def test_each_decision_is_a_batch_with_its_offsets() -> None:
    found = claims_of(None, [new(), line(1, 0, 0, 4), line(2, 1, 6, 9)], cluster_id=HERE)
    assert [(claim.batch, dict(claim.ranges), claim.unknown) for claim in found.claims] == [
        (0, {PLACE: (0, 4)}, ""),
        (1, {PLACE: (6, 9)}, ""),
    ]
    assert found.from_the_start
    assert found.skipped == ()
    assert (found.batch_ids, found.topics) == ([0, 1], frozenset({"orders"}))


def test_without_a_history_the_row_is_the_only_batch() -> None:
    row = line(7, 6, 10, 12).row
    found = claims_of(row, [], cluster_id=HERE)
    assert [(claim.batch, claim.decision) for claim in found.claims] == [(6, 7)]
    assert not found.from_the_start
    assert claims_of(None, [], cluster_id=HERE).claims == ()


def test_a_batch_that_was_sent_again_is_the_newer_one() -> None:
    lines = [line(1, 0, 0, 4, status=OWED), line(2, 0, 6, 10, event=RESENT), line(3, 1, 12, 13)]
    found = claims_of(None, lines, cluster_id=HERE)
    assert [(claim.batch, dict(claim.ranges)) for claim in found.claims] == [
        (0, {PLACE: (6, 10)}),
        (1, {PLACE: (12, 13)}),
    ]


def test_the_newest_batch_is_in_doubt_while_its_row_says_so() -> None:
    for status, in_doubt in ((DECIDED, True), (OWED, True), (DONE, False)):
        found = claims_of(None, [line(1, 0), line(2, 1, status=status)], cluster_id=HERE)
        assert [claim.in_doubt for claim in found.claims] == [False, in_doubt]


def test_a_batch_that_the_history_skips_is_named_and_one_that_was_given_up_is_not() -> None:
    assert claims_of(None, [line(1, 0), line(2, 3)], cluster_id=HERE).skipped == ((0, 3),)
    passed = line(2, 3, 0, 50, event=PASSED, digest="", row_count=0)
    found = claims_of(None, [line(1, 0, 0, 9), passed, line(3, 4, 60, 61)], cluster_id=HERE)
    assert found.skipped == ()
    assert dict(found.claims[1].ranges) == {PLACE: (10, 50)}
    assert "went on without it" in found.claims[1].unknown


def test_batches_of_another_query_count_from_the_start_again() -> None:
    lines = [line(1, 8), line(2, None, event=ADOPTED, status="none"), line(3, 0), line(4, 1)]
    found = claims_of(None, lines, cluster_id=HERE)
    assert (found.newest_query, found.batch_ids, found.skipped) == (1, [0, 1], ())


def test_a_batch_without_records_claims_nothing() -> None:
    lines = [line(1, 0), line(2, 1, event=EMPTY, record_count=0, digest="", kafka_offsets={}), line(3, 2)]
    found = claims_of(None, lines, cluster_id=HERE)
    assert [(claim.records, claim.unknown) for claim in found.claims] == [(1, ""), (0, ""), (1, "")]


def test_what_a_person_has_decided_cannot_be_compared_and_says_why() -> None:
    for one, told in (
        (line(1, 5, 3, 3, event=ACCEPTED, digest=""), "row and history were lost"),
        (line(1, 5, digest=""), "gave up its records"),
        (line(1, 5, cluster_id="other"), "another Kafka cluster, other"),
        (line(1, 5, kafka_offsets={}), "does not say where"),
    ):
        (claim,) = claims_of(None, [one], cluster_id=HERE).claims
        assert told in claim.unknown


def test_of_a_transaction_that_a_person_has_committed_only_the_beginning_is_known() -> None:
    (claim,) = claims_of(None, [line(1, 5, 3, 3, event=ACCEPTED, digest="")], cluster_id=HERE).claims
    assert dict(claim.ranges) == {PLACE: (3, OPEN_END)}
