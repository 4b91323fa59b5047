"""The batch driver and bad rows, refused logins, the levels of its log and the times of its steps."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import AuthorizationError, ConstraintError, InDoubtError, RecordTooLargeError
from spark_2pc_sink.recipe.steps import Step
from tests.unit.sink.driver.batch_jobs import Job, started

REFUSED = ConstraintError(table="t", constraint="c", column="", sqlstate="23514", detail="violates check")
TOO_LARGE = RecordTooLargeError(topic="t", partition=0, row_key="1", record_bytes=9, limit="at most 8")


@pytest.fixture
def job() -> Job:
    return started()


def test_the_next_attempt_comes_without_the_bad_rows(job: Job) -> None:
    """The failed attempt is aborted on both sides first, and nothing of the search stays in the database."""
    work = job.work(fail_copy=[REFUSED], searches=[2])
    report = job.driver.write(0, work)
    assert work.log == ["produce", "copy", "close", "search", "produce", "copy", "close"]
    assert (report.attempts, report.bad_rows) == (2, 2)
    assert [statement for statement, _ in job.store.committed] == ["copy", "decide"]
    assert len({ticket.transaction for ticket in work.tickets}) == 2
    lines = job.store.read_history("orders", last=1)
    assert lines[0].figures["bad_rows"] == 2


@pytest.mark.parametrize("transaction_version", [1, 2])
@pytest.mark.parametrize("found_by", ["fail", "fail_copy"])
def test_batches_with_bad_rows_are_no_claims(job: Job, found_by: str, transaction_version: int) -> None:
    """Seven of them look like one job that runs, and not like two that fight."""
    job.kafka.broker.configure(transaction_version=transaction_version)
    generation, actions = job.row().generation, job.store.read_actions("orders", last=9)
    for batch_id in range(7):
        work = job.work(**{found_by: [REFUSED]}, searches=[1])
        assert job.driver.write(batch_id, work).bad_rows == 1
        first, second = (ticket.producer for ticket in work.tickets)
        # No task of the first attempt that is late can write into the transaction of the second.
        assert second.epoch > first.epoch
    assert (job.row().generation, job.store.read_actions("orders", last=9)) == (generation, actions)


def test_bad_rows_are_not_looked_for_without_end(job: Job) -> None:
    """Where each attempt meets another one."""
    work = job.work(fail_copy=[REFUSED] * 20, searches=[1] * 20)
    with pytest.raises(ConstraintError):
        job.driver.write(0, work)
    assert work.log.count("search") == 8


def test_a_resend_that_meets_a_bad_row_fails(job: Job) -> None:
    """The topic takes less than it did: a person has to say what becomes of the batch that the database has."""
    first = job.work(dead_letters=1)

    def fail(step: Step) -> None:
        if step is Step.DECIDE:
            job.kafka.time_out()
            first.fail.append(TOO_LARGE)

    job.on_step = fail
    with pytest.raises(RecordTooLargeError):
        job.driver.write(0, first)
    assert "search" not in first.log
    assert job.row().status == "owed"


@pytest.mark.parametrize("decided", [False, True])
def test_a_login_that_is_refused_ends_the_query_at_once(*, decided: bool, caplog: pytest.LogCaptureFixture) -> None:
    """B25: neither recovery nor the next attempt would be let in, so nothing is waited for, and no line repeated."""
    job = started()
    refused = AuthorizationError(api="SaslAuthenticate", code=58, name="SASL_AUTHENTICATION_FAILED", detail="refused")

    def refuse(_: str) -> None:
        raise refused

    def shut_out(step: Step) -> None:
        if step is (Step.DECIDE if decided else Step.BEGIN):
            job.kafka.before = refuse

    job.on_step = shut_out
    began_s = job.clock.now_s()
    with pytest.raises(InDoubtError if decided else AuthorizationError, match="refused"):
        job.driver.write(0, job.work(fail=[] if decided else [refused]))
    assert job.clock.now_s() == began_s
    assert "failed; retrying" not in caplog.text
