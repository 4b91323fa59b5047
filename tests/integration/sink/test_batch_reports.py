"""What a running sink tells of each batch: to its own listener, and to the log."""

from __future__ import annotations

import logging
import pickle
from contextlib import closing

import pytest
from pyspark.errors import StreamingQueryException

from jdbc_state import SqlStateStore
from spark_2pc_sink import BatchReport
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.steps import Step
from tests.harness.streams import FileStream
from tests.integration.postgres import database_tables
from tests.integration.sink.targets import Target, rows_of

STEPS = [step.name.lower() for step in Step if step is not Step.RECOVER]


def test_a_report_says_what_both_sides_have(
    stream: FileStream, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows and records are those of both sides, the pair is the decision's, and the steps add up to the whole."""
    caplog.set_level(logging.INFO, logger="spark_2pc_sink")
    reports: list[BatchReport] = []
    for batch in range(2):
        stream.add(rows_of(batch))
    stream.run(target.sink(key="id", on_batch=reports.append))
    assert [(report.batch_id, report.placement, report.attempts) for report in reports] == [
        (0, Placement.RUN, 1),
        (1, Placement.RUN, 1),
    ]
    (decided,) = database_tables.rows(target.database, "SELECT prepared_transaction_state FROM kafka_transaction_state")
    assert (reports[1].prepared,) == decided
    for report in reports:
        assert (report.transactional_id, report.row_count, report.record_count) == (target.transactional_id, 500, 500)
        assert report.record_bytes > 500
        assert list(report.step_seconds) == STEPS
        assert sum(report.step_seconds.values()) == pytest.approx(report.seconds, rel=0.2, abs=0.05)
        assert str(report) in caplog.messages
        assert pickle.loads(pickle.dumps(report)) == report  # noqa: S301 - our own bytes
    with closing(SqlStateStore(target.database)) as store:
        lines = store.read_history(target.transactional_id, last=2)[::-1]
    for report, line in zip(reports, lines, strict=True):
        # The line is written by the last step, whose own time it cannot have.
        steps = {name: round(taken, 3) for name, taken in report.step_seconds.items() if name != "note"}
        assert (line.figures["record_bytes"], line.figures["step_seconds"]) == (report.record_bytes, steps)
    target.check(rows_of(0) + rows_of(1))


def test_a_report_tells_a_replay_and_a_resend_from_a_batch(
    stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A1, B1: nothing is counted that was not written, and what went wrong is in the log with the sink's name."""
    reports: list[BatchReport] = []
    stream.add(rows_of(0))
    target.abort_once(monkeypatch)
    stream.run(target.sink(key="id", on_batch=reports.append))
    stream.forget(0)
    stream.run(target.sink(key="id", on_batch=reports.append))
    resent, skipped = reports
    assert (resent.placement, resent.attempts, resent.row_count, resent.record_count) == (Placement.RUN, 2, 500, 500)
    assert "recover" in resent.step_seconds
    assert (skipped.placement, skipped.attempts, skipped.row_count, skipped.record_bytes) == (Placement.SKIP, 0, 0, 0)
    assert skipped.prepared == resent.prepared
    said = [line for line in caplog.messages if target.transactional_id in line]
    assert any("batch 0, attempt 1 of 3 failed" in line for line in said)
    assert any("Kafka is owed batch 0" in line for line in said)
    target.check(rows_of(0))


def test_an_error_of_the_listener_ends_the_query_and_loses_nothing(stream: FileStream, target: Target) -> None:
    """It is not swallowed; the batch is written all the same, and the next start skips it."""

    def fail(report: BatchReport) -> None:
        message = f"the collector refused batch {report.batch_id}"
        raise ConnectionError(message)

    stream.add(rows_of(0))
    with pytest.raises(StreamingQueryException, match="the collector refused batch 0"):
        stream.run(target.sink(key="id", on_batch=fail))
    target.check(rows_of(0))
    reports: list[BatchReport] = []
    stream.run(target.sink(key="id", on_batch=reports.append))
    assert [report.placement for report in reports] == [Placement.SKIP]
    target.check(rows_of(0))
