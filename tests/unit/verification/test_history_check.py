"""The check of a history: what of a batch the topics lack, or have too much."""

from __future__ import annotations

from dataclasses import replace

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.history import Claim, Claims, HistoryCheck, Logs, Tally, gone_claims
from spark_2pc_sink.verification.record_digest import content_of, digest_of, digest_text
from spark_2pc_sink.verification.report import BatchResult, Differences

PLACE = TopicPartition("orders", 0)
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
