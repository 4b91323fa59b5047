"""Connections: refused, silent, killed, and a log that stays quiet. Covers B24 (features re-read), B25 (no hang)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, UnknownTopicError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.testing import free_port, wait_until
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.wire import Step, answer, hang_up, lose_answer
from tests.unit.kafka.support import options_for


@contextmanager
def swallowing(address: str, port: int) -> Iterator[None]:
    """An address that answers no attempt to connect: its queue of connections that nobody accepts is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        yield


def test_an_absent_feature_is_level_zero() -> None:
    """KIP-1022: a feature that is not finalized is at level 0."""
    with fake_cluster(transaction_version=None) as fake, Cluster(options_for(fake)) as cluster:
        assert cluster.features().transaction_version == 0


def test_a_refused_connection_names_bootstrap_servers_in_time() -> None:
    port = free_port()
    began_s = time.monotonic()
    with (
        Cluster(options_for(f"127.0.0.1:{port}", max_block_ms=2_000)) as cluster,
        pytest.raises(KafkaTimeoutError, match=rf"bootstrap\.servers=127\.0\.0\.1:{port}.*2000 ms.*ECONNREFUSED"),
    ):
        cluster.features()
    assert time.monotonic() - began_s < 15


def test_an_address_that_swallows_packets_leaves_time_for_the_next(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B25: a name with several addresses (KIP-302), the first of which leads nowhere, always in this order."""
    port, resolve = fake.brokers[0].port, socket.getaddrinfo

    def both(host: str, *arguments: Any) -> list[Any]:
        hosts = ("127.0.0.2", "127.0.0.1") if host == "several.test" else (host,)
        return [found for each in hosts for found in resolve(each, *arguments)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    options = options_for(f"several.test:{port}", socket_connection_setup_timeout_ms=2_000)
    with swallowing("127.0.0.2", port), Cluster(options) as cluster:
        assert cluster.features().transaction_version == 2


@pytest.mark.parametrize(
    "steps",
    [
        (hang_up, hang_up),
        (lose_answer, lose_answer),
        # The topic appears a moment later.
        (answer(Code.NONE), answer(Code.UNKNOWN_TOPIC_OR_PARTITION), answer(Code.NONE)),
    ],
)
def test_metadata_is_asked_again(fake: FakeCluster, cluster: Cluster, steps: tuple[Step, ...]) -> None:
    fake.script(Api.METADATA, *steps)
    assert cluster.partition_counts(["t"]) == {"t": 2}


def test_a_broker_that_failed_last_is_asked_last() -> None:
    """B25: one that swallows packets would cost socket.connection.setup.timeout.ms each time it is chosen."""
    with fake_cluster(brokers=3) as fake, Cluster(options_for(fake)) as cluster:
        deadline = cluster.deadline()
        cluster.refresh((), deadline)
        fake.brokers[2].stop()
        with pytest.raises(NodeUnavailableError):
            cluster.api_versions(2, deadline)
        assert 2 not in {cluster.any_node(deadline) for _ in range(100)}
        fake.brokers[2].start()
        wait_until(lambda: answers(cluster, 2), deadline_s=30, what="broker 2 to answer again")
        # One other was asked for addresses meanwhile, so that it has a connection too. The third has none.
        found = {cluster.any_node(deadline) for _ in range(100)}
        assert 2 in found
        assert len(found) == 2


def answers(cluster: Cluster, node_id: int) -> bool:
    try:
        cluster.api_versions(node_id, cluster.deadline())
    except NodeUnavailableError:
        return False
    return True


def test_brokers_that_have_another_address_now_are_found_before_metadata_is_old() -> None:
    """B25: as where a cluster is moved while a job waits for its next batch."""
    with fake_cluster() as old, fake_cluster() as new:
        options = options_for(old, bootstrap_servers=(old.bootstrap, new.bootstrap), max_block_ms=2_000)
        new.brokers[0].stop()
        with Cluster(options) as cluster:
            cluster.features()
            old.brokers[0].stop()
            new.brokers[0].start()
            assert cluster.features(age_ms_max=0).cluster_id == "fake-cluster"
            assert len(new.of(Api.API_VERSIONS)) > 0


def test_call_ends_at_its_deadline(fake: FakeCluster, cluster: Cluster) -> None:
    cluster.node_ids()
    fake.script(Api.FIND_COORDINATOR, *[hang_up] * 1000)
    with pytest.raises(KafkaTimeoutError, match=r"FIND_COORDINATOR.*300 ms.*broker 0"):
        cluster.call(
            Api.FIND_COORDINATOR,
            cluster.any_node,
            lambda version: messages.find_coordinators_request(["x"], version=version),
            cluster.deadline(300),
        )


def test_a_broker_too_old_for_us_is_an_error_at_once(fake: FakeCluster, cluster: Cluster) -> None:
    """D7: named by request and code, before anything is written."""
    fake.versions[Api.FIND_COORDINATOR] = (0, 3)
    with pytest.raises(KafkaError, match="FIND_COORDINATOR answered UNSUPPORTED_VERSION, code 35"):
        cluster.coordinator("x", cluster.deadline())


def test_a_topic_that_no_broker_knows_is_an_error(fake: FakeCluster, cluster: Cluster) -> None:
    with pytest.raises(UnknownTopicError, match=r"'nowhere'.*never created"):
        cluster.partition_counts(["t", "nowhere"])
    assert not any(request.body.allow_auto_topic_creation for request in fake.of(Api.METADATA))


def test_the_coordinator_may_be_a_broker_that_metadata_did_not_know() -> None:
    with fake_cluster(brokers=2) as fake, Cluster(options_for(fake)) as cluster:
        hidden = fake.brokers.pop()
        cluster.node_ids()
        fake.brokers.append(hidden)
        fake.coordinator = 1
        assert cluster.coordinator("x", cluster.deadline()) == 1
        assert cluster.node_ids() == (0, 1)
