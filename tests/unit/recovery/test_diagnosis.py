"""What a look says beside its verdict, and what of a recovery the database is told: with what it does, or before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_2pc_sink.clock import now_ms
from spark_2pc_sink.errors import StateStoreError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka.coordinator_calls import TransactionDescription
from spark_2pc_sink.recipe.resolve import OpenTransactionEnd
from spark_2pc_sink.recovery.diagnosis import with_choices
from spark_2pc_sink.recovery.report import RecoveryReport
from tests.unit.recovery.test_recovery import ID, Sides, decided, told
from tests.unit.recovery.test_report import LIVES


def look(sides: Sides) -> RecoveryReport:
    return sides.recovery().diagnosis.dry_run()


def opened(pair: ProducerIdAndEpoch | None, *, s_ago: float) -> TransactionDescription:
    """A transaction that is open, and when it began."""
    return TransactionDescription("Ongoing", pair, 60_000, (), now_ms() - int(s_ago * 1000))


def test_since_when_a_transaction_is_open_that_nobody_decided() -> None:
    """B27: from the coordinator; null where the row names it, and then the decision's age is there."""
    sides = Sides()
    pair = sides.start()
    sides.kafka.produce(pair)
    sides.kafka.shown = opened(pair, s_ago=90)
    report = look(sides)
    assert report.prepared_s == pytest.approx(90, abs=30)
    assert "open:     for 0:01:" in str(report)
    sides.kafka.shown = None
    sides.decide(pair)
    sides.kafka.shown = opened(pair, s_ago=90)
    report = look(sides)
    assert (report.prepared_s, report.in_doubt_s is not None) == (None, True)


def test_what_can_be_done_where_nobody_has_to_decide() -> None:
    """The job does it, or the command; where the driver lives, it is waited for first: both would stop it."""
    sides, _ = decided()
    found, options = look(sides), sides.recovery().diagnosis.options
    first, second = with_choices(found, options).remedies
    assert first.startswith("start the job")
    assert second.startswith("spark-2pc recover --transactional-id orders --bootstrap-server unused:9092 ")
    wait, stop, take_over = with_choices(replace(found, driver=LIVES), options).remedies
    assert wait.startswith("wait, and check again")
    assert stop.startswith("stop the job first")
    assert " --take-over  # stop the driver from here" in take_over
    settled = replace(found, settled=True)
    assert with_choices(settled, options) is settled


def did(sides: Sides) -> str:
    """What the newest line says, in words."""
    return str(sides.store.read_actions(ID, last=1)[0].detail["did"])


def test_how_kafka_had_ended_it_is_told() -> None:
    """B6, B7: committed, or aborted."""
    sides, pair = decided()
    sides.kafka.end(pair, commit=True)
    sides.decide(sides.start(), batch_id=1)
    sides.kafka.time_out()
    sides.start()
    assert told(sides) == [("note_done", 0), ("note_owed", 1)]
    assert did(sides).startswith("noted that Kafka is owed batch 1")


def test_an_abort_is_told_before_it_is_made() -> None:
    """A2: it is Kafka's alone. What was not told is not done."""
    sides = Sides()
    sides.kafka.produce(sides.start())
    seen: list[Any] = []
    sides.kafka.before = lambda name: seen.append((name, told(sides))) if name == "init" else None
    sides.start()
    assert seen[0] == ("init", [("abort", None)])
    assert did(sides).startswith("aborted the open transaction 0:0")


def test_without_the_line_nothing_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides()
    sides.kafka.produce(sides.start())

    def lost(*_: object) -> None:
        raise StateStoreError(operation="noting", detail="the database is gone")

    monkeypatch.setattr(sides.store, "note_action", lost)
    with pytest.raises(StateStoreError):
        sides.start()
    assert sides.kafka.aborted == []


def test_the_word_about_an_open_transaction_is_told() -> None:
    """C14: with either end; the commit that follows is a recovery's."""
    for batch_id, expected in ((None, [("open_transaction", None)]), (3, [("open_transaction", 3), ("commit", 3)])):
        sides = Sides()
        sides.kafka.produce(sides.kafka.init_producer_id().producer)
        word = OpenTransactionEnd(batch_id)
        sides.recovery(adopt=True, open_transaction=word).run(query_id=None, run_id=None)
        assert told(sides) == expected
