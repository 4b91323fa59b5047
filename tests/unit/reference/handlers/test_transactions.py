"""The transaction APIs from message to message, in all their versions."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka.protocol import admin, producer

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator import Code, Settings, TransactionState
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, Operation, Resource
from spark_2pc_sink.reference.metadata.catalog_state import Topic
from spark_2pc_sink.reference.network.request_channel import join
from spark_2pc_sink.reference.protocol.api import Api, handlers_of
from tests.unit.reference.coordinator.access import denied
from tests.unit.reference.coordinator.driver import metadata
from tests.unit.reference.node import START_MS, TID, Node, batch, exchange, node
from tests.unit.reference.seeds import known, seeded

T0 = TopicPartition("t", 0)
Added = producer.AddPartitionsToTxnRequest


async def test_the_versions_are_those_of_kafka_and_six_of_init_producer_id_is_unstable() -> None:
    async with node(known()) as running:
        stable = join([handlers_of(running.transactions)], unstable_versions=False)
        offered = {api: (each.version_min, each.version_max) for api, each in stable.items()}
        assert offered == {
            Api.INIT_PRODUCER_ID: (0, 5),
            Api.ADD_PARTITIONS_TO_TXN: (0, 5),
            Api.ADD_OFFSETS_TO_TXN: (0, 4),
            Api.END_TXN: (0, 5),
            Api.WRITE_TXN_MARKERS: (1, 2),
            Api.DESCRIBE_TRANSACTIONS: (0, 0),
            Api.LIST_TRANSACTIONS: (0, 2),
        }
        assert handlers_of(running.transactions)[Api.INIT_PRODUCER_ID].version_max == 6


@pytest.mark.parametrize("longest", ["x" * 32767, "\u00fc" * 16383 + "x"])
async def test_an_id_that_no_record_can_hold_is_refused_and_nothing_stays_pending(longest: str) -> None:
    """Its length stands in two bytes of the log's key (TransactionLogKey). Kafka closes the connection, too."""
    async with node() as running:
        assert (await running.init(longest)).error_code == 0
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match="more than 32767 bytes"):
                await running.init(longest + "x")
        assert running.state(longest + "x") == ""


@pytest.mark.parametrize("version", range(7))
async def test_init_producer_id(version: int) -> None:
    async with node(known()) as running:
        made = await running.init(version=version)
        assert (made.throttle_time_ms, made.error_code) == (0, 0)
        assert (made.producer_id, made.producer_epoch) == (42, 6)
        assert (made.ongoing_txn_producer_id, made.ongoing_txn_producer_epoch) == (-1, -1)
        if version >= 3:
            stale = await running.init(version=version, producer_id=42, producer_epoch=1)
            assert (stale.producer_id, stale.producer_epoch) == (-1, -1)
            fenced = Code.PRODUCER_FENCED if version >= 4 else Code.INVALID_PRODUCER_EPOCH
            assert stale.error_code == fenced
        if version >= 6:
            assert (await running.init(keep_prepared_txn=True)).error_code == Code.UNSUPPORTED_VERSION
        assert (await running.init("", version=version)).error_code == Code.INVALID_REQUEST
        too_long = await running.init(version=version, transaction_timeout_ms=900_001)
        assert too_long.error_code == Code.INVALID_TRANSACTION_TIMEOUT


async def test_init_producer_id_passes_the_flags_of_two_phase_commit() -> None:
    async with node(known(), settings=Settings()) as running:
        assert (await running.init(enable2_pc=True)).error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", range(4))
async def test_a_client_adds_all_partitions_or_none(version: int) -> None:
    async with node(known()) as running:
        assert await running.add((42, 5), ("t", 0), ("missing", 0), version=version) == [55, 3]
        assert await running.add((42, 5), ("t", 0), ("t", 3), ("t", -1), version=version) == [55, 3, 3]
        assert running.service.state.get(TID) == metadata(TransactionState.COMPLETE_COMMIT)
        fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
        assert await running.add((42, 4), ("t", 0), version=version) == [fenced]
        assert await running.add((42, 5), ("t", 0), ("u", 0), version=version) == [0, 0]
        found = running.service.state.get(TID)
        assert found is not None
        assert found.partitions == {T0, TopicPartition("u", 0)}


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
async def test_what_a_client_may_not_add_to_a_transaction_it_may_not_produce_to(name: str) -> None:
    """The names are those of ``Topic.INTERNAL_TOPICS`` of Kafka 4.4.0."""
    async with node(known()) as running:
        running.disk.topics.setdefault(name, Topic(name, uuid.uuid4(), 1))
        before = running.batches(name)
        assert await running.add((42, 5), (name, 0)) == [Code.TOPIC_AUTHORIZATION_FAILED]
        answers = await running.produce({(name, 0): batch(b"v")}, tid=None)
        assert answers[name, 0].error_code == Code.INVALID_TOPIC_EXCEPTION
        assert running.batches(name) == before


async def _add_batch(running: Node, version: int, *transactions: Any, access: Access = FULL_ACCESS) -> Any:
    return await exchange(
        running.transactions.add_partitions,
        Added(transactions=list(transactions)),
        producer.AddPartitionsToTxnResponse,
        version,
        access=access,
    )


def _transaction(tid: str, pair: tuple[int, int], *indexes: int, verify_only: bool = False) -> Any:
    return Added.AddPartitionsToTxnTransaction(
        transactional_id=tid,
        producer_id=pair[0],
        producer_epoch=pair[1],
        verify_only=verify_only,
        topics=[Added.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic(name="t", partitions=list(indexes))],
    )


def _results(response: Any) -> dict[str, list[int]]:
    return {
        each.transactional_id: [
            row.partition_error_code for topic in each.topic_results for row in topic.results_by_partition
        ]
        for each in response.results_by_transaction
    }


@pytest.mark.parametrize("version", [4, 5])
async def test_a_broker_adds_and_verifies_in_batches_and_each_transaction_is_answered_for_itself(version: int) -> None:
    async with node(known()) as running:
        response = await _add_batch(
            running,
            version,
            _transaction(TID, (42, 5), 0, 1),
            _transaction("nobody", (1, 1), 0),
        )
        assert (response.throttle_time_ms, response.error_code) == (0, 0)
        assert _results(response) == {TID: [0, 0], "nobody": [49]}
        # As of Kafka 4.4.0 brokers, too, name partitions that exist, or nothing is added.
        for verify_only in (False, True):
            missing = await _add_batch(running, version, _transaction(TID, (42, 5), 2, 9, verify_only=verify_only))
            assert _results(missing) == {TID: [Code.OPERATION_NOT_ATTEMPTED, Code.UNKNOWN_TOPIC_OR_PARTITION]}
        verified = await _add_batch(running, version, _transaction(TID, (42, 5), 1, 2, verify_only=True))
        assert _results(verified) == {TID: [0, Code.TRANSACTION_ABORTABLE]}
        found = running.service.state.get(TID)
        assert found is not None
        assert found.client_transaction_version == 2


async def test_only_brokers_may_send_batches() -> None:
    async with node(known()) as running:
        access = denied((Operation.CLUSTER_ACTION, Resource.CLUSTER, "*"))
        response = await _add_batch(running, 5, _transaction(TID, (42, 5), 0), access=access)
        assert (response.error_code, response.results_by_transaction) == (Code.CLUSTER_AUTHORIZATION_FAILED, [])


@pytest.mark.parametrize("version", range(5))
async def test_add_offsets_adds_the_partition_of_the_group(version: int) -> None:
    async with node(known()) as running:

        async def add(epoch: int, access: Access = FULL_ACCESS) -> Any:
            request = producer.AddOffsetsToTxnRequest(
                transactional_id=TID, producer_id=42, producer_epoch=epoch, group_id="g"
            )
            return await exchange(
                running.transactions.add_offsets, request, producer.AddOffsetsToTxnResponse, version, access=access
            )

        fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
        assert (await add(4)).error_code == fenced
        assert (
            await add(5, denied((Operation.READ, Resource.GROUP, "g")))
        ).error_code == Code.GROUP_AUTHORIZATION_FAILED
        added = await add(5)
        assert (added.throttle_time_ms, added.error_code) == (0, 0)
        found = running.service.state.get(TID)
        assert found is not None
        assert {each.topic for each in found.partitions} == {"__consumer_offsets"}


@pytest.mark.parametrize("version", range(6))
async def test_end_txn(version: int) -> None:
    async with node(known()) as running:
        fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
        refused = await running.end((42, 3), version=version)
        assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (fenced, -1, -1)
        assert await running.add((42, 5), ("t", 0)) == [0]
        ended = await running.end((42, 5), version=version)
        expected = (42, 6) if version >= 5 else (-1, -1)
        assert (ended.throttle_time_ms, ended.error_code) == (0, 0)
        assert (ended.producer_id, ended.producer_epoch) == expected
        await running.settled()
        assert running.markers_of() == [(42, 6 if version >= 5 else 5, "commit")]


# --- markers of others ------------------------------------------------------------------------------------------------


def _marker(pair: tuple[int, int], *topics: tuple[str, list[int]], commit: bool = False, **fields: int) -> Any:
    kind = producer.WriteTxnMarkersRequest.WritableTxnMarker
    return kind(
        producer_id=pair[0],
        producer_epoch=pair[1],
        transaction_result=commit,
        topics=[kind.WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics],
        **{"coordinator_epoch": 0, "transaction_version": 0} | fields,
    )


async def _write(
    running: Node, *markers: Any, version: int = 2, access: Access = FULL_ACCESS
) -> list[tuple[int, dict[tuple[str, int], int]]]:
    response = await exchange(
        running.transactions.write_markers,
        producer.WriteTxnMarkersRequest(markers=list(markers)),
        producer.WriteTxnMarkersResponse,
        version,
        access=access,
    )
    return [
        (
            each.producer_id,
            {(topic.name, row.partition_index): row.error_code for topic in each.topics for row in topic.partitions},
        )
        for each in response.markers
    ]


@pytest.mark.parametrize("version", [1, 2])
async def test_markers_of_another_coordinator_are_written_and_durable(version: int) -> None:
    async with node(seeded(data={T0: (42, 5)})) as running:
        marker = _marker((42, 5), ("t", [0, 7]), ("missing", [0]))
        assert await _write(running, marker, version=version) == [(42, {("t", 0): 0, ("t", 7): 3, ("missing", 0): 3})]
        assert running.markers_of() == [(42, 5, "abort")]
        got = await running.read()
        assert got.last_stable_offset == got.high_watermark == 2


async def test_the_version_of_a_marker_decides_how_its_epoch_is_checked() -> None:
    async with node(seeded(data={T0: (42, 5)})) as running:
        strict = _marker((42, 5), ("t", [0]), transaction_version=2)
        assert await _write(running, strict) == [(42, {("t", 0): Code.INVALID_PRODUCER_EPOCH})]
        # v1 has no such field.
        assert await _write(running, strict, version=1) == [(42, {("t", 0): 0})]


async def test_codes_of_one_producer_id_are_merged() -> None:
    async with node(known()) as running:
        markers = [
            _marker((42, 5), ("t", [0, 2])),
            _marker((7, 0), ("t", [1])),
            _marker((42, 4), ("t", [0]), ("u", [0])),
        ]
        assert await _write(running, *markers) == [
            (42, {("t", 0): Code.INVALID_PRODUCER_EPOCH, ("t", 2): 0, ("u", 0): 0}),
            (7, {("t", 1): 0}),
        ]
        assert await _write(running) == []


async def test_a_later_coordinator_fences_an_earlier_one() -> None:
    async with node(known()) as running:
        assert await _write(running, _marker((42, 5), ("t", [0]), coordinator_epoch=3)) == [(42, {("t", 0): 0})]
        assert await _write(running, _marker((42, 5), ("t", [0]), coordinator_epoch=2)) == [
            (42, {("t", 0): Code.TRANSACTION_COORDINATOR_FENCED})
        ]


async def test_markers_need_a_grant_on_the_cluster_one_of_two() -> None:
    async with node(known()) as running:
        alter, act = ((each, Resource.CLUSTER, "*") for each in (Operation.ALTER, Operation.CLUSTER_ACTION))
        marker = _marker((42, 5), ("t", [0, 1]))
        refused = {("t", 0): Code.CLUSTER_AUTHORIZATION_FAILED, ("t", 1): Code.CLUSTER_AUTHORIZATION_FAILED}
        assert await _write(running, marker, access=denied(alter, act)) == [(42, refused)]
        assert running.markers_of() == []
        for one in (alter, act):
            assert await _write(running, marker, access=denied(one)) == [(42, dict.fromkeys(refused, 0))]


# --- queries ----------------------------------------------------------------------------------------------------------


async def test_describe_transactions() -> None:
    async with node(known()) as running:
        assert await running.add((42, 5), ("u", 0), ("t", 1)) == [0, 0]
        request = admin.DescribeTransactionsRequest(transactional_ids=[TID, "nobody", ""])
        response = await exchange(
            running.transactions.describe_transactions, request, admin.DescribeTransactionsResponse, 0
        )
        found, unknown, empty = response.transaction_states
        assert (found.error_code, found.transactional_id, found.transaction_state) == (0, TID, "Ongoing")
        assert (found.producer_id, found.producer_epoch) == (42, 5)
        assert (found.transaction_timeout_ms, found.transaction_start_time_ms) == (60_000, START_MS)
        assert [(topic.topic, topic.partitions) for topic in found.topics] == [("t", [1]), ("u", [0])]
        assert (unknown.error_code, unknown.transactional_id, unknown.topics) == (105, "nobody", [])
        assert (unknown.transaction_state, unknown.producer_id, unknown.transaction_timeout_ms) == ("", 0, 0)
        assert empty.error_code == Code.INVALID_REQUEST


@pytest.mark.parametrize("version", range(3))
async def test_list_transactions(version: int) -> None:
    async with node(known()) as running:
        await running.init("other")

        async def listed(**filters: Any) -> Any:
            request = admin.ListTransactionsRequest(
                **{
                    "state_filters": [],
                    "producer_id_filters": [],
                    "duration_filter": -1,
                    "transactional_id_pattern": None,
                }
                | filters
            )
            return await exchange(
                running.transactions.list_transactions, request, admin.ListTransactionsResponse, version
            )

        def rows(response: Any) -> set[tuple[str, int, str]]:
            return {
                (each.transactional_id, each.producer_id, each.transaction_state)
                for each in response.transaction_states
            }

        everything = await listed()
        assert (everything.throttle_time_ms, everything.error_code, everything.unknown_state_filters) == (0, 0, [])
        both = {(TID, 42, "CompleteCommit"), ("other", 0, "Empty")}
        assert rows(everything) == both
        assert rows(await listed(producer_id_filters=[42])) == {(TID, 42, "CompleteCommit")}
        by_state = await listed(state_filters=["Empty", "Sleeping"])
        assert rows(by_state) == {("other", 0, "Empty")}
        assert by_state.unknown_state_filters == ["Sleeping"]
        if version >= 1:
            running.now_ms += 10**9
            assert rows(await listed(duration_filter=2 * 10**12)) == set()
            assert rows(await listed(duration_filter=5)) == both
        if version >= 2:
            assert rows(await listed(transactional_id_pattern="o.*r")) == {("other", 0, "Empty")}
            broken = await listed(transactional_id_pattern="(")
            assert (broken.error_code, broken.transaction_states) == (Code.INVALID_REGULAR_EXPRESSION, [])


async def test_access_is_passed_on() -> None:
    async with node(known()) as running:
        access = denied((Operation.WRITE, Resource.TRANSACTIONAL_ID, TID))
        for function, request, response_class in (
            (
                running.transactions.init_producer_id,
                producer.InitProducerIdRequest(
                    transactional_id=TID, transaction_timeout_ms=1, producer_id=-1, producer_epoch=-1
                ),
                producer.InitProducerIdResponse,
            ),
            (
                running.transactions.end_txn,
                producer.EndTxnRequest(transactional_id=TID, producer_id=42, producer_epoch=5, committed=True),
                producer.EndTxnResponse,
            ),
        ):
            response = await exchange(function, request, response_class, 5, access=access)
            assert response.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        listed = await exchange(
            running.transactions.list_transactions,
            admin.ListTransactionsRequest(state_filters=[], producer_id_filters=[]),
            admin.ListTransactionsResponse,
            0,
            access=denied((Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, TID)),
        )
        assert listed.transaction_states == []
