"""Recovery of a decided batch whose records Kafka has lost: nothing is noted as done, until a person decides (B18)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.options import OperatorDecision
from tests.harness.halts import halts
from tests.unit.recovery.test_recovery import Sides

PARTITION = TopicPartition("orders", 0)


def decided(*, ended: bool = False) -> Sides:
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
    sides = decided(ended=ended)
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
    sides = decided(ended=ended)
    make_anew(sides)
    report = sides.recovery(decision=decision, batch_id=0).run(query_id=None, run_id=None).report
    assert (report.settled, sides.row().status) == (status == "done", status)
    assert sides.kafka.state == "Empty"
    assert sides.kafka.committed == ([ProducerIdAndEpoch(0, 0)] if ended else [])
    sides.recovery().run(query_id="query-1", run_id="run-2")
    assert sides.row().status == status


def test_records_that_no_reader_could_see_are_lost_only_before_the_commit() -> None:
    """B18: the log's start has moved behind the batch's first record."""
    sides = decided()
    sides.kafka.starts[PARTITION] = 6
    with halts(HaltCause.TOPIC_REMADE, match="deleted before any reader could see them"):
        sides.recovery().run(query_id="query-1", run_id="run")
    sides.kafka.end(ProducerIdAndEpoch(0, 0), commit=True)
    sides.recovery().run(query_id="query-1", run_id="run")
    assert sides.row().status == "done"


def test_a_log_that_lost_the_outcome_with_its_topic_is_told_by_the_topic() -> None:
    """B7, B18: the coordinator has forgotten, and the topic is another one; or nobody can tell."""
    sides = decided(ended=True)
    sides.kafka.lose_markers()
    sides.kafka.forget()
    make_anew(sides)
    with halts(HaltCause.TOPIC_REMADE, match="old-orders"):
        sides.recovery().run(query_id="query-1", run_id="run")
    delete(sides)
    with halts(HaltCause.OUTCOME_LOST):
        sides.recovery().run(query_id="query-1", run_id="run")
