"""A whole Kafka container is frozen, or dies and comes back: the driver waits, and finds out what was carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.faults.conftest import MakeJob

if TYPE_CHECKING:
    from tests.harness.containers import ContainerBroker

BATCH = 1
#: Long enough for an answer from a broker that is busy, short enough to be waited for in vain.
IMPATIENT: dict[str, Any] = {"kafka": {"request.timeout.ms": 3_000, "max.block.ms": 4_000}}


@pytest.mark.parametrize("place", ["step:BEGIN", "end"])
def test_kafka_is_frozen(place: str, kafka_apart: ContainerBroker, make_job: MakeJob) -> None:
    """B4, B25, B29: before the records and before EndTxn, longer than the driver waits for an answer.

    The connections stay open all the time, and the kernel acknowledges what is sent on them: only answers are missing.
    What was sent is carried out as soon as the container goes on, with the driver's next attempt close behind.
    """
    job = make_job(kafka_apart)
    driver = job.stop_at(place, batch=BATCH, **IMPATIENT)
    kafka_apart.pause()
    driver.go_on()
    driver.wait_for_log("attempt 1 of 3 failed")
    kafka_apart.resume()
    job.ends_well(driver)
