"""Recovery of a row that is gone: from its history, or by a person's word where that is gone too."""

from __future__ import annotations

import logging

import pytest

from spark_2pc_sink.errors import ConfigurationError, HaltCause, KafkaTimeoutError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.recipe.resolve import OpenTransactionEnd, RowStatus
from spark_2pc_sink.recovery.api import recover
from spark_2pc_sink.recovery.report import Action
from spark_2pc_sink.reference.coordinator.coordinator_state import Profile
from tests.harness.halts import halts
from tests.unit.recovery.test_recovery import ID, QUERY, Sides

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
