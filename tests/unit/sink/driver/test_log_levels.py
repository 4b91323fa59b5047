"""Log levels of the driver: WARNING is for what a person should look at, and a normal start is not that."""

from __future__ import annotations

import logging

import pytest

from spark_2pc_sink.errors import BatchRetryError
from tests.unit.fakes.fake_kafka import PARTITION
from tests.unit.sink.driver.batch_jobs import Job, started


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


def test_a_first_start_batches_and_a_restart_log_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    job = Job()
    # As every broker gives since Kafka 2.8.
    job.kafka.topic_ids = {PARTITION.topic: "id"}
    job.driver.recover()
    job.driver.write(0, job.work())
    job.driver.write(1, job.work(rows=0, records=0, copied=0))
    again = Job(sides=job, run_id="again")
    again.driver.recover()
    again.driver.write(1, again.work(rows=0, records=0, copied=0))
    again.driver.write(2, again.work())
    assert again.row().batch_id == 2
    assert warnings(caplog) == []


def test_an_attempt_that_fails_logs_one(caplog: pytest.LogCaptureFixture) -> None:
    job = started()
    job.driver.write(0, job.work(fail=[BatchRetryError(reason="a broker was restarted")]))
    assert any("attempt 1 of 3 failed" in said for said in warnings(caplog))
