"""Ids described with one request to each coordinator; the question about features sent ahead. Covers B24, B25."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AuthorizationError, KafkaError, KafkaTimeoutError
from spark_2pc_sink.kafka import cluster as cluster_module
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.coordinator_calls import TransactionDescription, describe_all
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.kafka.transaction_queries import TransactionQueries
from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.wire import Step, answer, hang_up, keep_silent, lose_answer
from tests.unit.kafka.support import T0, options_for

UNKNOWN = TransactionDescription("Unknown", None, 0)


def state_of(found: TransactionDescription | KafkaError | KafkaTimeoutError) -> str:
    assert isinstance(found, TransactionDescription), found
    return found.state


def test_one_request_finds_the_coordinators_and_one_asks_each() -> None:
    """KIP-699, KIP-664: forty sinks are no forty round trips."""
    names = [f"orders-{number}" for number in range(40)]
    with fake_cluster(brokers=2) as fake, Cluster(options_for(fake)) as cluster:
        fake.coordinators |= {name: number % 2 for number, name in enumerate(names)}
        found = describe_all(cluster, names, cluster.deadline())
        assert found == dict.fromkeys(names, UNKNOWN)
        assert len(fake.of(Api.FIND_COORDINATOR)) == 1
        assert sorted(request.node_id for request in fake.of(Api.DESCRIBE_TRANSACTIONS)) == [0, 1]
        # The coordinators are remembered for what else is asked of them.
        assert cluster.coordinator("orders-1", cluster.deadline()) == 1
        assert len(fake.of(Api.FIND_COORDINATOR)) == 1


def test_whoever_may_not_be_described_hides_nobody(fake: FakeCluster, cluster: Cluster) -> None:
    fake.script(Api.DESCRIBE_TRANSACTIONS, answer(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    found = describe_all(cluster, ["a", "b"], cluster.deadline())
    assert isinstance(found["a"], AuthorizationError)
    fake.script(Api.FIND_COORDINATOR, answer(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    assert isinstance(describe_all(cluster, ["a"], cluster.deadline())["a"], AuthorizationError)


@pytest.mark.parametrize(
    ("api", "step"),
    [
        (Api.FIND_COORDINATOR, hang_up),
        (Api.FIND_COORDINATOR, answer(Code.COORDINATOR_NOT_AVAILABLE)),
        (Api.DESCRIBE_TRANSACTIONS, lose_answer),
        (Api.DESCRIBE_TRANSACTIONS, answer(Code.NOT_COORDINATOR)),
        (Api.DESCRIBE_TRANSACTIONS, answer(Code.COORDINATOR_LOAD_IN_PROGRESS)),
    ],
    ids=["nobody finds it", "it is not there yet", "an answer is lost", "it has moved", "it loads its log"],
)
def test_it_asks_again_until_the_time_is_over(fake: FakeCluster, cluster: Cluster, api: Api, step: Step) -> None:
    """Who has not been answered for by then is said, with the newest reason."""
    fake.script(api, step)
    assert state_of(describe_all(cluster, ["a"], cluster.deadline())["a"]) == "Unknown"
    fake.script(api, *[step] * 1000)
    error = describe_all(cluster, ["a"], cluster.deadline(200))["a"]
    assert isinstance(error, KafkaTimeoutError)
    assert "DESCRIBE_TRANSACTIONS for 'a'" in str(error)
    assert error.last_error != "no broker was asked in time"


def test_what_has_not_ended_is_listed() -> None:
    """At each broker, which lists what it coordinates."""
    with fake_cluster(brokers=2) as fake, Cluster(options_for(fake)) as cluster:
        fake.know(FakeTransaction(7, 4, partitions=(T0,)))
        assert TransactionQueries(cluster).open_ids() == ["orders"]
        asked = fake.of(Api.LIST_TRANSACTIONS)
        assert sorted(request.node_id for request in asked) == [0, 1]
        assert asked[0].body.state_filters == ["Ongoing", "PrepareCommit", "PrepareAbort"]
        fake.script(Api.LIST_TRANSACTIONS, answer(Code.CLUSTER_AUTHORIZATION_FAILED))
        with pytest.raises(AuthorizationError, match="ListTransactions"):
            TransactionQueries(cluster).open_ids()


@pytest.fixture
def client(cluster: Cluster) -> TransactionClient:
    return TransactionClient(cluster, "orders", cluster.options)


def test_a_question_that_was_sent_ahead_is_not_asked_again(fake: FakeCluster, client: TransactionClient) -> None:
    """KIP-890: the features are of this transaction all the same."""
    client.refresh_features()
    fake.received.clear()
    fake.transaction_version, fake.features_epoch = 1, 2
    client.prefetch_features()
    client.refresh_features()
    assert client.transaction_version == 1
    assert [Api(each.api) for each in fake.received] == [Api.API_VERSIONS]
    client.refresh_features()
    assert [Api(each.api) for each in fake.received] == [Api.API_VERSIONS] * 2


@pytest.mark.parametrize("step", [hang_up, lose_answer, keep_silent])
def test_a_question_that_was_sent_ahead_in_vain_is_asked_again(fake: FakeCluster, step: Any) -> None:
    """B25."""
    with Cluster(options_for(fake, request_timeout_ms=100)) as cluster:
        client = TransactionClient(cluster, "orders", cluster.options)
        client.refresh_features()
        fake.transaction_version, fake.features_epoch = 1, 2
        fake.script(Api.API_VERSIONS, step)
        client.prefetch_features()
        client.refresh_features()
        assert client.transaction_version == 1


@pytest.mark.parametrize("meanwhile", ["another transaction began", "minutes passed", "something was refused"])
def test_an_older_answer_is_not_believed(
    fake: FakeCluster, client: TransactionClient, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """B24: the level may have changed since the question was sent ahead."""
    client.refresh_features()
    client.prefetch_features()
    wait_until(lambda: len(fake.of(Api.API_VERSIONS)) >= 2, deadline_s=10, what="the question to arrive")
    fake.transaction_version, fake.features_epoch = 1, 2
    if meanwhile == "another transaction began":
        client.prefetch_features()
    if meanwhile == "minutes passed":
        monkeypatch.setattr(cluster_module, "_PREFETCH_AGE_S_MAX", 0.0)
    if meanwhile == "something was refused":
        client.refresh()
    else:
        client.refresh_features()
    assert client.transaction_version == 1
