"""Kafka's own programs that write exactly once, killed again and again with the broker under them: each record once.

``SPARK_2PC_KILLS`` says how many kills of the program, and how many of the broker (default 5 each).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from spark_2pc_sink.testing import ReferenceCoordinator, wait_until
from spark_2pc_sink.testing.local_broker import LocalBroker
from tests.conftest import or_skip
from tests.integration.reference.clients.copying_apps import (
    CopyingApp,
    FileSource,
    MessageCopier,
    StreamsApp,
    find_streams,
)

KILLS = int(os.environ.get("SPARK_2PC_KILLS", "5"))
pytestmark = [pytest.mark.thorough, pytest.mark.kafka, pytest.mark.java, pytest.mark.timeout(300 + 120 * KILLS)]

#: What is fed twice between two kills; a transaction takes a few dozen.
CHUNK = 200
PROGRESS_DEADLINE_S = 120
#: Up to so long after some progress comes a kill, in the middle of the rest.
KILL_DELAY_S = 0.2


@pytest.fixture
def own_broker(pytestconfig: pytest.Config) -> Iterator[LocalBroker]:
    or_skip(pytestconfig, find_streams)
    with ReferenceCoordinator(two_phase_commit=False) as broker:
        yield broker


@pytest.fixture(params=[StreamsApp, FileSource, MessageCopier])
def app(request: pytest.FixtureRequest, own_broker: LocalBroker, tmp_path: Path) -> Iterator[CopyingApp]:
    running: CopyingApp = request.param(own_broker, tmp_path)
    yield running
    running.kill()


def end_of(broker: LocalBroker, topic: str = "out") -> int:
    """The last stable offset: grows with each transaction that ends."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "end", "isolation.level": "read_committed"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1])
    finally:
        consumer.close()


def wait_for_progress(app: CopyingApp, beyond: int) -> None:
    """Until transactions are committed again."""

    def advanced() -> bool:
        app.keep_running()
        return end_of(app.broker) > beyond

    wait_until(advanced, deadline_s=PROGRESS_DEADLINE_S, what=f"transactions beyond offset {beyond}", interval_s=0.2)


def test_each_record_comes_once_however_often_program_and_broker_are_killed(app: CopyingApp) -> None:
    """KIP-98, KIP-447 (Streams), KIP-618 (Connect)."""
    chance = random.Random(KILLS)
    fed: list[str] = []

    def feed() -> None:
        chunk = [str(len(fed) + each) for each in range(CHUNK)]
        app.feed(chunk)
        fed.extend(chunk)

    for number in range(2 * KILLS):
        before = end_of(app.broker)
        feed()
        wait_for_progress(app, before)
        feed()
        time.sleep(chance.uniform(0, KILL_DELAY_S))
        if number % 2:
            app.broker.kill()
            app.broker.start()
        else:
            app.kill()

    def all_out() -> bool:
        app.keep_running()
        return len(app.committed("out")) >= len(fed)

    wait_until(all_out, deadline_s=PROGRESS_DEADLINE_S, what=f"{len(fed)} records", interval_s=1)
    app.check(fed)
