"""Fixtures of the producer's unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.producer import TransactionalWriter
from spark_2pc_sink.reference.coordinator.states import Profile
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.kafka.support import PAIR, options_for, writer_on


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """One scripted broker at transaction.version 2 with topic t of two partitions."""
    with fake_cluster() as cluster:
        yield cluster


@pytest.fixture
def begun(fake: FakeCluster) -> FakeCluster:
    """The same, whose id was used before and is at rest at `PAIR`."""
    fake.know(FakeTransaction(PAIR.producer_id, PAIR.epoch, state="Empty"))
    return fake


@pytest.fixture
def cluster(fake: FakeCluster) -> Iterator[Cluster]:
    with Cluster(options_for(fake)) as connections:
        yield connections


@pytest.fixture
def two_phase(fake: FakeCluster) -> FakeCluster:
    """A broker that grants two-phase commit and keeps prepared transactions."""
    fake.versions[Api.INIT_PRODUCER_ID] = (0, 6)
    fake.configure(two_phase_commit_enable=True, profile=Profile.KEEP_PREPARED)
    return fake


@pytest.fixture
def writer(two_phase: FakeCluster) -> Iterator[TransactionalWriter]:
    with writer_on(two_phase, two_phase_commit=True) as made:
        yield made
