"""Recovery of a database that lacks what Kafka has: it names the batches, and goes on only without those named (C5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jdbc_state import StateRow
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError, HaltCause
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.error_policy import kafka_error
from spark_2pc_sink.kafka.log_reader import Marker
from spark_2pc_sink.recipe.lost_batches import CommittedTransaction, FoundCommits
from spark_2pc_sink.recovery.report import Action, RecoveryReport
from tests.harness.halts import halts
from tests.unit.recovery.test_recovery import ID, QUERY, Sides, decided, gone_by

PARTITION = TopicPartition("orders", 0)
LOST = FoundCommits(
    tuple(
        CommittedTransaction(ProducerIdAndEpoch(0, each), each, {PARTITION: (each * 10, each * 10 + 5)})
        for each in (1, 2)
    )
)


def restore(sides: Sides, row: StateRow) -> None:
    """Put an older row in place of the newest."""
    sides.store._rows[row.transactional_id] = row


def restored() -> tuple[Sides, StateRow]:
    """Batches 0 to 2 in Kafka, and a row that says batch 0."""
    sides = Sides()
    pair = sides.start()
    rows = []
    for batch_id in range(3):
        sides.decide(pair, batch_id=batch_id)
        settled = str(sides.kafka.end(pair, commit=True).producer)
        rows.append(sides.store.mark_done(ID, sides.row().generation, settled))
        assert sides.kafka.pair is not None
        pair = sides.kafka.pair
    restore(sides, rows[0])
    sides.kafka.found = LOST
    return sides, sides.row()


def recover(sides: Sides, accept_loss: str | None = None, *, query_id: str | None = QUERY) -> RecoveryReport:
    recovery = sides.recovery(adopt=True, accept_loss=accept_loss)
    return recovery.run(query_id=query_id, run_id=None if query_id is None else "run-2").report


def test_the_halt_names_the_batches_and_adopting_alone_does_not_pass_it() -> None:
    """C5: Kafka is left as it is. It asks from the row's last offset on, and for what is newer than the row's pair."""
    sides, row = restored()
    state = sides.kafka.state
    for _ in range(2):
        with halts(
            HaltCause.DATABASE_BEHIND, match=r"at least 2 batches.*batch 1: 1 record of 0:1 at offsets"
        ) as raised:
            recover(sides)
        assert raised.value.remedies[1].startswith("spark-2pc verify --transactional-id ")
        assert "--adopt --accept-loss 1..2" in raised.value.remedies[-1]
    assert (sides.kafka.state, sides.row().batch_id) == (state, 0)
    query, topics = sides.kafka.queries[0]
    assert (query.after, query.newer_than, topics) == ({PARTITION: 7}, ProducerIdAndEpoch(0, 0), ["orders"])
    assert query.producer_ids == {0}
    assert row.settled_at is not None
    assert query.since_ms == int(row.settled_at.timestamp() * 1000) - 600_000
    looked = sides.recovery(adopt=True).diagnosis.dry_run()
    assert looked.cause is HaltCause.DATABASE_BEHIND
    assert "batch 2: 2 records" in looked.reason
    assert sides.recovery(adopt=True, accept_loss="1..2").diagnosis.dry_run().actions == (
        Action("accept_loss", "would continue without batches 1..2"),
    )
    assert (sides.kafka.state, sides.row().batch_id) == (state, 0)


@pytest.mark.parametrize("query_id", [QUERY, None], ids=["sink", "command line"])
def test_named_batches_are_passed_over(query_id: str | None) -> None:
    """C5: the row says the last of them, any replay of it will do, and Kafka's pair is known. Twice changes nothing."""
    sides, _ = restored()
    with pytest.raises(ConfigurationError, match=r"must begin with batch 1"):
        recover(sides, "2..2", query_id=query_id)
    assert (sides.row().batch_id, sides.kafka.state) == (0, "CompleteCommit")
    report = recover(sides, "1..2", query_id=query_id)
    assert report.settled
    assert str(report.actions[0]).startswith("continued without batches 1..2")
    row = sides.row()
    assert (row.status, row.batch_id, row.digest, row.record_count, row.settled) == ("done", 2, "", 2, "0:3")
    assert row.kafka_offsets == {"orders-0": (20, 25)}
    sides.kafka.found = FoundCommits()
    assert recover(sides, "1..2", query_id=query_id).actions == ()


def test_a_batch_that_kafka_is_owed_is_not_given_up_as_lost_to_the_database() -> None:
    """C5, B28: the database has it, also where no log can be read: `drop` is the word for giving it up."""
    sides, pair = decided()
    sides.kafka.end(pair, commit=False)
    sides.kafka.found = FoundCommits(unread=("orders",))
    report = recover(sides, "0", query_id=None)
    assert (report.settled, [action.kind for action in report.actions]) == (False, ["note_owed"])
    assert (sides.row().status, sides.row().batch_id) == ("owed", 0)


@pytest.mark.parametrize("ongoing", [False, True], ids=["empty", "ongoing"])
def test_a_loss_that_kafka_no_longer_shows_is_found_in_the_logs(ongoing: bool) -> None:
    """C5: a recovery has taken a new pair since; else it would end green, and the job perhaps write a batch twice."""
    sides, _ = restored()
    pair = sides.kafka.init_producer_id().producer
    if ongoing:
        sides.kafka.produce(pair)
    for _ in range(2):
        with halts(HaltCause.DATABASE_BEHIND, match="at least 2 batches"):
            recover(sides, query_id=None)
    assert sides.kafka.state == ("Ongoing" if ongoing else "Empty")
    assert recover(sides, "1..2", query_id=None).settled
    assert (sides.row().batch_id, sides.kafka.state) == (2, "Empty")


@pytest.mark.parametrize("marker", [Marker.COMMIT, Marker.ABORT])
def test_a_log_that_tells_of_the_row_shows_what_came_after_it(marker: Marker) -> None:
    """C5: a decided row of a backup could be true, and its own end is in the log; the commits behind it are, too."""
    sides, _ = gone_by()
    sides.kafka.logs = {PARTITION: lambda _limit_ms: marker}
    sides.kafka.found = LOST
    for _ in range(2):
        with halts(HaltCause.DATABASE_BEHIND, match="at least 2 batches"):
            recover(sides)
    assert sides.row().status == ("decided" if marker is Marker.COMMIT else "owed")
    recover(sides, "1..2" if marker is Marker.COMMIT else "0..1")
    assert sides.row().status == "done"


def test_topics_that_are_not_known_or_cannot_be_read_are_said() -> None:
    sides, row = restored()
    restore(sides, replace(row, kafka_offsets={}, topic_ids={}))
    with halts(HaltCause.DATABASE_BEHIND, match="the state row names no topic"):
        recover(sides)
    restore(sides, row)

    def refuse(name: str) -> None:
        if name == "find_commits":
            raise kafka_error("Metadata", Code.TOPIC_AUTHORIZATION_FAILED)

    sides.kafka.before = refuse
    with halts(HaltCause.DATABASE_BEHIND, match=r"Not read.*orders .*Metadata answered TOPIC_AUTHORIZATION_FAILED"):
        recover(sides)
