"""Requests as a broker would decode them, and responses as it would encode them, both by kafka-python."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsResponse, FindCoordinatorResponse, MetadataResponse
from kafka.protocol.producer import InitProducerIdResponse

from spark_2pc_sink.errors import KafkaError, LocalProtocolError, RemoteProtocolError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.reference.protocol import REQUESTS as SCHEMAS
from spark_2pc_sink.wire import api_versions, messages
from spark_2pc_sink.wire.api_versions import VERSIONS, Api, ApiVersionsReply, VersionRange
from spark_2pc_sink.wire.framed_request import RequestTemplate, end_txn_request, produce_request
from spark_2pc_sink.wire.messages import ConfigResource, IsolationLevel, OffsetSpec
from tests.unit.reference.batches import message

PRODUCER = ProducerIdAndEpoch(2**40, 32_766)
ORDERS_0, ORDERS_3, AUDIT_1 = TopicPartition("orders", 0), TopicPartition("orders", 3), TopicPartition("audit", 1)


def versions(api: Api) -> list[int]:
    return list(range(VERSIONS[api].oldest, VERSIONS[api].newest + 1))


def as_broker_sees_it(request: Any) -> dict[str, Any]:
    data = request.encode(correlation_id=7, client_id="tést")
    seen = SCHEMAS[request.api].decode(data, version=request.version, header=True, framed=True)
    head = seen.header
    assert (head.request_api_key, head.request_api_version) == (request.api, request.version)
    assert (head.correlation_id, head.client_id) == (7, "tést")
    fields: dict[str, Any] = seen.to_dict(json=False)
    return fields


def answered(response: Any) -> Any:
    """The response after a journey over the wire."""
    response.with_header(correlation_id=7)
    data = bytes(response.encode(header=True, framed=True))
    return type(response).decode(data, version=response.API_VERSION, header=True, framed=True)


# --- requests ---------------------------------------------------------------------------------------------------


LISTED = {"name": "orders", "partitions": [0, 3]}
LOOKUPS = {ORDERS_0: OffsetSpec.LATEST, ORDERS_3: 1234}


def init(**flags: bool) -> RequestTemplate:
    return messages.init_producer_id_request("tid", timeout_ms=60_000, **flags)


def marker() -> RequestTemplate:
    return messages.write_txn_markers_request(PRODUCER, ORDERS_3, coordinator_epoch=5)


#: What is built, and what a broker sees of it. An empty list of topics asks for none, and null for all. A request for
#: a pair names none, which fences everyone (KIP-360).
REQUESTS: list[tuple[RequestTemplate, dict[str, Any]]] = [
    (
        messages.metadata_request(["b", "a", "a"]),
        {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False},
    ),
    (messages.metadata_request([]), {"topics": []}),
    (
        messages.metadata_request(None, operations=True),
        {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": True},
    ),
    (
        messages.find_coordinators_request(["tid", "other"]),
        {"key_type": 1, "coordinator_keys": ["tid", "other"]},
    ),
    (
        init(),
        {"producer_id": -1, "producer_epoch": -1, "transactional_id": "tid", "transaction_timeout_ms": 60_000},
    ),
    (
        messages.add_partitions_request("tid", PRODUCER, [ORDERS_3, AUDIT_1, ORDERS_0, ORDERS_0]),
        {
            "v3_and_below_transactional_id": "tid",
            "v3_and_below_producer_id": 2**40,
            "v3_and_below_producer_epoch": 32_766,
            "v3_and_below_topics": [{"name": "audit", "partitions": [1]}, LISTED],
        },
    ),
    (
        messages.list_transactions_request(states=["Ongoing"], producer_ids=[5]),
        {"state_filters": ["Ongoing"], "producer_id_filters": [5]},
    ),
    (
        messages.describe_configs_request(ConfigResource.BROKER, "1", ["a"]),
        {"resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": ["a"]}]},
    ),
    (
        messages.fetch_request({ORDERS_3: 11, ORDERS_0: 5}, max_wait_ms=50, bytes_max=1000),
        {
            "replica_id": -1,
            "session_id": 0,
            "session_epoch": -1,
            "isolation_level": 0,
            "min_bytes": 1,
            "max_bytes": 1000,
        },
    ),
    (
        messages.list_offsets_request(LOOKUPS, isolation=IsolationLevel.READ_COMMITTED),
        {"replica_id": -1, "isolation_level": 1},
    ),
]


@pytest.mark.parametrize(("asked", "fields"), REQUESTS)
def test_a_request_as_a_broker_sees_it(asked: RequestTemplate, fields: dict[str, Any]) -> None:
    for version in versions(asked.api):
        seen = as_broker_sees_it(asked.build(version))
        assert {name: seen[name] for name in fields} == fields


def test_a_login_names_its_mechanism() -> None:
    assert as_broker_sees_it(messages.sasl_handshake_request("PLAIN").build(1))["mechanism"] == "PLAIN"


@pytest.mark.parametrize("two_phase", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_init_producer_id_carries_both_flags_or_is_refused(two_phase: bool, keep: bool) -> None:
    """KIP-939, "Protocol Changes": from version 6 on. Dropped before, the broker would abort what was prepared."""
    flags = {"enable_two_phase_commit": two_phase, "keep_prepared": keep}
    seen = as_broker_sees_it(init(**flags).build(6))
    assert (seen["enable2_pc"], seen["keep_prepared_txn"]) == (two_phase, keep)
    if two_phase or keep:
        with pytest.raises(LocalProtocolError, match=r"brokers read it from version 6 on \(KIP-939"):
            init(**flags).build(5)


@pytest.mark.parametrize(
    ("filters", "oldest", "source"),
    [
        ({"running_longer_than_ms": 9}, 1, "KIP-994"),
        ({"transactional_id_pattern": "orders-.*"}, 2, "KIP-1152"),
    ],
)
def test_a_filter_is_sent_or_refused(filters: dict[str, Any], oldest: int, source: str) -> None:
    """Dropped silently it would list everything."""
    request = messages.list_transactions_request(**filters)
    seen = as_broker_sees_it(request.build(oldest))
    assert {*filters.values()} <= {seen["duration_filter"], seen.get("transactional_id_pattern")}
    with pytest.raises(LocalProtocolError, match=f"from version {oldest} on .{source}"):
        request.build(oldest - 1)


def test_write_txn_markers() -> None:
    """KIP-1228: TransactionVersion is 0, so that the leader takes the epoch of the transaction itself."""
    for version in versions(Api.WRITE_TXN_MARKERS):
        (seen,) = as_broker_sees_it(marker().build(version))["markers"]
        assert seen.pop("transaction_version", 0) == 0
        assert seen == {
            "producer_id": 2**40,
            "producer_epoch": 32_766,
            "transaction_result": False,
            "topics": [{"name": "orders", "partition_indexes": [3]}],
            "coordinator_epoch": 5,
        }


ALL: dict[Api, RequestTemplate] = {
    request.api: request
    for request in (
        *(request for request, _ in REQUESTS),
        produce_request("tid", {}, timeout_ms=1),
        messages.api_versions_request("spark-2pc-sink"),
        end_txn_request("tid", PRODUCER, commit=True),
        messages.describe_producers_request([]),
        messages.describe_transactions_request([]),
        marker(),
    )
}


@pytest.mark.parametrize("api", list(VERSIONS), ids=lambda api: api.name)
def test_every_api_is_built_at_its_versions(api: Api) -> None:
    for version in versions(api):
        built = ALL[api].build(version)
        assert (api, version) == (built.api, built.version)


# --- the choice of a version ------------------------------------------------------------------------------------


def offering(oldest: int, newest: int) -> ApiVersionsReply:
    return ApiVersionsReply({Api.END_TXN: VersionRange(oldest, newest)})


@pytest.mark.parametrize(
    ("oldest", "newest", "bounds", "chosen"), [(0, 9, {}, 5), (0, 4, {}, 4), (0, 9, {"at_most": 4}, 4), (5, 5, {}, 5)]
)
def test_the_newest_common_version_is_chosen(oldest: int, newest: int, bounds: dict[str, int], chosen: int) -> None:
    assert api_versions.choose_version(offering(oldest, newest), Api.END_TXN, **bounds) == chosen


@pytest.mark.parametrize(
    ("oldest", "newest", "bounds"), [(0, 2, {}), (6, 9, {}), (5, 9, {"at_most": 4}), (0, 4, {"at_least": 5})]
)
def test_no_common_version_is_error_35(oldest: int, newest: int, bounds: dict[str, int]) -> None:
    with pytest.raises(KafkaError, match=f"the broker offers versions {oldest} to {newest}") as raised:
        api_versions.choose_version(offering(oldest, newest), Api.END_TXN, **bounds)
    assert (raised.value.code, raised.value.name) == (35, "UNSUPPORTED_VERSION")


# --- responses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.API_VERSIONS))
def test_read_api_versions(version: int) -> None:
    response = message(
        ApiVersionsResponse,
        version,
        api_keys=[{"api_key": 22, "min_version": 0, "max_version": 6}],
        finalized_features_epoch=3,
        finalized_features=[{"name": "transaction.version", "max_version_level": 2, "min_version_level": 2}],
    )
    read = ApiVersionsReply.read(answered(response))
    assert read.apis == {22: VersionRange(0, 6)}
    assert (read.features_epoch, read.transaction_version) == (3, 2)


ID = uuid.UUID(int=7)


@pytest.mark.parametrize("version", versions(Api.METADATA))
def test_read_metadata(version: int) -> None:
    response = message(
        MetadataResponse,
        version,
        topics=[
            {"name": "orders", "topic_id": ID, "partitions": [{"partition_index": 0, "leader_id": 3}]},
            {"name": "gone", "error_code": 3},
        ],
    )
    # As Kafka's tools print it (KIP-516); version 9 has none.
    topic_id = "AAAAAAAAAAAAAAAAAAAABw" if version >= 10 else ""
    orders, gone = answered(response).topics
    assert list(map(messages.topic_exists, (orders, gone))) == [True, False]
    assert list(map(messages.topic_id, (orders, gone))) == [topic_id, ""]


def coordinators(*keys: str) -> Any:
    found = [{"key": key, "node_id": 2, "host": "h", "port": 1, "error_code": 15} for key in keys]
    return answered(message(FindCoordinatorResponse, 4, coordinators=found))


def test_read_find_coordinators() -> None:
    read = messages.coordinators_of(coordinators("tid", "other"), ["other", "tid"])
    assert {name: (each.node_id, each.error_code) for name, each in read.items()} == {"tid": (2, 15), "other": (2, 15)}


@pytest.mark.parametrize(
    ("keys", "told"),
    [((), "0 coordinators, 0 of"), (("tid", "tid"), "2 coordinators, 1 of"), (("other",), "1 coordinators, 0 of")],
)
def test_an_answer_about_other_coordinators_is_refused(keys: tuple[str, ...], told: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"for 1 transactional ids answered {told}"):
        messages.coordinators_of(coordinators(*keys), ["tid"])


def init_response(version: int, **fields: Any) -> Any:
    values = {"throttle_time_ms": 0, "error_code": 0, "producer_id": 5, "producer_epoch": 1} | fields
    return answered(InitProducerIdResponse(version=version, **values))


def test_a_refused_init_producer_id_has_no_pair() -> None:
    assert messages.initialized_pair(init_response(6, error_code=90, producer_id=-1, producer_epoch=-1)) is None


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, -1), (-2, 3), (5, -3)])
def test_success_without_a_pair_is_refused(producer_id: int, epoch: int) -> None:
    with pytest.raises(RemoteProtocolError):
        messages.initialized_pair(init_response(5, producer_id=producer_id, producer_epoch=epoch))


def topics(*each: tuple[str, Any], **names: str) -> list[Any]:
    """Topics of an answer, by the names that this API has for a topic and its partitions."""
    return [SimpleNamespace(**{names["topic"]: name, names["parts"]: parts}) for name, parts in each]


def test_answers_are_read_by_partition() -> None:
    """Added partitions, fetched logs, and the partitions of a transaction."""
    added = [SimpleNamespace(partition_index=0, partition_error_code=55)]
    names = {"topic": "name", "parts": "results_by_partition"}
    answer = SimpleNamespace(results_by_topic_v3_and_below=topics(("orders", added), **names))
    assert messages.added_partitions(answer) == {ORDERS_0: 55}
    part = SimpleNamespace(partition_index=3, error_code=47)
    fetched, named = (topics(("orders", [part]), topic=name, parts="partitions") for name in ("topic", "name"))
    answers = SimpleNamespace(responses=fetched), SimpleNamespace(topics=named)
    assert [messages.by_partition(answer) for answer in answers] == [{ORDERS_3: part}] * 2
    open_at = topics(("orders", [3, 0]), ("audit", [1]), topic="topic", parts="partitions")
    transaction = SimpleNamespace(transactional_id="a", topics=open_at)
    described = SimpleNamespace(transaction_states=[transaction])
    assert messages.transaction_partitions(messages.described(described, "a")) == (AUDIT_1, ORDERS_0, ORDERS_3)
    with pytest.raises(RemoteProtocolError, match="did not answer about 'd'"):
        messages.described(described, "d")


def test_configs_are_read_unless_they_may_not_be() -> None:
    """A sensitive value is null."""
    given = {"transaction.max.timeout.ms": "900000", "secret": None}
    configs = [SimpleNamespace(name=name, value=value) for name, value in given.items()]
    resource = SimpleNamespace(resource_name="1", error_code=0, configs=configs)
    answer = SimpleNamespace(results=[resource])
    assert (messages.config_values(answer, "1"), messages.config_values(answer, "2")) == (given, None)
    resource.error_code = 29
    assert messages.config_values(answer, "1") is None
