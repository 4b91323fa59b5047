"""The question about features that is sent before its answer is needed, and what becomes of it. Covers B24, B25."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.kafka import cluster as cluster_module
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster
from tests.unit.fakes.wire import hang_up, keep_silent, lose_answer
from tests.unit.producer.support import options_for


@pytest.fixture
def client(cluster: Cluster) -> TransactionClient:
    return TransactionClient(cluster, "orders", cluster.options)


def test_a_question_that_was_sent_ahead_is_not_asked_again(fake: FakeCluster, client: TransactionClient) -> None:
    """KIP-890: the features are of this transaction all the same."""
    client.learn_features()
    fake.received.clear()
    fake.transaction_version, fake.features_epoch = 1, 2
    client.ask_features()
    client.ask_features()
    client.learn_features()
    assert client.transaction_version == 1
    assert [Api(each.api) for each in fake.received] == [Api.API_VERSIONS]
    client.learn_features()
    assert [Api(each.api) for each in fake.received] == [Api.API_VERSIONS] * 2


@pytest.mark.parametrize("step", [hang_up, lose_answer, keep_silent])
def test_a_question_that_was_sent_ahead_in_vain_is_asked_again(fake: FakeCluster, step: Any) -> None:
    """B25."""
    with Cluster(options_for(fake, request_timeout_ms=100)) as cluster:
        client = TransactionClient(cluster, "orders", cluster.options)
        client.learn_features()
        fake.transaction_version, fake.features_epoch = 1, 2
        fake.script(Api.API_VERSIONS, step)
        client.ask_features()
        client.learn_features()
        assert client.transaction_version == 1


def test_an_answer_to_a_question_of_long_ago_is_not_believed(
    fake: FakeCluster, client: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A COMMIT may take minutes, and the level may have changed meanwhile."""
    client.learn_features()
    client.ask_features()
    wait_until(lambda: len(fake.of(Api.API_VERSIONS)) >= 2, deadline_s=10, what="the question to arrive")
    fake.transaction_version, fake.features_epoch = 1, 2
    monkeypatch.setattr(cluster_module, "_ASKED_BEFORE_S_MAX", 0.0)
    client.learn_features()
    assert client.transaction_version == 1


def test_who_has_to_ask_again_does_not_believe_a_question_of_before(
    fake: FakeCluster, client: TransactionClient
) -> None:
    """B24: something was refused, perhaps because the level has changed."""
    client.learn_features()
    fake.received.clear()
    client.ask_features()
    wait_until(lambda: fake.of(Api.API_VERSIONS), deadline_s=10, what="the question to arrive")
    fake.transaction_version, fake.features_epoch = 1, 2
    client.refresh()
    assert client.transaction_version == 1


def test_nobody_is_connected_to_for_a_question_that_is_sent_ahead(
    fake: FakeCluster, cluster: Cluster, client: TransactionClient
) -> None:
    client.ask_features()
    assert fake.received == []
    client.learn_features()
    fake.script(Api.DESCRIBE_TRANSACTIONS, hang_up)
    with pytest.raises(NodeUnavailableError):
        cluster.request(0, messages.describe_transactions_request(["orders"], version=0), cluster.deadline())
    fake.received.clear()
    client.ask_features()
    assert fake.received == []
    client.learn_features()
    assert len(fake.of(Api.API_VERSIONS)) >= 1


def test_a_question_that_could_not_be_sent_ahead_is_asked_when_it_has_to_be(
    fake: FakeCluster, cluster: Cluster, client: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NodeUnavailableError("the connection has just ended")

    client.learn_features()
    monkeypatch.setattr(cluster, "begin_api_versions", refuse)
    fake.transaction_version, fake.features_epoch = 1, 2
    client.ask_features()
    client.learn_features()
    assert client.transaction_version == 1
