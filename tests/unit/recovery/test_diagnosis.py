"""What a look says beside its verdict: since when, what is owed, and what can be done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.clock import now_ms
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka.coordinator_calls import TransactionDescription
from spark_2pc_sink.recovery.diagnosis import with_choices
from spark_2pc_sink.recovery.report import RecoveryReport
from tests.unit.recovery.test_recovery import Sides, decided
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
