"""What a halt says of batches that the database lacks, and which names it takes for them."""

from __future__ import annotations

import pytest

from spark_2pc_sink.choices import Facts, HaltCause
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import BatchRange, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.recipe.lost_batches import (
    SHOWN_PARTITIONS_MAX,
    SHOWN_TRANSACTIONS_MAX,
    CommittedTransaction,
    FoundCommits,
    LostBatches,
)
from spark_2pc_sink.recipe.resolve import Halt

HALT = Halt(HaltCause.DATABASE_BEHIND, "the database is behind Kafka")


def transaction(number: int, partitions: int = 1) -> CommittedTransaction:
    at = {TopicPartition("orders", each): (100 * number, 100 * number + 19) for each in range(partitions)}
    return CommittedTransaction(ProducerIdAndEpoch(7, number), 20 * partitions, at)


def lost(count: int, *, came: int | None = None, unread: tuple[str, ...] = ()) -> LostBatches:
    found = FoundCommits(tuple(transaction(number) for number in range(1, count + 1)), unread)
    return LostBatches(41, found, came)


def test_a_halt_names_batches_offsets_and_counts() -> None:
    """C5: ids count from the row's batch on, and may be later ones."""
    reason = lost(2).explain(HALT).reason
    assert reason.startswith("the database is behind Kafka. Kafka has at least 2 batches that the database lacks")
    assert "batch 41: 20 records of 7:1 at offsets orders-0 100 to 119" in reason
    assert "batch 42: 20 records of 7:2 at offsets orders-0 200 to 219" in reason
    assert "or later ones, if batches" in reason


@pytest.mark.parametrize(("count", "named"), [(3, "41..43"), (0, "FIRST..LAST")])
def test_the_choices_name_the_lost_batches(count: int, named: str) -> None:
    """C5: as far as the logs show them; what was not read is said."""
    explained = lost(count, unread=("orders-1 (deleted)",)).explain(HALT)
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
    reason = LostBatches(41, found).explain(HALT).reason
    assert f"and {30 - SHOWN_TRANSACTIONS_MAX} more" in reason
    assert f"{50 - SHOWN_PARTITIONS_MAX} more partitions" in reason
