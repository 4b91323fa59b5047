"""Bad rows in the batch driver: a sift after a failed attempt, and replays that end in the same split."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import (
    ConstraintError,
    DataError,
    RecordTooLargeError,
    StateStoreError,
    SupersededError,
    TooManyBadRowsError,
)
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver.batch_values import Attempt
from tests.unit.sink.driver.batch_jobs import Job, started

REFUSED = ConstraintError(table="t", constraint="c", column="", sqlstate="23514", detail="violates check")
TOO_LARGE = RecordTooLargeError(topic="t", partition=0, row_key="1", record_bytes=9, limit="at most 8")
TOO_MANY = TooManyBadRowsError(found=101, rows=1_000, limit="100", first=("row",))


@pytest.fixture
def job() -> Job:
    """See `started`."""
    return started()


def test_the_next_attempt_comes_without_the_bad_rows(job: Job) -> None:
    """The failed attempt is aborted on both sides first, and nothing of the sift stays in the database."""
    work = job.work(fail_copy=[REFUSED], sifts=[2])
    report = job.driver.write(0, work)
    assert work.log == ["produce", "copy", "close", "sift", "produce", "copy", "close"]
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
        work = job.work(**{found_by: [REFUSED]}, sifts=[1])
        assert job.driver.write(batch_id, work).bad_rows == 1
        first, second = (ticket.producer for ticket in work.tickets)
        # No task of the first attempt that is late can write into the transaction of the second.
        assert second.epoch > first.epoch
    assert (job.row().generation, job.store.read_actions("orders", last=9)) == (generation, actions)


def test_a_transaction_that_cannot_be_aborted_is_recovered(job: Job) -> None:
    """By a new claim, as after any other error."""
    generation = job.row().generation
    job.kafka.lose_answer_of = ["end"]
    assert job.driver.write(0, job.work(fail_copy=[REFUSED], sifts=[1])).bad_rows == 1
    assert job.row().generation == generation + 1


def test_a_batch_without_bad_rows_says_nothing_of_them(job: Job) -> None:
    assert job.driver.write(0, job.work()).bad_rows == 0
    assert "bad_rows" not in job.store.read_history("orders", last=1)[0].figures


def test_an_error_of_no_single_row_fails_the_batch(job: Job) -> None:
    """As without dead letters."""
    work = job.work(fail_copy=[REFUSED], sifts=[0])
    with pytest.raises(ConstraintError):
        job.driver.write(0, work)
    assert job.store.committed == []
    assert job.row().status == "none"


def test_too_many_bad_rows_fail_the_batch(job: Job) -> None:
    with pytest.raises(TooManyBadRowsError, match="at least 101 of the 1000 rows of the batch are bad"):
        job.driver.write(0, job.work(fail_copy=[REFUSED], sifts=[TOO_MANY]))
    assert job.store.committed == []


def test_bad_rows_are_not_looked_for_without_end(job: Job) -> None:
    """Where each attempt meets another one."""
    work = job.work(fail_copy=[REFUSED] * 20, sifts=[1] * 20)
    with pytest.raises(ConstraintError):
        job.driver.write(0, work)
    assert work.log.count("sift") == 8


def test_attempts_that_were_sifted_do_not_count_as_failed(job: Job) -> None:
    """Of three attempts, none is left after three sifts otherwise."""
    report = job.driver.write(0, job.work(fail_copy=[REFUSED] * 4, sifts=[1] * 4))
    assert (report.attempts, report.bad_rows) == (5, 4)


def test_a_sift_that_fails_counts_as_a_failed_attempt(job: Job) -> None:
    """The next attempt meets the bad row again, and looks again."""
    lost = StateStoreError(operation="sift", detail="the connection was lost", sqlstate="08006", retriable=True)
    work = job.work(fail_copy=[REFUSED, REFUSED], sifts=[lost, 1])
    assert job.driver.write(0, work).bad_rows == 1
    assert work.log.count("produce") == 3


def test_a_superseded_driver_does_not_sift(job: Job) -> None:
    """Its rows would stand in the way of the newer one's."""
    work = job.work(fail_copy=[REFUSED], sifts=[1])
    abort = job.driver._abort

    def overtaken(error: DataError, attempt: Attempt | None) -> None:
        abort(error, attempt)
        other = Job(sides=job, run_id="newer")
        other.driver.recover()

    job.driver._abort = overtaken  # type: ignore[method-assign]
    with pytest.raises(SupersededError):
        job.driver.write(0, work)
    assert job.store.committed == []


def test_a_skip_is_compared_without_the_rows_that_were_left_out(job: Job) -> None:
    """They are in the dead letters: it does not look for bad rows again."""
    job.driver.write(0, job.work())
    work = job.work(dead_letters=1)
    assert job.driver.write(0, work).placement is Placement.SKIP
    assert work.log == ["recall", "reread"]


def test_a_resend_leaves_out_what_was_left_out(job: Job) -> None:
    """Whatever it fails with, it never sifts: the database has decided the split."""
    timed_out: list[Step] = []

    def time_out(step: Step) -> None:
        if step is Step.DECIDE and not timed_out:
            timed_out.append(step)
            job.kafka.time_out()

    job.on_step = time_out
    work = job.work(fail_copy=[REFUSED], sifts=[1], dead_letters=1)
    job.driver.write(0, work)
    assert job.row().status == "done"
    assert work.log == [
        *("produce", "copy", "close", "sift"),
        *("produce", "copy", "close"),
        *("recall", "produce", "close"),
    ]
    assert work.tickets[-1].kafka_only


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
    assert "sift" not in first.log
    assert job.row().status == "owed"
