"""The history against the topics: digests, what it says of batches and their records, differences, and scopes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from jdbc_state import DECIDED, DONE, OWED, HistoryLine, StateRow
from jdbc_state.history import ACCEPTED, ADOPTED, CLAIMED, DECIDED as DECIDED_LINE, PASSED, RESENT
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.verification.api import Scope
from spark_2pc_sink.verification.history import (
    OPEN_END,
    Claims,
    Found,
    HistoryBatch,
    PartitionClaims,
    Ranges,
    Stretch,
    Tally,
    TopicLogs,
    claims_of,
    content_of,
    digest_of,
    digest_text,
    judge,
)
from spark_2pc_sink.verification.report import BatchResult, Differences
from spark_2pc_sink.verification.table_pairs import NotedLayout
from spark_2pc_sink.verification.topic_reader import TopicReader
from spark_2pc_sink.verification.verification import Evidence
from spark_2pc_sink.wire.batch_format import encode_varint
from spark_2pc_sink.wire.record_batch import content_digest

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
TOPIC = "orders"
PLACE = TopicPartition(TOPIC, 0)

# --- the digest ---

parts = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=20), parts), max_size=3)


def with_length(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


@given(st.lists(st.tuples(parts, parts, headers), max_size=5))
def test_records_have_the_digest_that_the_sink_writes_down(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    contents = [content_of(*record) for record in records]
    written = []
    for key, value, named in records:
        encoded = [part for name, each in named for part in (with_length(name.encode()), with_length(each))]
        written.append(b"".join([with_length(key), with_length(value), encode_varint(len(named)), *encoded]))
    assert contents == written
    assert digest_of(TOPIC, contents) == content_digest(TOPIC, pa.array(written, pa.binary()))


# --- the batches of the history ---


def line(
    decision: int, batch: int | None, first: int = 0, last: int = 0, event: str = DECIDED_LINE, **row: Any
) -> HistoryLine:
    values: dict[str, Any] = {"status": DONE, "batch_id": batch, "record_count": 1, "digest": "ab"}
    values |= {"kafka_offsets": {"orders-0": (first, last)}, "topic_ids": {TOPIC: "id"}, "cluster_id": "here", **row}
    return HistoryLine(event, StateRow(transactional_id="t", generation=1, decision=decision, claimed_at=AT, **values))


def read(*lines: HistoryLine, row: StateRow | None = None) -> Claims:
    return claims_of(row, lines, cluster_id="here")


def ranges(found: Claims) -> list[tuple[int | None, dict[TopicPartition, tuple[int, int]]]]:
    return [(claim.batch, dict(claim.ranges)) for claim in found.claims]


def test_each_decision_is_a_batch_with_its_offsets() -> None:
    new = line(0, None, event=CLAIMED, status="none", kafka_offsets={}, record_count=0)
    found = read(new, line(1, 0, 0, 4), line(2, 1, 6, 9))
    assert ranges(found) == [(0, {PLACE: (0, 4)}), (1, {PLACE: (6, 9)})]
    assert (found.from_the_start, list(found.skipped), found.batch_ids) == (True, [], [0, 1])
    assert found.topics == {TOPIC}
    # The newer of two lines has what was sent again.
    sent_again = [line(1, 0, 0, 4, status=OWED), line(2, 0, 6, 10, event=RESENT), line(3, 1, 12, 13)]
    assert ranges(read(*sent_again)) == [(0, {PLACE: (6, 10)}), (1, {PLACE: (12, 13)})]
    # Without a history the row is the only batch.
    alone = read(row=line(7, 6, 10, 12).row)
    assert (ranges(alone), alone.from_the_start, read().claims) == ([(6, {PLACE: (10, 12)})], False, ())


@pytest.mark.parametrize(("status", "in_doubt"), [(DECIDED, True), (OWED, True), (DONE, False)])
def test_the_newest_batch_is_in_doubt_while_its_row_says_so(status: str, *, in_doubt: bool) -> None:
    assert [claim.in_doubt for claim in read(line(1, 0), line(2, 1, status=status)).claims] == [False, in_doubt]


def test_a_batch_that_the_history_skips_is_named_and_one_that_was_given_up_is_not() -> None:
    assert read(line(1, 0), line(2, 3)).skipped == ((0, 3),)
    passed = line(2, 3, 0, 50, event=PASSED, digest="", row_count=0)
    found = read(line(1, 0, 0, 9), passed, line(3, 4, 60, 61))
    assert (found.skipped, dict(found.claims[1].ranges)) == ((), {PLACE: (10, 50)})
    assert "continued without it" in found.claims[1].unknown


def test_batches_of_another_query_count_from_the_start_again() -> None:
    found = read(line(1, 8), line(2, None, event=ADOPTED, status="none"), line(3, 0), line(4, 1))
    assert (found.newest_query, found.batch_ids, found.skipped) == (1, [0, 1], ())


@pytest.mark.parametrize(
    ("one", "told", "known"),
    [
        # Of a transaction that a person has committed, only the beginning is known.
        (line(1, 5, 3, 3, event=ACCEPTED, digest=""), "row and history were lost", {PLACE: (3, OPEN_END)}),
        (line(1, 5, digest=""), "gave up its records", {PLACE: (0, 0)}),
        (line(1, 5, cluster_id="other"), "another Kafka cluster, other", {}),
        (line(1, 5, kafka_offsets={}), "does not have its offsets", {}),
    ],
    ids=["accepted", "given up", "other cluster", "no offsets"],
)
def test_what_a_person_has_decided_cannot_be_compared_and_says_why(
    one: HistoryLine, told: str, known: dict[TopicPartition, tuple[int, int]]
) -> None:
    (claim,) = read(one).claims
    assert told in claim.unknown
    assert claim.ranges == known


# --- what the topics hold ---


def ranged(batch: int, first: int, last: int) -> HistoryBatch:
    return HistoryBatch(batch=batch, decision=batch, ranges={PLACE: (first, last)})


def test_offsets_are_cut_where_claims_begin_and_end() -> None:
    claims = PartitionClaims([(10, 19, 0), (30, 39, 1)])
    found = claims.stretches([5, 10, 19, 20, 30, 31, 45])
    cut = [(0, 1, -1, -1), (1, 3, 0, 0), (3, 4, -1, 0), (4, 6, 1, 1), (6, 7, -1, 1)]
    assert found == [Stretch(*each) for each in cut]
    assert [claims.claim_at(offset) for offset in (9, 10, 19, 20, 39, 40)] == [-1, 0, 0, -1, 1, -1]
    nothing = PartitionClaims([])
    assert (nothing.stretches([1, 2]), nothing.stretches([])) == ([Stretch(0, 2, -1, -1)], [])
    # A range without an end goes up to the next.
    claims = PartitionClaims([(10, OPEN_END, 0), (20, 25, 1)])
    assert [claims.claim_at(offset) for offset in (15, 19, 20, 26)] == [0, 0, 1, -1]
    assert PartitionClaims([(10, OPEN_END, 0)]).claim_at(10_000) == 0


CONTENTS = [content_of(None, b"%d" % number, None) for number in range(6)]


def test_records_are_counted_for_their_batch_whatever_the_portions_they_come_in() -> None:
    tally = Tally([ranged(0, 0, 2), ranged(1, 4, 6)])
    tally.take(PLACE, [0, 1], CONTENTS[:2])
    tally.take(PLACE, [2, 4, 6], CONTENTS[2:5])
    assert [(found.records, found.seen) for found in tally.found] == [(3, {PLACE: (0, 2)}), (2, {PLACE: (4, 6)})]
    digests = [digest_of(TOPIC, CONTENTS[:3]), digest_of(TOPIC, CONTENTS[3:5])]
    assert [found.digest for found in tally.found] == digests
    assert (tally.records, tally.unclaimed) == (5, {})


def test_records_of_no_batch_are_noted_in_one_piece_between_two_batches() -> None:
    tally = Tally([ranged(0, 0, 0), ranged(1, 10, 10)])
    tally.take(PLACE, [0, 2, 3], [b""] * 3)
    tally.take(PLACE, [5, 10, 12], [b""] * 3)
    first, second = Found(3, seen={PLACE: (2, 5)}), Found(1, seen={PLACE: (12, 12)})
    assert tally.unclaimed == {(PLACE, 0): first, (PLACE, 1): second}
    # Claims on a topic that is gone claim nothing.
    tally = Tally([replace(ranged(0, 0, 5), gone=frozenset({TOPIC}))])
    tally.take(PLACE, [0, 1], [b"", b""])
    assert tally.found[0].records == 0
    assert tally.unclaimed == {(PLACE, -1): Found(2, seen={PLACE: (0, 1)})}


def test_what_is_read_again_is_not_counted_again() -> None:
    """By a second table that the same topic tells, or when the first reading was given up."""
    tally = Tally([ranged(0, 0, 4)])
    for offsets in ([0, 1, 2], [0, 1], [2, 3, 4], [0, 1, 2, 3, 4]):
        tally.take(PLACE, offsets, [CONTENTS[offset] for offset in offsets])
    assert (tally.records, tally.found[0].records, tally.found[0].digest) == (5, 5, digest_of(TOPIC, CONTENTS[:5]))


# --- both compared ---

BATCH = HistoryBatch(
    batch=5,
    decision=6,
    records=3,
    digest=digest_text(digest_of(TOPIC, CONTENTS[:3])),
    ranges={PLACE: (10, 12)},
    topic_ids={TOPIC: "A"},
)
TWO = replace(BATCH, records=2, digest=digest_text(digest_of(TOPIC, CONTENTS[:2])))
LOGS = TopicLogs(topic_ids={TOPIC: "A"}, starts={PLACE: 0}, ends={PLACE: 14}, written={PLACE: 14})
ALL = (10, 11, 12)


@dataclass
class Sent:
    """A record of `CONTENTS` as librdkafka hands it over."""

    number: int
    at: int

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"%d" % self.number

    def headers(self) -> None:
        return None

    def offset(self) -> int:
        return self.at


@dataclass
class Reader:
    """Reads the records of `CONTENTS` at these offsets."""

    offsets: tuple[int, ...]

    def read(self, bounds: Ranges) -> Iterator[tuple[TopicPartition, list[Sent]]]:
        ((start, end),) = bounds.values()
        yield PLACE, [Sent(number, at) for number, at in enumerate(self.offsets) if start <= at < end]


def check(
    *offsets: int,
    claim: HistoryBatch = BATCH,
    logs: TopicLogs = LOGS,
    contents: list[bytes] = CONTENTS,
    hidden: str = "",
    skipped: tuple[tuple[int, int], ...] = (),
    digests: bool = True,
) -> tuple[BatchResult, Differences]:
    claims = Claims(claims=(replace(claim, gone=logs.replaced(claim), hidden=hidden),), skipped=skipped)
    tally = Tally(claims.claims)
    if offsets:
        tally.take(PLACE, offsets, contents[: len(offsets)])
    sides: dict[str, Any] = dict.fromkeys(("request", "snapshot", "database"))
    differences = Differences(10)
    evidence = Evidence(
        **sides,
        reader=cast("TopicReader", Reader(offsets)),
        claims=claims,
        logs=logs,
        differences=differences,
        ends=logs.ends,
        noted=[NotedLayout(AT, SinkLayout(table="t", records=digests))],
    )
    return judge(evidence, tally)[0], differences


def test_a_batch_that_is_there_as_it_was_written_is_the_same() -> None:
    result, differences = check(*ALL)
    assert (result.same, result.found, result.digest_same, result.checked) == (True, 3, True, True)
    assert differences.kept == []


@pytest.mark.parametrize(
    ("offsets", "how", "kinds", "told"),
    [
        ((10, 12), {}, ["batch_count"], ""),
        (ALL, {"contents": [*CONTENTS[:2], b"else"]}, ["digest"], "the digest of its records is"),
        ((11, 12), {"claim": TWO}, ["offsets"], "in which readers find records from offset 11 to 12"),
        (ALL, {"claim": replace(TWO, ranges={PLACE: (10, 12)})}, ["batch_count", "stranger"], "does not belong to"),
        (ALL, {"claim": replace(BATCH, records=1)}, ["batch_count", "stranger"], "2 of the 3 records"),
        ((), {"logs": TopicLogs()}, ["topic_deleted"], "does not exist now"),
        ((), {"logs": replace(LOGS, topic_ids={TOPIC: "B"})}, ["topic_remade"], "its id was A, and is now B"),
        ((), {"logs": replace(LOGS, starts={PLACE: 11})}, ["truncated"], "begins at offset 11"),
        ((), {"logs": replace(LOGS, written={PLACE: 12})}, ["truncated"], "ends at offset 12"),
        ((), {"logs": replace(LOGS, starts={})}, ["truncated"], "partition orders-0 does not exist"),
        # A topic without an id is taken for the same.
        (ALL, {"logs": replace(LOGS, topic_ids={TOPIC: ""})}, [], ""),
    ],
    ids=[
        "gone",
        "something else",
        "no beginning",
        "a stranger",
        "two strangers",
        "topic gone",
        "topic remade",
        "log's beginning",
        "log's end",
        "partition",
        "no id",
    ],
)
def test_what_differs_is_named(offsets: tuple[int, ...], how: dict[str, Any], kinds: list[str], told: str) -> None:
    result, differences = check(*offsets, **how)
    assert [each.kind for each in differences.kept] == kinds
    assert result.same is (not kinds)
    assert told in "".join(each.text for each in differences.kept[-1:])
    assert {each.batch for each in differences.kept} <= {5}
    if told == "does not belong to":
        assert (differences.kept[1].offset, differences.kept[1].last_offset) == (12, 12)


def test_a_digest_that_is_of_rows_too_is_not_compared() -> None:
    """Of a sink with a table whose rows go to no topic; how many records there are is compared all the same."""
    result, differences = check(*ALL, claim=replace(BATCH, digest="f" * 32), digests=False)
    assert (result.same, result.digest_same, differences.kept) == (True, None, [])
    assert "digests of batches" in str(differences.not_checked)
    assert [each.kind for each in check(10, 12, digests=False)[1].kept] == ["batch_count"]


@pytest.mark.parametrize(("claim", "hidden"), [(BATCH, "in doubt"), (replace(BATCH, unknown="in doubt"), "")])
def test_a_batch_that_is_hidden_or_cannot_be_known_is_not_compared(claim: HistoryBatch, hidden: str) -> None:
    result, differences = check(claim=claim, hidden=hidden)
    assert (result.checked, result.found, differences.kept) == (False, None, [])
    assert [part.why for part in differences.not_checked] == ["in doubt"]


def test_of_a_compacted_topic_neither_count_nor_digest_is_compared() -> None:
    result, differences = check(12, logs=replace(LOGS, compacted=frozenset({TOPIC})))
    assert (result.same, differences.kept) == (True, [])
    assert "compaction" in differences.not_checked[0].why


def test_records_after_a_batch_are_foreign_and_those_before_all_may_be_older() -> None:
    _, differences = check(3, *ALL, 13, contents=[b"", *CONTENTS[:3], b""])
    (gap,) = differences.kept
    assert (gap.kind, gap.offset, gap.topic) == ("gap", 13, TOPIC)
    assert "before offset 4" in differences.not_checked[0].what
    _, differences = check(*ALL, skipped=((2, 5),))
    assert [(each.kind, each.batch) for each in differences.kept] == [("gap", 3)]


KNOWN = [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("scope", "batches", "text"),
    [
        (Scope(), {3, 4, 5, 6}, "all"),
        (Scope(since=5), {5, 6}, "since batch 5"),
        (Scope(last=2), {5, 6}, "the last 2 batches"),
        (Scope(last=9), {3, 4, 5, 6}, "the last 9 batches"),
        (Scope(batch=4), {4}, "batch 4"),
    ],
)
def test_a_scope_names_batches(scope: Scope, batches: set[int], text: str) -> None:
    assert scope.of(KNOWN) == batches
    assert str(scope) == text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"since": 3, "batch": 4}, "cannot be combined with batch"),
        ({"last": 0}, "at least 1"),
        ({"since": -1}, "at least 0"),
        ({"batch": True}, "whole number"),
    ],
)
def test_a_scope_that_is_none_is_refused(given: dict[str, int], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Scope(**given)


@pytest.mark.parametrize(
    ("scope", "known", "told"),
    [
        (Scope(since=2), KNOWN, "has batches 3 to 6"),
        (Scope(batch=7), KNOWN, "has batches 3 to 6"),
        (Scope(last=1), [], "is empty"),
    ],
)
def test_a_batch_that_the_history_does_not_know_is_refused(scope: Scope, known: list[int], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        scope.of(known)
    assert Scope().of(known) == {*known}
