"""The history against the topics: what it says of batches, whose records are whose, and what differs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from jdbc_state import DECIDED, DONE, OWED, HistoryLine, StateRow
from jdbc_state.history import ACCEPTED, ADOPTED, CLAIMED, EMPTY, PASSED, RESENT
from jdbc_state.history import DECIDED as DECIDED_LINE
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.history import (
    OPEN_END,
    Claim,
    Claims,
    HistoryCheck,
    Logs,
    PartitionClaims,
    Stretch,
    Tally,
    claims_of,
    gone_claims,
)
from spark_2pc_sink.verification.record_digest import content_of, digest_of, digest_text
from spark_2pc_sink.verification.report import BatchResult, Differences

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


# --- what the topics hold ---


def ranged(batch: int, first: int, last: int) -> Claim:
    return Claim(batch=batch, decision=batch, ranges={PLACE: (first, last)})


def test_offsets_are_cut_where_claims_begin_and_end() -> None:
    claims = PartitionClaims([(10, 19, 0), (30, 39, 1)])
    assert claims.stretches([5, 10, 19, 20, 30, 31, 45]) == [
        Stretch(0, 1, -1, -1),
        Stretch(1, 3, 0, 0),
        Stretch(3, 4, -1, 0),
        Stretch(4, 6, 1, 1),
        Stretch(6, 7, -1, 1),
    ]
    assert [claims.claim_at(offset) for offset in (9, 10, 19, 20, 39, 40)] == [-1, 0, 0, -1, 1, -1]


def test_without_claims_all_is_unclaimed() -> None:
    assert PartitionClaims([]).stretches([1, 2]) == [Stretch(0, 2, -1, -1)]
    assert PartitionClaims([]).stretches([]) == []


def test_a_range_without_an_end_goes_up_to_the_next() -> None:
    claims = PartitionClaims([(10, OPEN_END, 0), (20, 25, 1)])
    assert [claims.claim_at(offset) for offset in (15, 19, 20, 26)] == [0, 0, 1, -1]
    assert PartitionClaims([(10, OPEN_END, 0)]).claim_at(10_000) == 0


def test_records_are_counted_for_their_batch_whatever_the_portions_they_come_in() -> None:
    contents = [content_of(None, b"%d" % number, None) for number in range(6)]
    tally = Tally([ranged(0, 0, 2), ranged(1, 4, 6)], {})
    tally.take(PLACE, [0, 1], contents[:2])
    tally.take(PLACE, [2, 4, 6], contents[2:5])
    assert [(found.records, found.seen) for found in tally.found] == [(3, {PLACE: (0, 2)}), (2, {PLACE: (4, 6)})]
    assert tally.found[0].digest == digest_of("orders", contents[:3])
    assert tally.found[1].digest == digest_of("orders", contents[3:5])
    assert (tally.records, tally.unclaimed) == (5, [])


def test_records_of_no_batch_are_noted_in_one_piece_between_two_batches() -> None:
    tally = Tally([ranged(0, 0, 0), ranged(1, 10, 10)], {})
    contents = [b""] * 3
    tally.take(PLACE, [0, 2, 3], contents)
    tally.take(PLACE, [5, 10, 12], contents)
    assert [(left.first, left.last, left.records, left.after) for left in tally.unclaimed] == [
        (2, 5, 3, 0),
        (12, 12, 1, 1),
    ]


def test_claims_on_a_topic_that_is_gone_claim_nothing() -> None:
    tally = Tally([ranged(0, 0, 5)], {"orders": frozenset({0})})
    tally.take(PLACE, [0, 1], [b"", b""])
    assert tally.found[0].records == 0
    assert [(left.records, left.after) for left in tally.unclaimed] == [(2, -1)]


def test_what_is_read_again_is_not_counted_again() -> None:
    """By a second table that the same topic tells, or when the first reading was given up."""
    contents = [content_of(None, b"%d" % number, None) for number in range(5)]
    tally = Tally([ranged(0, 0, 4)], {})
    for offsets in ([0, 1, 2], [0, 1], [2, 3, 4], [0, 1, 2, 3, 4]):
        tally.take(PLACE, offsets, [contents[offset] for offset in offsets])
    assert (tally.records, tally.found[0].records) == (5, 5)
    assert tally.found[0].digest == digest_of("orders", contents)


# --- both compared ---

CONTENTS = [content_of(None, b"%d" % number, None) for number in range(3)]
BATCH = Claim(
    batch=5,
    decision=6,
    records=3,
    digest=digest_text(digest_of("orders", CONTENTS)),
    ranges={PLACE: (10, 12)},
    topic_ids={"orders": "A"},
)
LOGS = Logs(topic_ids={"orders": "A"}, starts={PLACE: 0}, ends={PLACE: 14}, written={PLACE: 14})


def check(
    *offsets: int,
    claim: Claim = BATCH,
    logs: Logs = LOGS,
    contents: list[bytes] = CONTENTS,
    hidden: str = "",
    skipped: tuple[tuple[int, int], ...] = (),
    digests: bool = True,
) -> tuple[BatchResult, Differences]:
    claims = Claims(claims=(claim,), skipped=skipped)
    tally = Tally(claims.claims, gone_claims(claims, logs))
    if offsets:
        tally.take(PLACE, offsets, contents)
    differences = Differences(10)
    judged = HistoryCheck(
        known=claims,
        chosen=[0],
        logs=logs,
        differences=differences,
        digests=digests,
        hidden={0: hidden} if hidden else {},
        locate=lambda *_: (PLACE, 11),
    ).judge(tally)
    return judged[0], differences


def kinds(differences: Differences) -> list[str]:
    return [difference.kind for difference in differences.kept]


def test_a_batch_that_is_there_as_it_was_written_is_the_same() -> None:
    result, differences = check(10, 11, 12)
    assert (result.same, result.found, result.digest_same, result.checked) == (True, 3, True, True)
    assert differences.kept == []


def test_a_digest_that_is_of_rows_too_is_not_compared() -> None:
    """Of a sink with a table whose rows go to no topic; how many records there are is compared all the same."""
    result, differences = check(10, 11, 12, claim=replace(BATCH, digest="f" * 32), digests=False)
    assert (result.same, result.digest_same) == (True, None)
    assert differences.kept == []
    assert "digests of batches" in str(differences.not_checked)
    assert kinds(check(10, 12, contents=CONTENTS[:2], digests=False)[1]) == ["batch_count"]


def test_a_record_that_is_gone() -> None:
    result, differences = check(10, 12, contents=CONTENTS[:2])
    assert (result.same, result.found) == (False, 2)
    assert kinds(differences) == ["batch_count"]


def test_a_record_that_says_something_else() -> None:
    result, differences = check(10, 11, 12, contents=[*CONTENTS[:2], b"else"])
    assert (result.same, result.digest_same) == (False, False)
    assert kinds(differences) == ["digest"]
    assert differences.kept[0].batch == 5


def test_a_range_that_does_not_begin_with_a_record() -> None:
    _, differences = check(
        11,
        12,
        claim=replace(BATCH, records=2, digest=digest_text(digest_of("orders", CONTENTS[:2]))),
        contents=CONTENTS[:2],
    )
    assert kinds(differences) == ["offsets"]


def test_one_stranger_is_found_by_its_hash_and_several_are_counted() -> None:
    one = replace(BATCH, records=2)
    _, differences = check(10, 11, 12, claim=one)
    assert kinds(differences) == ["batch_count", "stranger"]
    assert (differences.kept[1].offset, differences.kept[1].last_offset) == (11, 11)
    _, differences = check(10, 11, 12, claim=replace(BATCH, records=1))
    assert "2 of the 3 records" in differences.kept[1].text


def test_a_topic_that_is_gone_or_another_one() -> None:
    result, differences = check(logs=Logs())
    assert (result.same, kinds(differences)) == (False, ["topic_deleted"])
    _, differences = check(logs=replace(LOGS, topic_ids={"orders": "B"}))
    assert kinds(differences) == ["topic_remade"]
    assert "its id was A, and is B now" in differences.kept[0].text


def test_a_topic_without_an_id_is_taken_for_the_same() -> None:
    _, differences = check(10, 11, 12, logs=replace(LOGS, topic_ids={"orders": ""}))
    assert differences.kept == []


def test_a_log_that_has_lost_its_beginning_its_end_or_a_partition() -> None:
    for logs, told in (
        (replace(LOGS, starts={PLACE: 11}), "begins at offset 11"),
        (replace(LOGS, written={PLACE: 12}), "ends at offset 12"),
        (replace(LOGS, starts={}), "no partition orders-0"),
    ):
        _, differences = check(logs=logs)
        assert kinds(differences) == ["truncated"]
        assert told in differences.kept[0].text


def test_a_batch_that_is_hidden_or_cannot_be_known_is_not_compared() -> None:
    for claim, hidden in ((BATCH, "in doubt"), (replace(BATCH, unknown="in doubt"), "")):
        result, differences = check(claim=claim, hidden=hidden)
        assert (result.checked, result.found, differences.kept) == (False, None, [])
        assert [part.why for part in differences.not_checked] == ["in doubt"]


def test_of_a_compacted_topic_neither_count_nor_digest_is_compared() -> None:
    result, differences = check(12, logs=replace(LOGS, compacted=frozenset({"orders"})), contents=CONTENTS[:1])
    assert (result.same, differences.kept) == (True, [])
    assert "compaction" in differences.not_checked[0].why


def test_records_behind_a_batch_are_foreign_and_those_before_all_may_be_older() -> None:
    _, differences = check(3, 10, 11, 12, 13, contents=[b"", *CONTENTS, b""])
    assert kinds(differences) == ["gap"]
    assert (differences.kept[0].offset, differences.kept[0].topic) == (13, "orders")
    assert "before offset 4" in differences.not_checked[0].what


def test_a_batch_that_the_history_skips() -> None:
    _, differences = check(10, 11, 12, skipped=((2, 5),))
    assert [(each.kind, each.batch) for each in differences.kept] == [("gap", 3)]


def test_differences_are_counted_beyond_those_that_are_kept() -> None:
    differences = Differences(1)
    for _ in range(3):
        _, found = check(10, 12, contents=CONTENTS[:2])
        differences.add(found.kept[0])
    assert (len(differences.kept), differences.counts) == (1, {"batch_count": 3})
