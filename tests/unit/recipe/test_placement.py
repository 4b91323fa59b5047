"""What a batch id means with the state row; batches that did not come, are lost, or are no longer in Kafka."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from spark_2pc_sink.choices import Facts, HaltCause
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import BatchRange, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.recipe.kept_records import (
    LogsView,
    WrittenRecords,
    find_lost_records,
    missing_id_topics,
    was_remade,
)
from spark_2pc_sink.recipe.lost_batches import (
    SHOWN_PARTITIONS_MAX,
    SHOWN_TRANSACTIONS_MAX,
    CommittedTransaction,
    FoundCommits,
    LostBatches,
)
from spark_2pc_sink.recipe.placement import (
    Placement,
    RunRecord,
    missing_batches,
    place_batch,
    place_beyond,
    place_explicit_id,
)
from spark_2pc_sink.recipe.resolve import Halt, RowStatus

ROW_IDS = (None, 0, 1, 5)
BATCH_IDS = (0, 1, 2, 4, 5, 6, 7)


def expected(status: RowStatus, row_id: int | None, batch_id: int) -> Placement | HaltCause:
    if status is RowStatus.OWED:
        return Placement.RESEND if row_id == batch_id else HaltCause.OTHER_BATCH_OWED
    if row_id == batch_id:
        return Placement.SKIP
    follows = batch_id == 0 if row_id is None else batch_id == row_id + 1
    if follows:
        return Placement.RUN
    if row_id is None:
        return HaltCause.NOT_THE_FIRST_BATCH
    return HaltCause.BATCHES_RESTARTED if batch_id == 0 else HaltCause.GAP


def halted(status: RowStatus, row_id: int | None, batch_id: int) -> Halt:
    placed = place_batch(status=status, row_batch_id=row_id, batch_id=batch_id)
    assert isinstance(placed, Halt)
    return placed


def test_every_combination() -> None:
    """A1 (replay is a no-op), A8 (wiped checkpoint), A11, B8 (old savepoint): a gap is never skipped silently."""
    space = itertools.product((RowStatus.NONE, RowStatus.DONE, RowStatus.OWED), ROW_IDS, BATCH_IDS)
    for status, row_id, batch_id in space:
        placed = place_batch(status=status, row_batch_id=row_id, batch_id=batch_id)
        answer = placed.cause if isinstance(placed, Halt) else placed
        assert answer is expected(status, row_id, batch_id), (status, row_id, batch_id)


@pytest.mark.parametrize(
    ("row_batch_id", "batch_id", "reason", "facts"),
    [
        (None, 4, "the first batch is 4, and the state row has none", {"batches": "0..3"}),
        (2, 4, "batch 4 follows batch 2", {"batches": "3", "known": {"row older"}}),
        (7, 4, "the checkpoint is older than the row", {"known": {"checkpoint older"}}),
        (5, 0, "batch ids of this query start at 0 again", {}),
    ],
)
def test_a_halt_names_both_ids_and_the_batches_that_are_passed_over(
    row_batch_id: int | None, batch_id: int, reason: str, facts: dict[str, object]
) -> None:
    """A8, A28, D8: who passes batches over sees which, and what becomes of the one that came."""
    placed = halted(RowStatus.DONE, row_batch_id, batch_id)
    assert reason in placed.reason
    assert {name: getattr(placed.facts, name) for name in facts} == facts
    assert placed.lacking is ("batches" in facts)
    more = placed.facts.more.get("pass_over", "")
    assert (f"if both sides have batch {batch_id} too" in more) is placed.lacking


@pytest.mark.parametrize(("row_id", "owed"), [(3, "owed batch 3"), (None, "another query")])
def test_an_owed_batch_is_named(row_id: int | None, owed: str) -> None:
    placed = halted(RowStatus.OWED, row_id, 4)
    assert owed in placed.reason
    assert placed.facts.batch == row_id


def test_a_decided_row_is_refused() -> None:
    """Recovery comes first: beside an undecided outcome no batch can be placed."""
    with pytest.raises(AssertionError, match="recovered"):
        place_batch(status=RowStatus.DECIDED, row_batch_id=3, batch_id=3)


@pytest.mark.parametrize(
    ("row_batch_id", "batch_id", "noted", "placed"),
    [
        (None, 0, False, Placement.RUN),
        (None, 20260131, False, Placement.RUN),
        (7, 8, False, Placement.RUN),
        (7, 70, False, Placement.RUN),
        (7, 7, False, Placement.SKIP),
        (7, 3, True, Placement.SKIP),
        (7, 3, False, None),
    ],
)
def test_numbers_by_hand_ascend_and_may_leave_others_out(
    row_batch_id: int | None, batch_id: int, noted: bool, placed: Placement | None
) -> None:
    """An id that the row has passed is skipped where the history has it: a restarted loop begins again."""
    found = place_explicit_id(status=RowStatus.DONE, row_batch_id=row_batch_id, batch_id=batch_id, noted=noted)
    assert found is placed


def test_beside_an_owed_batch_only_that_one_is_written_by_hand() -> None:
    """Those before it, which both sides have, are skipped."""
    owed = RowStatus.OWED
    assert place_explicit_id(status=owed, row_batch_id=7, batch_id=7, noted=False) is Placement.RESEND
    assert place_explicit_id(status=owed, row_batch_id=7, batch_id=3, noted=True) is Placement.SKIP
    for batch_id in (3, 8):
        halt = place_explicit_id(status=owed, row_batch_id=7, batch_id=batch_id, noted=False)
        assert isinstance(halt, Halt)
        assert halt.cause is HaltCause.OTHER_BATCH_OWED
    with pytest.raises(AssertionError, match="recovered"):
        place_explicit_id(status=RowStatus.DECIDED, row_batch_id=7, batch_id=7, noted=False)


HALT = Halt(HaltCause.GAP, "batch 5 follows batch 2")
MISSING = range(3, 5)


@pytest.mark.parametrize(
    ("status", "row_batch_id", "batch_id", "missing"),
    [
        (RowStatus.NONE, None, 2, [0, 1]),
        (RowStatus.NONE, None, 0, []),
        (RowStatus.DONE, 2, 5, [3, 4]),
        (RowStatus.DONE, 2, 3, []),
        (RowStatus.DONE, 2, 2, []),
        (RowStatus.DONE, 7, 2, []),
        (RowStatus.OWED, 2, 5, []),
    ],
)
def test_which_batches_are_missing(
    status: RowStatus, row_batch_id: int | None, batch_id: int, missing: list[int]
) -> None:
    assert [*missing_batches(status=status, row_batch_id=row_batch_id, batch_id=batch_id)] == missing


def subsets() -> list[frozenset[int]]:
    return [frozenset(chosen) for size in range(3) for chosen in itertools.combinations(MISSING, size)]


@pytest.mark.parametrize("finished", subsets(), ids=sorted)
@pytest.mark.parametrize("empty", subsets(), ids=sorted)
def test_every_combination_of_what_spark_shows(finished: frozenset[int], empty: frozenset[int]) -> None:
    """A22: a batch that may have had rows is never passed over."""
    placed = place_beyond(MISSING, RunRecord(finished, empty), HALT)
    if empty == {3, 4}:
        assert placed is Placement.RUN
        return
    assert isinstance(placed, Halt)
    doubtful = min({3, 4} - empty)
    assert f"your function did not call the sink for batch {doubtful}" in placed.reason
    if finished == {3, 4}:
        assert placed.cause is HaltCause.NOT_HANDED_OVER
        assert placed.reason.startswith("your function did not call the sink for batch")
        assert placed.facts.batches == "3..4"
    else:
        assert (placed.cause, placed.facts) == (HALT.cause, HALT.facts)
        assert placed.reason.startswith(HALT.reason)


LOST_HALT = Halt(HaltCause.DATABASE_BEHIND, "the database is behind Kafka")


def transaction(number: int, partitions: int = 1) -> CommittedTransaction:
    at = {TopicPartition("orders", each): (100 * number, 100 * number + 19) for each in range(partitions)}
    return CommittedTransaction(ProducerIdAndEpoch(7, number), 20 * partitions, at)


def lost(count: int, *, came: int | None = None, unread: tuple[str, ...] = ()) -> LostBatches:
    found = FoundCommits(tuple(transaction(number) for number in range(1, count + 1)), unread)
    return LostBatches(41, found, came)


def test_a_halt_names_batches_offsets_and_counts() -> None:
    """C5: ids count from the row's batch on, and may be later ones."""
    reason = lost(2).explain(LOST_HALT).reason
    assert reason.startswith("the database is behind Kafka. Kafka has at least 2 batches that the database lacks")
    assert "batch 41: 20 records of 7:1 at offsets orders-0 100 to 119" in reason
    assert "batch 42: 20 records of 7:2 at offsets orders-0 200 to 219" in reason
    assert "or later ones, if batches" in reason


@pytest.mark.parametrize(("count", "named"), [(3, "41..43"), (0, "FIRST..LAST")])
def test_the_choices_name_the_lost_batches(count: int, named: str) -> None:
    """C5: as far as the logs show them; what was not read is said."""
    explained = lost(count, unread=("orders-1 (deleted)",)).explain(LOST_HALT)
    assert explained.facts.batches == named
    assert explained.facts.known == {"lost batches"}
    assert ("show no batch that the database lacks" in explained.reason) is not bool(count)
    assert "Not read, so that more may be missing: orders-1 (deleted)" in explained.reason


def test_a_gap_names_the_batch_that_came_if_the_logs_show_that_kafka_has_it() -> None:
    """C5: it must not be sent again."""
    gap = Halt(HaltCause.GAP, "batch 44 follows batch 40", Facts(batches="41..43"), lacking=True)
    explained = lost(3, came=44).explain(gap)
    assert explained.facts == gap.facts
    assert "at least 3 batches" in explained.reason
    all_of_them = lost(4, came=44).explain(gap).facts
    assert all_of_them.batches == "41..44"
    assert "batch 44 too, which is then skipped" in all_of_them.more["pass_over"]


@pytest.mark.parametrize(
    ("count", "came", "named"),
    [
        (0, None, "none"),
        (0, None, "41..50"),
        (3, None, "41..43"),
        (3, None, "41..50"),
        (0, 44, "41..43"),
        (0, 44, "41..44"),
        (3, 44, "41..44"),
        (4, 44, "41..44"),
    ],
)
def test_names_that_are_taken(count: int, came: int | None, named: str) -> None:
    """At least what the logs show: batches without records lie between them."""
    lost(count, came=came).check(BatchRange.parse(named))


@pytest.mark.parametrize(
    ("count", "came", "named", "rule"),
    [
        (3, None, "none", "show 3 committed transactions"),
        (0, 44, "none", "are missing in the state row"),
        (3, None, "40..43", "must begin with batch 41"),
        (3, None, "42..44", "must begin with batch 41"),
        (3, None, "41..42", "at least 3 batches"),
        (4, 44, "41..43", "at least 4 batches"),
        (0, 44, "41..42", "must end with batch 43 or 44"),
        (0, 44, "41..45", "must end with batch 43 or 44"),
    ],
)
def test_names_that_are_refused(count: int, came: int | None, named: str, rule: str) -> None:
    """C5: with the right ones."""
    with pytest.raises(ConfigurationError, match=rule) as raised:
        lost(count, came=came).check(BatchRange.parse(named))
    suggested = lost(count, came=came).suggested
    assert suggested is not None
    assert str(suggested) in raised.value.remedy


def test_messages_stay_short() -> None:
    found = FoundCommits(tuple(transaction(each, partitions=50) for each in range(1, 31)))
    reason = LostBatches(41, found).explain(LOST_HALT).reason
    assert f"and {30 - SHOWN_TRANSACTIONS_MAX} more" in reason
    assert f"{50 - SHOWN_PARTITIONS_MAX} more partitions" in reason


ORDERS, AUDIT = TopicPartition("orders", 0), TopicPartition("audit", 2)
WRITTEN = WrittenRecords(5, {ORDERS: (10, 19), AUDIT: (3, 3)}, {"orders": "old-orders", "audit": "old-audit"})
KEPT = LogsView(dict(WRITTEN.topic_ids), {ORDERS: 20, AUDIT: 4}, {ORDERS: 10, AUDIT: 0})


def lost_records(logs: LogsView, written: WrittenRecords = WRITTEN, *, committed: bool = True) -> Halt:
    found = find_lost_records(written, logs, committed=committed)
    assert found is not None
    assert found.cause is HaltCause.TOPIC_REMADE
    return found


@pytest.mark.parametrize("committed", [False, True])
def test_a_batch_that_is_there_is_not_lost(committed: bool) -> None:
    """B18: the same topics, and logs that end behind the batch; it matters to nobody what came behind it."""
    for logs in (KEPT, replace(KEPT, ends={ORDERS: 1000, AUDIT: 5}), replace(KEPT, starts={})):
        assert find_lost_records(WRITTEN, logs, committed=committed) is None
        assert not was_remade(WRITTEN, logs)


def test_a_topic_that_was_made_anew_is_told_by_its_id() -> None:
    """B18: also where the new one is longer than the old one was. Both ids, the batch and its offsets are named."""
    logs = replace(KEPT, topic_ids={"orders": "new-orders", "audit": "old-audit"}, ends={ORDERS: 1000, AUDIT: 4})
    assert was_remade(WRITTEN, logs)
    halt = lost_records(logs)
    for text in (
        "batch 5",
        "'orders' was deleted and created again",
        "old-orders",
        "new-orders",
        "10 to 19 of orders-0",
    ):
        assert text in halt.reason
    assert "audit" not in halt.reason


def test_a_topic_that_is_gone_is_to_be_made_before_the_job_starts() -> None:
    """B18: its id is named where it had one."""
    logs = LogsView({"audit": "old-audit"}, {AUDIT: 4})
    halt = lost_records(logs)
    assert "topic 'orders' was deleted (it had the id old-orders)" in halt.reason
    assert "create orders first" in halt.facts.more["accept_replay"]
    unknown = replace(WRITTEN, topic_ids={})
    assert "topic 'orders' was deleted, with offsets 10 to 19 of orders-0" in lost_records(logs, unknown).reason
    assert not was_remade(unknown, logs)


def test_a_log_that_has_lost_its_tail_or_a_partition() -> None:
    """B15, B18: the topic is the same."""
    assert "the log of orders-0 ends at offset 19" in lost_records(replace(KEPT, ends={ORDERS: 19, AUDIT: 4})).reason
    assert "partition audit-2 no longer exists" in lost_records(replace(KEPT, ends={ORDERS: 20})).reason


def test_what_was_deleted_before_the_commit_was_never_read() -> None:
    """B18: afterwards it is retention, as with any record."""
    logs = replace(KEPT, starts={ORDERS: 11, AUDIT: 3})
    assert "begins at offset 11" in lost_records(logs, committed=False).reason
    assert find_lost_records(WRITTEN, logs, committed=True) is None


@pytest.mark.parametrize(
    ("was", "now"), [({}, {"orders": "new"}), ({"orders": ""}, {"orders": "new"}), ({"orders": "old"}, {"orders": ""})]
)
def test_without_an_id_a_topic_is_told_by_its_log_alone(was: dict[str, str], now: dict[str, str]) -> None:
    """D7: the batch was written, or is looked for, on a broker that has no ids."""
    written = WrittenRecords(5, {ORDERS: (10, 19)}, was)
    logs = LogsView(now, {ORDERS: 20})
    assert find_lost_records(written, logs, committed=True) is None
    assert "ends at offset 4" in lost_records(replace(logs, ends={ORDERS: 4}), written).reason


def test_topics_that_will_have_the_batch_twice_are_named() -> None:
    """By the choice that sends it again; none where no reader could see the records yet."""
    logs = replace(KEPT, topic_ids={"orders": "new-orders", "audit": "old-audit"})
    assert lost_records(logs).facts.batch == 5
    assert "audit will have all of it twice" in lost_records(logs).facts.more["accept_replay"]
    assert lost_records(logs, committed=False).facts.more == {"accept_replay": ""}


def test_topics_without_an_id_are_known() -> None:
    assert missing_id_topics(WRITTEN) == []
    assert missing_id_topics(replace(WRITTEN, topic_ids={"orders": "", "other": "x"})) == ["audit", "orders"]


def test_a_message_names_a_few_partitions_only() -> None:
    many = WrittenRecords(5, {TopicPartition("orders", number): (0, 9) for number in range(100)})
    assert "and 92 more partitions" in lost_records(LogsView({}, {}), many).reason
