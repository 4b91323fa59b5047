"""What a request is refused for before its id is looked at, and what the rows of conformance do not reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.add_partitions import batch_allowed
from spark_2pc_sink.reference.coordinator.coordinator_state import NO_BLOCK, ProducerIdBlock, Settings
from spark_2pc_sink.reference.coordinator.events import (
    CLUSTER_NAME,
    FULL_ACCESS,
    AbortTimedOut,
    AclOperation,
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    DescribeTransactions,
    InitProducerId,
    ListTransactions,
    Resource,
)
from spark_2pc_sink.reference.coordinator.plans import (
    AddOffsetsReply,
    AddPartitionsReply,
    AllocateProducerIdBlock,
    DescribedTransaction,
    DescribeTransactionsReply,
    EndTxnReply,
    InitProducerIdReply,
    ListTransactionsReply,
)
from spark_2pc_sink.reference.coordinator.states import NO_PAIR, STATES_BY_LABEL, StateId

from .access import denied
from .driver import RELEASED, T0, T1, TID, Driver, end, metadata


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
        access = denied((AclOperation.WRITE, Resource.TRANSACTIONAL_ID, TID))
        codes = refused(Driver.of(), add(T0, INTERNAL, version=3, access=access))
        assert codes == dict.fromkeys((T0, INTERNAL), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    @pytest.mark.parametrize("version", [4, 5])
    def test_brokers_pass_it(self, version: int) -> None:
        """v4/5: no topic auth; the group coordinator adds __consumer_offsets this way."""
        access = denied((AclOperation.WRITE, Resource.TOPIC, "*"), (AclOperation.WRITE, Resource.TRANSACTIONAL_ID, "*"))
        driver = Driver.of(metadata(StateId.ONGOING))
        driver.run(add(INTERNAL, version=version, access=access))
        assert driver.get().partitions == {T0, INTERNAL}

    @pytest.mark.parametrize("version", [4, 5])
    @pytest.mark.parametrize("verify_only", [False, True])
    def test_brokers_name_partitions_that_exist(self, version: int, verify_only: bool) -> None:
        """Measured on Kafka 4.4.0: an unknown partition -> 3 and every other one 55, as for clients."""
        event = add(T0, T1, version=version, verify_only=verify_only, unknown=frozenset({T1}))
        assert refused(Driver.of(metadata(StateId.ONGOING)), event) == {
            T0: Code.OPERATION_NOT_ATTEMPTED,
            T1: Code.UNKNOWN_TOPIC_OR_PARTITION,
        }

    def test_only_brokers_may_send_a_batch(self) -> None:
        """CLUSTER_ACTION else top-level 31; a batch has per-transaction results, top-level 0."""
        access = denied((AclOperation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME))
        assert batch_allowed(access) == Code.CLUSTER_AUTHORIZATION_FAILED
        assert batch_allowed(FULL_ACCESS) == Code.NONE


def test_a_client_of_transaction_version_2_does_not_fit_a_log_of_version_0() -> None:
    driver = Driver.of(
        metadata(StateId.EMPTY, client_transaction_version=0),
        settings=replace(RELEASED, transaction_version=0),
    )
    assert refused(driver, add()) == {T0: Code.UNSUPPORTED_VERSION}
    assert driver.add((42, 5), version=3) == {0}


def test_an_id_that_never_got_an_epoch_takes_nothing() -> None:
    """Left by a first InitProducerId whose append failed."""
    never = metadata(StateId.EMPTY, (42, -1))
    assert refused(Driver.of(never), add(producer_epoch=-1)) == {T0: Code.UNKNOWN_SERVER_ERROR}


class TestAddOffsets:
    """AddOffsetsToTxn adds `__consumer_offsets`-partitionFor(group), with a single error code."""

    def test_rights_are_asked_in_kafkas_order(self) -> None:
        """WRITE on the id else 53, then group READ else 30."""
        write = (AclOperation.WRITE, Resource.TRANSACTIONAL_ID, TID)
        read = (AclOperation.READ, Resource.GROUP, "g")
        assert Driver.of().refused(offsets(access=denied(write, read))) == AddOffsetsReply(53)
        assert Driver.of().refused(offsets(access=denied(read))) == AddOffsetsReply(30)


@pytest.mark.parametrize("version", [4, 5])
def test_write_on_the_id_is_asked_first(version: int) -> None:
    access = denied((AclOperation.WRITE, Resource.TRANSACTIONAL_ID, TID))
    driver = Driver.of(metadata(StateId.ONGOING))
    event = end((42, 5), version=version, access=access)
    assert driver.refused(event) == EndTxnReply(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def test_without_a_producer_id_left_the_end_waits() -> None:
    """Block exhausted: 14, and nothing has changed."""
    driver = Driver.of(metadata(StateId.ONGOING, (42, 32766)), block=NO_BLOCK)
    before = driver.state
    plan = driver.plan(end((42, 32766)))
    assert plan.effects == (AllocateProducerIdBlock(),)
    assert driver.finish(plan) == EndTxnReply(Code.COORDINATOR_LOAD_IN_PROGRESS)
    assert driver.state == before
    driver.drain()
    assert driver.end((42, 32766)).code == 0


def test_the_broken_epoch_32767_can_only_be_aborted() -> None:
    """Broken state E=32767 (old bugs): abort keeps 32767 and still rotates; commit would go negative: -1."""
    driver = Driver.of(metadata(StateId.ONGOING, (42, 32767)))
    assert driver.refused(end((42, 32767))) == EndTxnReply(Code.UNKNOWN_SERVER_ERROR)
    driver.do(end((42, 32767), commit=False))
    (markers,) = driver.drain()
    assert markers.producer_epoch == 32767
    assert driver.get().pair == (1000, 0)


def test_a_timeout_without_a_producer_id_left_is_tried_again_later() -> None:
    driver = Driver.of(metadata(StateId.ONGOING, (42, 32766)), block=NO_BLOCK)
    driver.now_ms += 60_001
    before = driver.state
    assert driver.do(AbortTimedOut(transactional_id=TID, producer_id=42)) is None
    assert driver.state == before
    driver.drain()
    driver.run(AbortTimedOut(transactional_id=TID, producer_id=42))
    assert driver.get().state is StateId.COMPLETE_ABORT


NO_WRITE = denied((AclOperation.WRITE, Resource.TRANSACTIONAL_ID, TID))
NO_2PC = denied((AclOperation.TWO_PHASE_COMMIT, Resource.TRANSACTIONAL_ID, TID))
NO_CLUSTER = (AclOperation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME)
NO_TOPIC = (AclOperation.WRITE, Resource.TOPIC, "*")

REFUSALS = {
    "no WRITE on the id: 53": ({"access": NO_WRITE}, 53),
    "no WRITE comes before half a pair": ({"access": NO_WRITE, "producer_id": 1}, 53),
    "enable2Pc without TWO_PHASE_COMMIT: 53": ({"access": NO_2PC, "enable_2pc": True}, 53),
    "no id and neither IDEMPOTENT_WRITE nor WRITE on any topic: 31": (
        {"transactional_id": None, "access": denied(NO_CLUSTER, NO_TOPIC)},
        31,
    ),
    "producer id without epoch: 42": ({"producer_id": 1}, 42),
    "epoch without producer id: 42": ({"producer_epoch": 1}, 42),
    "half a pair is refused without an id too": ({"transactional_id": None, "producer_id": 1}, 42),
    "empty id: 42": ({"transactional_id": ""}, 42),
    "empty id comes before 2PC": ({"transactional_id": "", "enable_2pc": True, "keep_prepared": True}, 42),
    "keepPreparedTxn: 35 in every released broker": ({"keep_prepared": True}, 35),
    "keepPreparedTxn comes before the timeout": ({"keep_prepared": True, "timeout_ms": 0}, 35),
    "timeout 0: 50": ({"timeout_ms": 0}, 50),
    "negative timeout: 50": ({"timeout_ms": -1}, 50),
    "timeout over transaction.max.timeout.ms: 50, not clamped": ({"timeout_ms": 900_001}, 50),
}


@pytest.mark.parametrize(("fields", "code"), REFUSALS.values(), ids=REFUSALS.keys())
@pytest.mark.parametrize("known", [True, False])
def test_refusals_before_the_id_is_looked_at(fields: dict[str, object], code: int, known: bool) -> None:
    driver = Driver.of(*((metadata(StateId.ONGOING),) if known else ()))
    event = InitProducerId(**({"transactional_id": TID} | fields))  # type: ignore[arg-type]
    assert driver.refused(event) == InitProducerIdReply(code, NO_PAIR, NO_PAIR)


def test_two_phase_commit_needs_the_broker_property() -> None:
    """enable2Pc & transaction.two.phase.commit.enable=false: 53, before keepPrepared's 35 and the timeout's 50."""
    driver = Driver.of(settings=Settings())
    event = InitProducerId(transactional_id=TID, enable_2pc=True, keep_prepared=True, timeout_ms=0)
    assert driver.refused(event) == InitProducerIdReply(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("rules", [(NO_CLUSTER,), (NO_TOPIC,)])
def test_an_idempotent_producer_needs_one_of_two_rights(rules: tuple[tuple[AclOperation, Resource, str], ...]) -> None:
    assert Driver.of().init(None, access=denied(*rules)).code == 0
    assert FULL_ACCESS.allows_any(AclOperation.WRITE, Resource.TOPIC)


@pytest.mark.parametrize("tid", [None, TID])
def test_without_a_block_of_producer_ids_it_loads(tid: str | None) -> None:
    """Block exhausted -> 14; at start-up until the first block arrives."""
    driver = Driver.of(block=NO_BLOCK)
    before = driver.state
    plan = driver.plan(InitProducerId(transactional_id=tid))
    assert driver.finish(plan) == InitProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS)
    assert (plan.effects, driver.state) == ((AllocateProducerIdBlock(),), before)
    driver.drain()
    assert driver.init(tid).code == 0


@pytest.mark.parametrize("tid", [None, TID])
def test_the_next_block_is_fetched_ahead(tid: str | None) -> None:
    driver = Driver.of(block=ProducerIdBlock(0, 1))
    plan = driver.plan(InitProducerId(transactional_id=tid))
    assert plan.effects == (AllocateProducerIdBlock(),)
    driver.finish(plan)
    driver.drain()
    assert driver.init("another").pair == (1000, 0)


def test_rotation_waits_for_a_producer_id() -> None:
    driver = Driver.of(metadata(StateId.EMPTY, (42, 32766)), block=NO_BLOCK)
    assert driver.do(InitProducerId(transactional_id=TID)) == InitProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS)


LABELS = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


def everyone() -> Driver:
    """One id per state, named after it, with producer ids from 40 on; all but Empty started 10 s ago."""
    known = (
        replace(metadata(STATES_BY_LABEL[label], (40 + index, 5)), transactional_id=label)
        for index, label in enumerate(LABELS)
    )
    driver = Driver.of(*known)
    driver.now_ms += 10_000
    return driver


def listed(driver: Driver, **filters: object) -> set[str]:
    reply = driver.refused(ListTransactions(**filters))  # type: ignore[arg-type]
    assert isinstance(reply, ListTransactionsReply)
    assert reply.code == 0
    assert all(row.transactional_id == row.state for row in reply.transactions)
    return {row.transactional_id for row in reply.transactions}


@pytest.mark.parametrize("pattern", ["(", "a)(b", "(?=a)", r"(a)\1", "*", "[", "a{2000}", "(?<n>"])
def test_what_is_no_re2_pattern_is_refused(pattern: str) -> None:
    """RE2/J full match, bad pattern -> 128; also what Python would take."""
    assert everyone().refused(ListTransactions(pattern=pattern)) == ListTransactionsReply(
        Code.INVALID_REGULAR_EXPRESSION
    )


def test_a_malicious_pattern_takes_linear_time() -> None:
    """Python's re needs 2**N steps here; the timeout of the test suite would end it."""
    driver = Driver.of(replace(metadata(StateId.EMPTY), transactional_id="a" * 5000 + "b"))
    assert listed(driver, pattern="(a+)+$") == set()


def test_rows_without_describe_are_dropped_silently() -> None:
    access = denied((AclOperation.DESCRIBE, Resource.TRANSACTIONAL_ID, "Ongoing"))
    assert listed(everyone(), access=access) == set(LABELS) - {"Ongoing"}


def described(driver: Driver, *names: str, **fields: object) -> tuple[DescribedTransaction, ...]:
    reply = driver.refused(DescribeTransactions(transactional_ids=names, **fields))  # type: ignore[arg-type]
    assert isinstance(reply, DescribeTransactionsReply)
    return reply.transactions


def test_a_kept_transaction_shows_its_own_pair() -> None:
    """DescribeTransactions shows (P,E), not the client's pair."""
    driver = Driver.of(metadata(StateId.ONGOING, next_producer_id=73, next_producer_epoch=2))
    (row,) = described(driver, TID)
    assert row.pair == (42, 5)
    reply = driver.refused(ListTransactions(producer_id_filters=(73,)))
    assert reply == ListTransactionsReply(0)


def test_rights_hide_ids_and_topics() -> None:
    """No DESCRIBE 53; topics filtered by DESCRIBE."""
    driver = Driver.of(metadata(StateId.ONGOING))
    on_id = denied((AclOperation.DESCRIBE, Resource.TRANSACTIONAL_ID, TID))
    on_topic = denied((AclOperation.DESCRIBE, Resource.TOPIC, "t"))
    assert described(driver, TID, access=on_id) == (DescribedTransaction(53, TID),)
    assert described(driver, TID, access=on_topic)[0].partitions == ()
