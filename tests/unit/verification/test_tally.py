"""The tally of records: whose they are, by the ranges that batches claim."""

from __future__ import annotations

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.history import OPEN_END, Claim, PartitionClaims, Stretch, Tally
from spark_2pc_sink.verification.record_digest import content_of, digest_of

PLACE = TopicPartition("orders", 0)


def claim(batch: int, first: int, last: int) -> Claim:
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
    tally = Tally([claim(0, 0, 2), claim(1, 4, 6)], {})
    tally.take(PLACE, [0, 1], contents[:2])
    tally.take(PLACE, [2, 4, 6], contents[2:5])
    assert [(found.records, found.seen) for found in tally.found] == [(3, {PLACE: (0, 2)}), (2, {PLACE: (4, 6)})]
    assert tally.found[0].digest == digest_of("orders", contents[:3])
    assert tally.found[1].digest == digest_of("orders", contents[3:5])
    assert (tally.records, tally.unclaimed) == (5, [])


def test_records_of_no_batch_are_noted_in_one_piece_between_two_batches() -> None:
    tally = Tally([claim(0, 0, 0), claim(1, 10, 10)], {})
    contents = [b""] * 3
    tally.take(PLACE, [0, 2, 3], contents)
    tally.take(PLACE, [5, 10, 12], contents)
    assert [(left.first, left.last, left.records, left.after) for left in tally.unclaimed] == [
        (2, 5, 3, 0),
        (12, 12, 1, 1),
    ]


def test_claims_on_a_topic_that_is_gone_claim_nothing() -> None:
    tally = Tally([claim(0, 0, 5)], {"orders": frozenset({0})})
    tally.take(PLACE, [0, 1], [b"", b""])
    assert tally.found[0].records == 0
    assert [(left.records, left.after) for left in tally.unclaimed] == [(2, -1)]
