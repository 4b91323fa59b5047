"""Whether Kafka still has the records of a decided batch, over what topics and logs may have become."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.recipe.kept_records import (
    LogsView,
    WrittenRecords,
    find_lost_records,
    missing_id_topics,
    was_remade,
)
from spark_2pc_sink.recipe.resolve import Halt

ORDERS, AUDIT = TopicPartition("orders", 0), TopicPartition("audit", 2)
WRITTEN = WrittenRecords(5, {ORDERS: (10, 19), AUDIT: (3, 3)}, {"orders": "old-orders", "audit": "old-audit"})
KEPT = LogsView(dict(WRITTEN.topic_ids), {ORDERS: 20, AUDIT: 4}, {ORDERS: 10, AUDIT: 0})


def lost(logs: LogsView, written: WrittenRecords = WRITTEN, *, committed: bool = True) -> Halt:
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
    halt = lost(logs)
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
    halt = lost(logs)
    assert "topic 'orders' was deleted (it had the id old-orders)" in halt.reason
    assert "create orders first" in halt.facts.more["accept_replay"]
    unknown = replace(WRITTEN, topic_ids={})
    assert "topic 'orders' was deleted, with offsets 10 to 19 of orders-0" in lost(logs, unknown).reason
    assert not was_remade(unknown, logs)


def test_a_log_that_has_lost_its_tail_or_a_partition() -> None:
    """B15, B18: the topic is the same."""
    assert "the log of orders-0 ends at offset 19" in lost(replace(KEPT, ends={ORDERS: 19, AUDIT: 4})).reason
    assert "partition audit-2 no longer exists" in lost(replace(KEPT, ends={ORDERS: 20})).reason


def test_what_was_deleted_before_the_commit_was_never_read() -> None:
    """B18: afterwards it is retention, as with any record."""
    logs = replace(KEPT, starts={ORDERS: 11, AUDIT: 3})
    assert "begins at offset 11" in lost(logs, committed=False).reason
    assert find_lost_records(WRITTEN, logs, committed=True) is None


@pytest.mark.parametrize(
    ("was", "now"), [({}, {"orders": "new"}), ({"orders": ""}, {"orders": "new"}), ({"orders": "old"}, {"orders": ""})]
)
def test_without_an_id_a_topic_is_told_by_its_log_alone(was: dict[str, str], now: dict[str, str]) -> None:
    """D7: the batch was written, or is looked for, on a broker that has no ids."""
    written = WrittenRecords(5, {ORDERS: (10, 19)}, was)
    logs = LogsView(now, {ORDERS: 20})
    assert find_lost_records(written, logs, committed=True) is None
    assert "ends at offset 4" in lost(replace(logs, ends={ORDERS: 4}), written).reason


def test_topics_that_will_have_the_batch_twice_are_named() -> None:
    """By the choice that sends it again; none where no reader could see the records yet."""
    logs = replace(KEPT, topic_ids={"orders": "new-orders", "audit": "old-audit"})
    assert lost(logs).facts.batch == 5
    assert "audit will have all of it twice" in lost(logs).facts.more["accept_replay"]
    assert lost(logs, committed=False).facts.more == {"accept_replay": ""}


def test_topics_without_an_id_are_known() -> None:
    assert missing_id_topics(WRITTEN) == []
    assert missing_id_topics(replace(WRITTEN, topic_ids={"orders": "", "other": "x"})) == ["audit", "orders"]


def test_a_message_names_a_few_partitions_only() -> None:
    many = WrittenRecords(5, {TopicPartition("orders", number): (0, 9) for number in range(100)})
    assert "those of 92 more partitions" in lost(LogsView({}, {}), many).reason
