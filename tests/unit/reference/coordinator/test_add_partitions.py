"""AddPartitionsToTxn, verification and AddOffsetsToTxn: front door, order of checks, and what joining does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.add_partitions import batch_allowed
from spark_2pc_sink.reference.coordinator.events import (
    CLUSTER_NAME,
    FULL_ACCESS,
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    Operation,
    Resource,
)
from spark_2pc_sink.reference.coordinator.plans import AddOffsetsReply, AddPartitionsReply
from spark_2pc_sink.reference.coordinator.states import TransactionState

from .access import denied
from .driver import RELEASED, T0, T1, TID, Driver, metadata


def add(*partitions: TopicPartition, **fields: object) -> AddPartitionsToTxn:
    values = {"transactional_id": TID, "producer_id": 42, "producer_epoch": 5, "partitions": partitions or (T0,)}
    return AddPartitionsToTxn(**(values | fields))  # type: ignore[arg-type]


def offsets(**fields: object) -> AddOffsetsToTxn:
    values = {"transactional_id": TID, "producer_id": 42, "producer_epoch": 5, "group_id": "g"}
    return AddOffsetsToTxn(**(values | fields))  # type: ignore[arg-type]


def refused(driver: Driver, event: AddPartitionsToTxn) -> dict[TopicPartition, int]:
    reply = driver.refused(event)
    assert isinstance(reply, AddPartitionsReply)
    return reply.codes


INTERNAL = TopicPartition("__consumer_offsets", 0)


class TestFrontDoorOfClients:
    """v<4: all partitions or none."""

    def test_without_write_on_the_id_every_partition_is_53(self) -> None:
        access = denied((Operation.WRITE, Resource.TRANSACTIONAL_ID, TID))
        codes = refused(Driver.of(), add(T0, INTERNAL, version=3, access=access))
        assert codes == dict.fromkeys((T0, INTERNAL), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    @pytest.mark.parametrize("version", [4, 5])
    def test_brokers_pass_it(self, version: int) -> None:
        """v4/5: no topic auth; the group coordinator adds __consumer_offsets this way."""
        access = denied((Operation.WRITE, Resource.TOPIC, "*"), (Operation.WRITE, Resource.TRANSACTIONAL_ID, "*"))
        driver = Driver.of(metadata(TransactionState.ONGOING))
        driver.run(add(INTERNAL, version=version, access=access))
        assert driver.get().partitions == {T0, INTERNAL}

    @pytest.mark.parametrize("version", [4, 5])
    @pytest.mark.parametrize("verify_only", [False, True])
    def test_brokers_name_partitions_that_exist(self, version: int, verify_only: bool) -> None:
        """Measured on Kafka 4.4.0: an unknown partition -> 3 and every other one 55, as for clients."""
        event = add(T0, T1, version=version, verify_only=verify_only, unknown=frozenset({T1}))
        assert refused(Driver.of(metadata(TransactionState.ONGOING)), event) == {
            T0: Code.OPERATION_NOT_ATTEMPTED,
            T1: Code.UNKNOWN_TOPIC_OR_PARTITION,
        }

    def test_only_brokers_may_send_a_batch(self) -> None:
        """CLUSTER_ACTION else top-level 31; a batch has per-transaction results, top-level 0."""
        access = denied((Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME))
        assert batch_allowed(access) == Code.CLUSTER_AUTHORIZATION_FAILED
        assert batch_allowed(FULL_ACCESS) == Code.NONE


def test_a_client_of_transaction_version_2_does_not_fit_a_log_of_version_0() -> None:
    driver = Driver.of(
        metadata(TransactionState.EMPTY, client_transaction_version=0),
        settings=replace(RELEASED, transaction_version=0),
    )
    assert refused(driver, add()) == {T0: Code.UNSUPPORTED_VERSION}
    assert driver.add((42, 5), version=3) == {0}


def test_an_id_that_never_got_an_epoch_takes_nothing() -> None:
    """Left by a first InitProducerId whose append failed."""
    never = metadata(TransactionState.EMPTY, (42, -1))
    assert refused(Driver.of(never), add(producer_epoch=-1)) == {T0: Code.UNKNOWN_SERVER_ERROR}


class TestAddOffsets:
    """AddOffsetsToTxn adds `__consumer_offsets`-partitionFor(group), with a single error code."""

    def test_rights_are_asked_in_kafkas_order(self) -> None:
        """WRITE on the id else 53, then group READ else 30."""
        write = (Operation.WRITE, Resource.TRANSACTIONAL_ID, TID)
        read = (Operation.READ, Resource.GROUP, "g")
        assert Driver.of().refused(offsets(access=denied(write, read))) == AddOffsetsReply(53)
        assert Driver.of().refused(offsets(access=denied(read))) == AddOffsetsReply(30)
