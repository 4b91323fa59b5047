"""Recovery where one side has lost something, which it names, and goes on only as a person says.

The database lacks what Kafka has (C5), Kafka has lost a decided batch's records (B18), or the state row is gone, with
its history or without (C13, C14).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from jdbc_state import StateRow
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError, HaltCause, KafkaTimeoutError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.error_policy import kafka_error
from spark_2pc_sink.kafka.log_reader import Marker
from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.recipe.lost_batches import CommittedTransaction, FoundCommits
from spark_2pc_sink.recipe.resolve import OpenTransactionEnd, RowStatus
from spark_2pc_sink.recovery.api import recover
from spark_2pc_sink.recovery.report import Action, RecoveryReport
from spark_2pc_sink.reference.coordinator.states import Profile
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


def go_on(sides: Sides, accept_loss: str | None = None, *, query_id: str | None = QUERY) -> RecoveryReport:
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
            go_on(sides)
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
    asked = len(sides.kafka.queries)
    assert sides.recovery(adopt=True, accept_loss="1..2").diagnosis.dry_run().actions == (
        Action("accept_loss", "would continue without batches 1..2"),
    )
    assert len(sides.kafka.queries) == asked + 1
    assert (sides.kafka.state, sides.row().batch_id) == (state, 0)


@pytest.mark.parametrize("query_id", [QUERY, None], ids=["sink", "command line"])
def test_named_batches_are_passed_over(query_id: str | None) -> None:
    """C5: the row says the last of them, any replay of it will do, and Kafka's pair is known. Twice changes nothing."""
    sides, _ = restored()
    with pytest.raises(ConfigurationError, match=r"must begin with batch 1"):
        go_on(sides, "2..2", query_id=query_id)
    assert (sides.row().batch_id, sides.kafka.state) == (0, "CompleteCommit")
    report = go_on(sides, "1..2", query_id=query_id)
    assert report.settled
    assert str(report.actions[0]).startswith("continued without batches 1..2")
    row = sides.row()
    assert (row.status, row.batch_id, row.digest, row.record_count, row.settled) == ("done", 2, "", 2, "0:3")
    assert row.kafka_offsets == {"orders-0": (20, 25)}
    sides.kafka.found = FoundCommits()
    assert go_on(sides, "1..2", query_id=query_id).actions == ()


def test_a_batch_that_kafka_is_owed_is_not_given_up_as_lost_to_the_database() -> None:
    """C5, B28: the database has it, also where no log can be read: `drop` is the word for giving it up."""
    sides, pair = decided()
    sides.kafka.end(pair, commit=False)
    sides.kafka.found = FoundCommits(unread=("orders",))
    report = go_on(sides, "0", query_id=None)
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
            go_on(sides, query_id=None)
    assert sides.kafka.state == ("Ongoing" if ongoing else "Empty")
    assert go_on(sides, "1..2", query_id=None).settled
    assert (sides.row().batch_id, sides.kafka.state) == (2, "Empty")


@pytest.mark.parametrize("marker", [Marker.COMMIT, Marker.ABORT])
def test_a_log_that_tells_of_the_row_shows_what_came_after_it(marker: Marker) -> None:
    """C5: a decided row of a backup could be true, and its own end is in the log; the commits behind it are, too."""
    sides, _ = gone_by()
    sides.kafka.logs = {PARTITION: lambda _limit_ms: marker}
    sides.kafka.found = LOST
    for _ in range(2):
        with halts(HaltCause.DATABASE_BEHIND, match="at least 2 batches"):
            go_on(sides)
    assert sides.row().status == ("decided" if marker is Marker.COMMIT else "owed")
    go_on(sides, "1..2" if marker is Marker.COMMIT else "0..1")
    assert sides.row().status == "done"


def test_topics_that_are_not_known_or_cannot_be_read_are_said() -> None:
    sides, row = restored()
    restore(sides, replace(row, kafka_offsets={}, topic_ids={}))
    with halts(HaltCause.DATABASE_BEHIND, match="the state row names no topic"):
        go_on(sides)
    restore(sides, row)

    def refuse(name: str) -> None:
        if name == "find_commits":
            raise kafka_error("Metadata", Code.TOPIC_AUTHORIZATION_FAILED)

    sides.kafka.before = refuse
    with halts(HaltCause.DATABASE_BEHIND, match=r"Not read.*orders .*Metadata answered TOPIC_AUTHORIZATION_FAILED"):
        go_on(sides)


def placed(*, ended: bool = False) -> Sides:
    """A batch at offsets 5 to 7, decided, and open in Kafka or committed."""
    sides = Sides()
    sides.kafka.topic_ids = {"orders": "old-orders", "audit": "old-audit"}
    pair = sides.start()
    sides.decide(pair)
    if ended:
        sides.kafka.end(pair, commit=True)
    return sides


def make_anew(sides: Sides) -> None:
    sides.kafka.topic_ids["orders"] = "new-orders"


def delete(sides: Sides) -> None:
    sides.kafka.gone.add("orders")


@pytest.mark.parametrize("lose", [make_anew, delete])
@pytest.mark.parametrize("ended", [False, True], ids=["open", "committed"])
def test_a_batch_whose_records_are_gone_halts_until_it_is_decided(lose: Callable[[Sides], None], ended: bool) -> None:
    """B18: before COMMIT, and before a commit is noted. A look says the same, and nothing is changed."""
    sides = placed(ended=ended)
    lose(sides)
    state, row = sides.kafka.state, sides.row()
    for _ in range(2):
        with halts(HaltCause.TOPIC_REMADE, match="batch 0"):
            sides.recovery().run(query_id="query-1", run_id="run")
        assert sides.kafka.state == state
        assert (sides.row().status, sides.row().kafka_offsets) == ("decided", row.kafka_offsets)
    looked = sides.recovery().diagnosis.dry_run()
    assert (looked.settled, looked.cause) == (False, HaltCause.TOPIC_REMADE)


@pytest.mark.parametrize("ended", [False, True], ids=["open", "committed"])
@pytest.mark.parametrize(
    ("decision", "status"), [(OperatorDecision.ACCEPT_REPLAY, "owed"), (OperatorDecision.DROP, "done")]
)
def test_what_a_person_decides_is_carried_out(ended: bool, decision: OperatorDecision, status: str) -> None:
    """B18: sent again or given up; and what is left of it in Kafka is no loss of the database afterwards."""
    sides = placed(ended=ended)
    make_anew(sides)
    report = sides.recovery(decision=decision, batch_id=0).run(query_id=None, run_id=None).report
    assert (report.settled, sides.row().status) == (status == "done", status)
    assert sides.kafka.state == "Empty"
    assert sides.kafka.committed == ([ProducerIdAndEpoch(0, 0)] if ended else [])
    sides.recovery().run(query_id="query-1", run_id="run-2")
    assert sides.row().status == status


def test_records_that_no_reader_could_see_are_lost_only_before_the_commit() -> None:
    """B18: the log's start has moved behind the batch's first record."""
    sides = placed()
    sides.kafka.starts[PARTITION] = 6
    with halts(HaltCause.TOPIC_REMADE, match="deleted before any reader could see them"):
        sides.recovery().run(query_id="query-1", run_id="run")
    sides.kafka.end(ProducerIdAndEpoch(0, 0), commit=True)
    sides.recovery().run(query_id="query-1", run_id="run")
    assert sides.row().status == "done"


def test_a_log_that_lost_the_outcome_with_its_topic_is_told_by_the_topic() -> None:
    """B7, B18: the coordinator has forgotten, and the topic is another one; or nobody can tell."""
    sides = placed(ended=True)
    sides.kafka.lose_markers()
    sides.kafka.forget()
    make_anew(sides)
    with halts(HaltCause.TOPIC_REMADE, match="old-orders"):
        sides.recovery().run(query_id="query-1", run_id="run")
    delete(sides)
    with halts(HaltCause.OUTCOME_LOST):
        sides.recovery().run(query_id="query-1", run_id="run")


PARTITIONS = [TopicPartition("orders", number) for number in range(3)]


def decided_and_lost(*, history: bool = True, transaction_version: int = 2) -> tuple[Sides, ProducerIdAndEpoch]:
    """A driver died after its decision, and then the row was deleted; without ``history``, its lines too."""
    sides = Sides(transaction_version=transaction_version)
    pair = sides.start()
    sides.decide(pair, batch_id=4)
    sides.kafka.produce(pair, PARTITIONS[1])
    del sides.store._rows[ID]
    if not history:
        sides.store._lines.clear()
    return sides, pair


@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_decided_row_that_is_lost_is_made_again_and_followed(
    adopt: bool, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """C13: adopt aborted the transaction, and the batch came a second time."""
    sides, pair = decided_and_lost(transaction_version=version)
    with caplog.at_level(logging.WARNING):
        report = sides.recovery(adopt=adopt).run(query_id=QUERY, run_id="run-2").report
    assert (sides.kafka.committed, sides.kafka.aborted) == ([pair], [])
    assert (sides.row().status, sides.row().batch_id) == (RowStatus.DONE, 4)
    made = f"rebuilt the lost state row from line 1 of its history (batch 4, decided {pair})"
    assert report.actions[0] == Action("rebuild_row", made)
    assert f"{ID}: {made}" in caplog.messages


@pytest.mark.parametrize("version", [0, 1, 2])
def test_without_history_an_open_transaction_is_ended_by_nobody(version: int) -> None:
    """C14: neither `--adopt` nor adopt=True; and the message says how to find out."""
    sides, pair = decided_and_lost(history=False, transaction_version=version)
    sides.kafka.began[PARTITIONS[2]] = KafkaTimeoutError(operation="ask", deadline_ms=1, last_error="gone")
    with halts(HaltCause.ID_IN_USE):
        sides.start()
    with halts(HaltCause.OPEN_TRANSACTION):
        sides.recovery(adopt=True).run(query_id=QUERY, run_id="run-2")
    with halts(HaltCause.OPEN_TRANSACTION, match=f"has decided {pair}, which Kafka holds open") as halted:
        sides.recovery(adopt=True).run(query_id=None, run_id=None)
    assert "It wrote to orders-0 from offset 5, orders-1 from offset 0, orders-2 (cannot be read" in halted.value.reason
    command = " --adopt --open-transaction"
    assert any(f"{command} commit --batch N" in remedy for remedy in halted.value.remedies)
    assert any(f"{command} abort" in remedy for remedy in halted.value.remedies)
    assert (sides.kafka.state, sides.kafka.committed, sides.kafka.aborted) == ("Ongoing", [], [])
    assert sides.recovery(adopt=True).diagnosis.dry_run().cause is HaltCause.OPEN_TRANSACTION


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("keeps_prepared", [False, True])
def test_a_person_says_commit(version: int, keeps_prepared: bool) -> None:
    """C14: the batch is done with any digest, so that its replay is skipped."""
    sides, pair = decided_and_lost(history=False, transaction_version=version)
    sides.kafka.broker.configure(profile=Profile.KEEP_PREPARED if keeps_prepared else Profile.AS_RELEASED)
    word = OpenTransactionEnd(4)
    report = sides.recovery(adopt=True, open_transaction=word).run(query_id=None, run_id=None).report
    assert report.actions[0] == Action(
        "take_open", f"noted {pair} as the decision of batch 4, as decided by the operator"
    )
    assert report.settled
    assert sides.kafka.committed == [pair]
    row = sides.row()
    assert (row.status, row.batch_id, row.digest, row.record_count) == (RowStatus.DONE, 4, "", 1)
    assert row.kafka_offsets == {"orders-0": (5, 5), "orders-1": (0, 0)}
    again = sides.recovery(adopt=True, open_transaction=word).run(query_id=None, run_id=None).report
    assert (again.settled, again.actions) == (True, ())


def test_a_crash_behind_the_persons_word_loses_nothing() -> None:
    """C14: the word is in the row before Kafka is asked, so that any later start carries it out."""
    sides, pair = decided_and_lost(history=False)
    sides.kafka.lose_answer_of.append("end")
    with pytest.raises(Exception, match="Nothing is lost"):
        sides.recovery(adopt=True, open_transaction=OpenTransactionEnd(4)).run(query_id=None, run_id=None)
    assert sides.row().status == RowStatus.DECIDED
    sides.start()
    assert (sides.kafka.committed, sides.row().status, sides.row().batch_id) == ([pair], RowStatus.DONE, 4)


def test_a_person_says_abort() -> None:
    """C14: the table has none of its rows."""
    sides, pair = decided_and_lost(history=False)
    word = OpenTransactionEnd(None)
    sides.recovery(adopt=True, open_transaction=word).run(query_id=None, run_id=None)
    assert (sides.kafka.committed, sides.kafka.aborted) == ([], [pair])
    assert (sides.row().status, sides.row().batch_id) == (RowStatus.NONE, None)
    sides.recovery(adopt=True, open_transaction=word).run(query_id=None, run_id=None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"open_transaction": "end", "adopt": True}, "it must be 'commit' or 'abort'"),
        ({"open_transaction": "abort"}, "pass adopt too"),
        ({"open_transaction": "commit", "adopt": True}, "open_transaction='commit'"),
        ({"open_transaction": "abort", "adopt": True, "batch": 3}, "open_transaction='commit'"),
        ({"open_transaction": "abort", "adopt": True, "batch": 3, "decision": OperatorDecision.DROP}, "a decision"),
        ({"decision": "drop"}, "pass OperatorDecision.DROP"),
        ({"batch": 3}, "open_transaction='commit'"),
        ({"open_transaction": "commit", "adopt": True, "batch": -1}, "it must be at least 0"),
    ],
)
def test_a_word_that_is_not_complete_is_refused(options: dict[str, object], said: str) -> None:
    """D3: before any side is asked."""
    sides = {"kafka": {"bootstrap.servers": "h:1"}, "database": "postgresql://h/d"}
    with pytest.raises(ConfigurationError) as raised:
        recover(transactional_id="orders", **sides, **options)  # type: ignore[arg-type]
    assert said in str(raised.value)
