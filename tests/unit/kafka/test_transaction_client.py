"""The coordinator's answers, scripted. Covers B2, B4, B6, B7, B10, B13, B14, B24, B25."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AuthorizationError, KafkaError, KafkaTimeoutError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka import cluster as cluster_module
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.coordinator_calls import TransactionDescription, describe_all
from spark_2pc_sink.kafka.transaction_client import EndTxnAnswer, TransactionClient
from spark_2pc_sink.kafka.transaction_queries import TransactionQueries
from spark_2pc_sink.reference.coordinator.states import Profile
from spark_2pc_sink.sink.check.kafka_side import try_transaction
from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.wire import Step, after, answer, hang_up, keep_silent, lose_answer
from tests.unit.kafka.support import PAIR, T0, T1, options_for

ASK_AGAIN = [
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.CONCURRENT_TRANSACTIONS,
    Code.REQUEST_TIMED_OUT,
]

#: The transaction that tests end.
OPEN = FakeTransaction(PAIR.producer_id, PAIR.epoch, partitions=(T0,))


def client_on(cluster: Cluster, **overrides: Any) -> TransactionClient:
    options = options_for(cluster.options.bootstrap_servers[0], **overrides) if overrides else cluster.options
    return TransactionClient(cluster, "orders", options)


@pytest.fixture
def client(cluster: Cluster) -> TransactionClient:
    return client_on(cluster)


def offer_two_phase(fake: FakeCluster, *, grant: bool) -> None:
    fake.versions[Api.INIT_PRODUCER_ID] = (0, 6)
    fake.configure(two_phase_commit_enable=grant)


# --- InitProducerId -----------------------------------------------------------------------------------------------


def test_without_version_6_the_transaction_lasts_as_long_as_the_broker_allows(
    fake: FakeCluster, client: TransactionClient
) -> None:
    """B1: a prepared transaction lives for transaction.timeout.ms, so as much of it as possible is asked for."""
    fake.broker_configs = {"transaction.max.timeout.ms": "3600000"}
    fake.configure(transaction_max_timeout_ms=3_600_000)
    initialized = client.init_producer_id()
    assert (initialized.producer, initialized.two_phase_commit) == (ProducerIdAndEpoch(7, 0), False)
    assert initialized.timeout_ms == 3_600_000
    (request,) = fake.of(Api.INIT_PRODUCER_ID)
    assert (request.version, request.body.transaction_timeout_ms, request.body.producer_id) == (5, 3_600_000, -1)


def test_refused_two_phase_commit_is_remembered_until_refresh(fake: FakeCluster, client: TransactionClient) -> None:
    """KIP-939: TWO_PHASE_COMMIT missing, or the broker's switch off, is 53, and nothing has changed (B24)."""
    offer_two_phase(fake, grant=False)
    assert not client.init_producer_id().two_phase_commit
    assert not client.init_producer_id().two_phase_commit
    assert [request.body.enable2_pc for request in fake.of(Api.INIT_PRODUCER_ID)] == [True, False, False]
    fake.configure(two_phase_commit_enable=True)
    client.refresh()
    assert client.init_producer_id().two_phase_commit


@pytest.mark.parametrize("code", ASK_AGAIN, ids=lambda code: code.name)
def test_init_is_repeated_without_burning_epochs(fake: FakeCluster, client: TransactionClient, code: Code) -> None:
    """B13, B14: these answers mean that nothing was handed out."""
    fake.script(Api.INIT_PRODUCER_ID, *[answer(code)] * 3)
    assert client.init_producer_id().producer == ProducerIdAndEpoch(7, 0)
    assert len(fake.of(Api.INIT_PRODUCER_ID)) == 4


@pytest.mark.parametrize(
    ("grant", "profile", "refusal"),
    [
        (True, Profile.AS_RELEASED, "UNSUPPORTED_VERSION"),
        (False, Profile.AS_RELEASED, "UNSUPPORTED_VERSION"),
        # As apache/kafka#22704 has it: INVALID_REQUEST, also where enable2Pc was refused before.
        (False, Profile.KEEP_UNCHANGED, "for clients with two-phase commit only"),
    ],
)
def test_refused_keep_prepared_is_remembered(
    fake: FakeCluster, client: TransactionClient, grant: bool, profile: Profile, refusal: str
) -> None:
    """KIP-939; the open transaction stays as it is."""
    offer_two_phase(fake, grant=grant)
    fake.configure(profile=profile)
    fake.know(OPEN)
    offered = [client.offers_keep_prepared]
    with pytest.raises(KafkaError, match=refusal):
        client.init_producer_id(keep_prepared=True)
    offered.append(client.offers_keep_prepared)
    assert offered == [True, False]
    assert (fake.id_state, fake.epoch) == ("Ongoing", PAIR.epoch)
    assert client.init_producer_id().two_phase_commit is grant


def test_no_transaction_begins_at_the_last_epoch(fake: FakeCluster, client: TransactionClient) -> None:
    """B10: 'If the epoch is exhausted … a new producer ID' (KIP-890): taken now, so that EndTxn never rotates."""
    fake.know(FakeTransaction(7, 32765, "Empty"))
    assert client.usable_producer().producer == ProducerIdAndEpoch(8, 0)
    assert len(fake.of(Api.INIT_PRODUCER_ID)) == 2


# --- EndTxn -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ASK_AGAIN, ids=lambda code: code.name)
@pytest.mark.parametrize("commit", [True, False])
def test_end_repeats_the_same_request(fake: FakeCluster, client: TransactionClient, code: Code, commit: bool) -> None:
    fake.know(OPEN)
    fake.script(Api.END_TXN, answer(code), lose_answer, hang_up, answer(code))
    assert client.end(PAIR, commit=commit).code == Code.NONE
    sent = {
        (request.version, request.body.producer_id, request.body.producer_epoch, request.body.committed)
        for request in fake.of(Api.END_TXN)
    }
    assert sent == {(5, PAIR.producer_id, PAIR.epoch, commit)}
    assert len(fake.of(Api.END_TXN)) == 5


def service_on(cluster: Cluster) -> TransactionClient:
    """A client that takes an answer about features for a minute, and knows its coordinator."""
    client = TransactionClient(cluster, "orders", cluster.options, features_age_ms_max=60_000)
    client.refresh_features()
    client.describe()
    return client


@pytest.mark.parametrize(("level", "version", "after"), [(2, 5, ProducerIdAndEpoch(7, 4)), (1, 4, None)])
def test_end_is_sent_now_and_answered_later(
    fake: FakeCluster, cluster: Cluster, level: int, version: int, after: ProducerIdAndEpoch | None
) -> None:
    fake.transaction_version = level
    fake.know(OPEN)
    service = service_on(cluster)
    ending = service.begin_end(PAIR, commit=True)
    wait_until(lambda: fake.of(Api.END_TXN), what="EndTxn to arrive")
    assert ending is not None
    assert ending() == EndTxnAnswer(0, "NONE", after)
    (request,) = fake.of(Api.END_TXN)
    assert (request.version, request.body.committed) == (version, True)
    assert service.describe().state == "CompleteCommit"


@pytest.mark.parametrize(
    "step", [hang_up, lose_answer, *(pytest.param(answer(code), id=code.name) for code in ASK_AGAIN)]
)
def test_where_end_has_to_go_on_there_is_no_answer(fake: FakeCluster, cluster: Cluster, step: Step) -> None:
    fake.know(OPEN)
    service = service_on(cluster)
    fake.script(Api.END_TXN, step)
    ending = service.begin_end(PAIR, commit=True)
    assert ending is not None
    assert ending() is None
    assert service.end(PAIR, commit=True) == EndTxnAnswer(0, "NONE", ProducerIdAndEpoch(7, 4))


def test_nothing_is_sent_now_where_something_else_has_to_be_asked_before(
    fake: FakeCluster, cluster: Cluster, client: TransactionClient
) -> None:
    """A caller who does not wait for Kafka must not wait for any of it."""
    service = service_on(cluster)
    client.refresh_features()
    assert client.begin_end(PAIR, commit=True) is None, "how old its features may be it was not told"
    del cluster.coordinators["orders"]
    assert service.begin_end(PAIR, commit=True) is None
    service.describe()
    fake.script(Api.API_VERSIONS, keep_silent)
    cluster.forget_features()
    assert service.begin_end(PAIR, commit=True) is None, "the versions are not known"
    assert not fake.of(Api.END_TXN)


def test_a_coordinator_that_moved_is_found_again() -> None:
    with fake_cluster(brokers=2) as fake, Cluster(options_for(fake)) as cluster:
        client = client_on(cluster)
        assert client.init_producer_id().producer.epoch == 0

        def move() -> None:
            fake.coordinator = 1

        fake.know(OPEN)
        fake.script(Api.END_TXN, after(move, Code.NOT_COORDINATOR))
        assert client.end(PAIR, commit=True).code == Code.NONE
        assert [request.node_id for request in fake.of(Api.END_TXN)] == [0, 1]


def test_a_coordinator_without_the_bump_is_refused_on_transaction_version_2(
    fake: FakeCluster, client: TransactionClient
) -> None:
    """Ended by version 4, the pair would not name one transaction any more."""
    fake.versions[Api.END_TXN] = (0, 4)
    with pytest.raises(KafkaError) as caught:
        client.end(PAIR, commit=True)
    assert caught.value.code == Code.UNSUPPORTED_VERSION
    assert fake.of(Api.END_TXN) == []


# --- the rest -----------------------------------------------------------------------------------------------------


def test_an_unknown_id_is_a_state_and_not_an_error(fake: FakeCluster, client: TransactionClient) -> None:
    """B9: the coordinator forgets an id after transactional.id.expiration.ms."""
    fake.script(Api.DESCRIBE_TRANSACTIONS, answer(Code.TRANSACTIONAL_ID_NOT_FOUND))
    described = client.describe()
    assert (described.state, described.producer) == ("Unknown", None)


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("code", ASK_AGAIN, ids=lambda code: code.name)
def test_partitions_are_added_all_or_none(fake: FakeCluster, client: TransactionClient, code: Code) -> None:
    fake.script(Api.ADD_PARTITIONS_TO_TXN, answer(code), lose_answer)
    client.add_partitions(PAIR, [T0, T1, T0])
    assert fake.added == {T0, T1}
    assert {request.version for request in fake.of(Api.ADD_PARTITIONS_TO_TXN)} == {3}


def test_a_service_asks_for_features_once_in_a_while(fake: FakeCluster, cluster: Cluster) -> None:
    """B24: not with each of its transactions; an answer that is too old is asked for again."""
    patient = service_on(cluster)
    fake.transaction_version, fake.features_epoch = 1, 2
    patient.refresh_features()
    assert (patient.transaction_version, patient.ends_with_bump()) == (2, True)
    hasty = TransactionClient(cluster, "orders", cluster.options, features_age_ms_max=1)
    wait_until(lambda: not hasty.ends_with_bump(), what="the answer to be too old")


def test_of_two_brokers_the_newer_features_are_believed(fake: FakeCluster, client: TransactionClient) -> None:
    """B24, KIP-584: one that has not heard of a change yet tells the old level with a smaller epoch."""
    assert (client.cluster_id, client.transaction_version) == ("fake-cluster", 2)
    fake.transaction_version, fake.features_epoch = 0, 5
    assert client.transaction_version == 2
    client.refresh_features()
    assert client.transaction_version == 0
    fake.transaction_version, fake.features_epoch = 2, 4
    client.refresh_features()
    assert client.transaction_version == 0
    client.refresh()
    assert client.transaction_version == 0
    fake.features_epoch = 6
    client.refresh_features()
    assert client.transaction_version == 2


@pytest.mark.parametrize(("began", "now", "version"), [(2, 2, 5), (2, 1, 4), (2, 0, 4), (0, 2, 4), (1, 1, 4)])
def test_a_transaction_ends_as_both_levels_allow(
    fake: FakeCluster, client: TransactionClient, began: int, now: int, version: int
) -> None:
    """B24: Kafka 4.4.0 refuses EndTxn v5 at level 0, and does not let go of the id after that."""
    fake.transaction_version = began
    producer = client.usable_producer().producer
    assert client.transaction_version == began
    fake.transaction_version = now
    client.end(producer, commit=False)
    (ended,) = fake.of(Api.END_TXN)
    assert ended.version == version


# --- an empty transaction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_empty_transaction_names_the_topics_that_take_none(level: int) -> None:
    """B35: AddPartitionsToTxn refuses a diskless topic; the transaction is aborted all the same, and none is open."""
    with (
        fake_cluster(transaction_version=level, topics={"t": 2, "diskless": 1}) as fake,
        Cluster(options_for(fake)) as cluster,
    ):
        fake.script(Api.ADD_PARTITIONS_TO_TXN, answer(Code.INVALID_TOPIC_EXCEPTION))
        refused = try_transaction(cluster, "orders", ["diskless", "t"]).refused
        assert refused.keys() == {"diskless"}
        assert "INVALID_TOPIC_EXCEPTION" in refused["diskless"]
        assert fake.added == {T0}
        assert client_on(cluster).describe().state == "CompleteAbort"


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
    ],
)
def test_it_asks_again_until_the_time_is_over(fake: FakeCluster, cluster: Cluster, api: Api, step: Step) -> None:
    """Who has not been answered for by then is said, with the newest reason."""
    fake.script(api, step)
    assert describe_all(cluster, ["a"], cluster.deadline())["a"] == TransactionDescription("Unknown", None, 0)
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
    wait_until(lambda: len(fake.of(Api.API_VERSIONS)) >= 2, what="the question to arrive")
    fake.transaction_version, fake.features_epoch = 1, 2
    if meanwhile == "another transaction began":
        client.prefetch_features()
    elif meanwhile == "minutes passed":
        monkeypatch.setattr(cluster_module, "_PREFETCH_AGE_S_MAX", 0.0)
    if meanwhile == "something was refused":
        client.refresh()
    else:
        client.refresh_features()
    assert client.transaction_version == 1
