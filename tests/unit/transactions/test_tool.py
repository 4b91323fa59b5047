"""The tool for transactions against a fake cluster: what is asked of whom, and what is concluded. Covers B16, B17."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_2pc_sink import errors
from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.transaction_queries import OpenTransaction, TransactionDetails
from spark_2pc_sink.transactions import ListFilter, TransactionTool
from spark_2pc_sink.transactions.ending import why_hanging
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import HIDDEN_IDS, FakeCluster, FakeProducer, fake_cluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.wire import after, answer, hang_up
from tests.unit.kafka.support import kafka_for

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
NOW_MS = 100 * 60_000


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Three brokers; broker n leads t-n, and brokers 0 and 1 have half of the transaction log each."""
    with fake_cluster(brokers=3, topics={"t": 3, "__consumer_offsets": 1}) as cluster:
        cluster.state_partitions = [(0, 4), (1, 2)]
        yield cluster


@pytest.fixture
def tool(fake: FakeCluster) -> Iterator[TransactionTool]:
    with tool_on(fake) as made:
        yield made


def tool_on(fake: FakeCluster, **overrides: Any) -> TransactionTool:
    return TransactionTool(kafka=kafka_for(fake, **overrides), now_ms=lambda: NOW_MS)


# --- list and describe -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted", [ListFilter(running_longer_than_ms=0), ListFilter(transactional_id_pattern="a")], ids=str
)
def test_a_broker_that_would_ignore_a_filter_is_not_asked(
    fake: FakeCluster, tool: TransactionTool, wanted: ListFilter
) -> None:
    fake.versions[Api.LIST_TRANSACTIONS] = (0, 0)
    with pytest.raises(errors.LocalProtocolError, match="brokers read it from version"):
        tool.list_transactions(wanted)
    assert fake.of(Api.LIST_TRANSACTIONS) == []


@pytest.mark.parametrize(
    ("wanted", "option"),
    [
        (ListFilter(states=("Ongoing", "Bogus")), "state='Bogus'"),
        (ListFilter(transactional_id_pattern="["), "transactional_id_pattern='\\['"),
        (ListFilter(producer_ids=(-1,)), "producer_id=-1"),
        (ListFilter(broker_id=9), "broker_id=9.*the cluster has the brokers 0, 1, 2"),
    ],
)
def test_a_filter_that_cannot_be_one_is_refused(tool: TransactionTool, wanted: ListFilter, option: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=option):
        tool.list_transactions(wanted)


@pytest.mark.parametrize("code", [14, 15])
def test_a_coordinator_that_loads_is_asked_again(fake: FakeCluster, tool: TransactionTool, code: int) -> None:
    """14 while any partition of its transaction log is loading: what it lists would not be all."""
    fake.script(Api.LIST_TRANSACTIONS, answer(code), answer(code))
    fake.know(FakeTransaction(8), "a")
    assert len(tool.list_transactions()) == 1
    assert len(fake.of(Api.LIST_TRANSACTIONS)) == 5


def test_describe_asks_the_coordinator(fake: FakeCluster, tool: TransactionTool) -> None:
    began = FakeTransaction(8, 3, coordinator=1, partitions=(T2, T0), timeout_ms=2**31 - 1, start_time_ms=NOW_MS - 9)
    fake.know(began, "a")
    found = tool.describe("a")
    assert found == TransactionDetails(1, "a", 8, 3, "Ongoing", 2**31 - 1, NOW_MS - 9, 9, (T0, T2))
    assert found.two_phase_commit
    assert fake.of(Api.DESCRIBE_TRANSACTIONS)[0].node_id == 1


def test_describe_of_an_unknown_id_is_an_error(fake: FakeCluster, tool: TransactionTool) -> None:
    with pytest.raises(
        errors.KafkaError, match=r"its coordinator does not know 'a'.*TRANSACTIONAL_ID_NOT_FOUND, code 105"
    ):
        tool.describe("a")
    fake.access = HIDDEN_IDS
    with pytest.raises(errors.AuthorizationError):
        tool.describe("a")
    with pytest.raises(errors.ConfigurationError, match="must not be empty"):
        tool.describe("")


# --- describe-producers ------------------------------------------------------------------------------------------


def test_describe_producers_follows_the_leader(fake: FakeCluster, tool: TransactionTool) -> None:
    """A lost connection and a leader that has moved are asked again; a refusal is not."""
    fake.script(Api.DESCRIBE_PRODUCERS, hang_up, answer(Code.NOT_LEADER_OR_FOLLOWER))
    assert tool.describe_producers("t", 0) == ()
    assert len(fake.of(Api.DESCRIBE_PRODUCERS)) == 3
    fake.script(Api.DESCRIBE_PRODUCERS, answer(Code.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(errors.AuthorizationError, match="partition t-0"):
        tool.describe_producers("t", 0)
    with pytest.raises(errors.ConfigurationError, match="topic=''"):
        tool.describe_producers("", 0)


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        ({"topic": "none", "partition": 0}, errors.UnknownTopicError, "topic 'none'"),
        ({"topic": "t", "partition": 3}, errors.UnknownTopicError, "partition 3 does not exist"),
        ({"topic": "t", "partition": 0, "broker_id": 1}, errors.UnknownTopicError, "with a replica on broker 1"),
        ({"topic": "t", "partition": 0, "broker_id": 9}, errors.ConfigurationError, r"broker_id=9.*brokers 0, 1, 2"),
        ({"partition": 1}, errors.ConfigurationError, "requires a topic"),
    ],
)
def test_a_partition_that_is_not_there_is_refused(
    tool: TransactionTool, where: dict[str, Any], error: type[Exception], text: str
) -> None:
    """It must not pass for one where nothing hangs."""
    with pytest.raises(error, match=text):
        tool.find_hanging(**where)
    if "topic" in where:
        with pytest.raises(error, match=text):
            tool.describe_producers(**where)


# --- what hangs --------------------------------------------------------------------------------------------------


def open_transaction(epoch: int = 3) -> OpenTransaction:
    return OpenTransaction(T0.topic, T0.partition, 7, epoch, 1, 5)


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        (None, "no coordinator knows producer id 7"),
        ({"producer_id": 8}, "no coordinator knows producer id 7"),
        ({"state": "Empty"}, "is in state Empty"),
        ({"state": "CompleteCommit"}, "is in state CompleteCommit"),
        ({"state": "CompleteAbort"}, "is in state CompleteAbort"),
        ({"state": "Dead"}, "is in state Dead"),
        ({"partitions": (T1,)}, "does not include t-0"),
        ({"state": "PrepareCommit", "partitions": ()}, "does not include t-0"),
        ({"producer_epoch": 4}, "it belongs to an earlier transaction"),
        ({}, None),
        ({"state": "PrepareCommit", "producer_epoch": 4}, None),
        ({"state": "PrepareAbort", "producer_epoch": 4}, None),
    ],
)
def test_why_a_transaction_hangs(details: dict[str, Any] | None, reason: str | None) -> None:
    """B15, B16; KIP-664, "Finding Hanging Transactions".

    "If no coordinator could be found, then the transaction is considered hanging. Otherwise, use DescribeTransactions
    [...] (e.g. if the epoch does not match or the partition is not included in the current transaction)."
    """
    known = {"producer_id": 7, "producer_epoch": 3, "state": "Ongoing", "partitions": (T0, T1), **(details or {})}
    found = why_hanging(
        open_transaction(),
        None
        if details is None
        else TransactionDetails(
            coordinator=0, transactional_id="a", timeout_ms=1, start_time_ms=0, duration_ms=0, **known
        ),
    )
    assert (found is None) == (reason is None)
    assert reason is None or reason in str(found)


def test_find_hanging_searches_every_partition_and_every_coordinator(fake: FakeCluster, tool: TransactionTool) -> None:
    """Internal topics too. What a coordinator will end, what is young, and what is not open is left out."""
    offsets = TopicPartition("__consumer_offsets", 0)
    fake.know(FakeTransaction(1, coordinator=1, partitions=(T0,)), "known")
    fake.know(FakeTransaction(2, partitions=(T0,)), "other")
    shown = {
        T0: [FakeProducer(1, start_offset=3), FakeProducer(5)],
        T1: [FakeProducer(2, start_offset=4), FakeProducer(3, start_offset=9, last_timestamp_ms=NOW_MS - 15 * 60_000)],
        offsets: [FakeProducer(6, 8, start_offset=0, last_timestamp_ms=NOW_MS - 15 * 60_000 - 1)],
    }
    fake.show(shown)
    hanging = tool.find_hanging()
    assert [(row.topic, row.partition, row.producer_id, row.start_offset) for row in hanging] == [
        ("__consumer_offsets", 0, 6, 0),
        ("t", 1, 2, 4),
    ]
    assert hanging[0].duration_ms == 15 * 60_000 + 1
    assert "does not include t-1" in hanging[1].reason
    assert {request.node_id for request in fake.of(Api.LIST_TRANSACTIONS)} == {0, 1, 2}


def test_what_ended_between_the_looks_was_not_hanging(fake: FakeCluster, tool: TransactionTool) -> None:
    """The coordinator finishes while it is asked: its list is empty by then, and the partition was open before."""
    fake.show({T0: [FakeProducer(1, start_offset=3)]})
    fake.script(Api.LIST_TRANSACTIONS, after(lambda: fake.show({T0: [FakeProducer(1, 1, start_offset=8)]})))
    assert tool.find_hanging() == ()
    assert len(tool.find_hanging()) == 1


def test_hidden_ids_are_not_taken_for_unknown_ones(fake: FakeCluster, tool: TransactionTool) -> None:
    """Rows without DESCRIBE are dropped silently from ListTransactions."""
    fake.show({T0: [FakeProducer(1, start_offset=3)]})
    fake.access = HIDDEN_IDS
    with pytest.raises(errors.AuthorizationError, match="grant DESCRIBE on every transactional id"):
        tool.find_hanging()


def test_a_coordinator_without_leader_is_not_taken_for_one_that_knows_nothing(fake: FakeCluster) -> None:
    """The transaction log's partition 1 is down: what it knows cannot be listed by anybody."""
    fake.show({T0: [FakeProducer(1, start_offset=3)]})
    fake.state_partitions = [(0, 4), (-1, 2)]
    with (
        tool_on(fake, max_block_ms=1_000) as tool,
        pytest.raises(errors.KafkaTimeoutError, match=r"\[1\] of __transaction_state have no leader"),
    ):
        tool.find_hanging(topic="t")


def test_without_a_transaction_log_nobody_knows_anything(fake: FakeCluster, tool: TransactionTool) -> None:
    fake.show({T0: [FakeProducer(1, start_offset=3)]})
    fake.state_partitions = None
    assert len(tool.find_hanging()) == 1


def test_coordinators_that_move_are_asked_again(fake: FakeCluster, tool: TransactionTool) -> None:
    """Else an id could be missed by moving from a broker not yet asked to one asked before."""

    def move() -> None:
        fake.state_partitions = [(1, 5), (1, 2)]

    fake.show({T0: [FakeProducer(1, start_offset=3)]})
    fake.script(Api.LIST_TRANSACTIONS, after(move))
    assert len(tool.find_hanging()) == 1
    assert len(fake.of(Api.LIST_TRANSACTIONS)) == 6
