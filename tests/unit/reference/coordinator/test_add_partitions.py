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
    InitProducerId,
    Operation,
    Resource,
)
from spark_2pc_sink.reference.coordinator.plans import AddOffsetsReply, AddPartitionsReply
from spark_2pc_sink.reference.coordinator.states import STATES_BY_LABEL, TransactionState

from .access import denied
from .driver import RELEASED, T0, T1, T2, TID, Driver, metadata


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


AT_REST = ["Empty", "CompleteCommit", "CompleteAbort"]
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

    def test_each_transaction_of_a_batch_is_answered_by_itself(self) -> None:
        driver = Driver.of(metadata(TransactionState.EMPTY))
        replies = [driver.run(each) for each in (add(), replace(add(), transactional_id="other"))]
        assert replies == [
            AddPartitionsReply(TID, ((T0, 0),)),
            AddPartitionsReply("other", ((T0, Code.INVALID_PRODUCER_ID_MAPPING),)),
        ]


#: The pair is right unless the case says otherwise; the order of the cases is the order of the checks.
REFUSALS = {
    "empty id: 42": (None, {"transactional_id": ""}, 42),
    "unknown id: 49": (None, {}, 49),
    "pending comes before the pair: 51": (
        metadata(TransactionState.EMPTY, pending=TransactionState.ONGOING),
        {"producer_id": 1, "producer_epoch": 1},
        51,
    ),
    "another producer id: 49": (metadata(TransactionState.PREPARE_COMMIT), {"producer_id": 1, "producer_epoch": 1}, 49),
    "a stale epoch: 90": (metadata(TransactionState.PREPARE_COMMIT), {"producer_epoch": 4}, 90),
    "a future epoch: 90": (metadata(TransactionState.ONGOING), {"producer_epoch": 6}, 90),
    "PrepareCommit: 51": (metadata(TransactionState.PREPARE_COMMIT), {}, 51),
    "PrepareAbort: 51": (metadata(TransactionState.PREPARE_ABORT), {}, 51),
    "an id whose first record was never written: -1": (
        metadata(TransactionState.EMPTY, (42, -1)),
        {"producer_epoch": -1},
        -1,
    ),
}


@pytest.mark.parametrize(("known", "fields", "code"), REFUSALS.values(), ids=REFUSALS.keys())
@pytest.mark.parametrize("version", [0, 3, 5])
def test_who_may_not_add(known: object, fields: dict[str, object], code: int, version: int) -> None:
    driver = Driver.of(*(() if known is None else (known,)))
    expected = Code.INVALID_PRODUCER_EPOCH if code == 90 and version < 2 else code
    assert refused(driver, add(T1, T2, version=version, **fields)) == {T1: expected, T2: expected}
    assert driver.refused(offsets(version=min(version, 4), **fields)) == AddOffsetsReply(expected)


@pytest.mark.parametrize("label", AT_REST)
@pytest.mark.parametrize(("version", "client_version"), [(3, 0), (4, 2), (5, 2)])
def test_the_first_partition_opens_the_transaction(label: str, version: int, client_version: int) -> None:
    """Any of Empty/CompleteCommit/CompleteAbort is fine; Ongoing from a non-Ongoing state: start := now."""
    driver = Driver.of(metadata(STATES_BY_LABEL[label], client_transaction_version=1))
    driver.now_ms += 5
    assert driver.add((42, 5), T1, version=version) == {0}
    assert driver.get() == metadata(
        TransactionState.ONGOING,
        start_ms=driver.now_ms,
        last_update_ms=driver.now_ms,
        partitions=frozenset({T1}),
        client_transaction_version=client_version,
    )


def test_a_client_of_transaction_version_2_does_not_fit_a_log_of_version_0() -> None:
    driver = Driver.of(
        metadata(TransactionState.EMPTY, client_transaction_version=0),
        settings=replace(RELEASED, transaction_version=0),
    )
    assert refused(driver, add()) == {T0: Code.UNSUPPORTED_VERSION}
    assert driver.add((42, 5), version=3) == {0}


class TestAddOffsets:
    """AddOffsetsToTxn adds `__consumer_offsets`-partitionFor(group), with a single error code."""

    def test_rights_are_asked_in_kafkas_order(self) -> None:
        """WRITE on the id else 53, then group READ else 30."""
        write = (Operation.WRITE, Resource.TRANSACTIONAL_ID, TID)
        read = (Operation.READ, Resource.GROUP, "g")
        assert Driver.of().refused(offsets(access=denied(write, read))) == AddOffsetsReply(53)
        assert Driver.of().refused(offsets(access=denied(read))) == AddOffsetsReply(30)

    def test_a_failed_append_is_answered(self) -> None:
        driver = Driver.of(metadata(TransactionState.EMPTY))
        driver.append_code = Code.REQUEST_TIMED_OUT
        assert driver.run(offsets()) == AddOffsetsReply(Code.COORDINATOR_NOT_AVAILABLE)


def test_a_new_producer_after_expiry_is_not_confused_with_the_old_one() -> None:
    """Expired ids: AddPartitions -> 49; B9."""
    driver = Driver.of()
    driver.run(InitProducerId(transactional_id=TID))
    assert driver.add((42, 5)) == {Code.INVALID_PRODUCER_ID_MAPPING}
