"""Abort and force-terminate against a fake cluster: what is written, and what is not. Covers B17, B28, D4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from jdbc_state import Actor
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    AbortRefusedError,
    AuthorizationError,
    ConfigurationError,
    FencedError,
    KafkaError,
    OutcomeUnknownError,
    StateStoreError,
)
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.transactions import TransactionTool, tool as tool_module
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import HIDDEN_IDS, FakeCluster, FakeProducer, fake_cluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.memory_store import MemoryStateStore
from tests.unit.fakes.wire import Step, after, answer, hang_up, lose_answer, serve_it
from tests.unit.kafka.support import kafka_for

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Two brokers; broker n leads t-n, where producer 7 has a transaction open since offset 5 that nobody knows."""
    with fake_cluster(brokers=2, topics={"t": 2}) as cluster:
        cluster.show({T0: [FakeProducer(3), FakeProducer(4, start_offset=9)], T1: [FakeProducer(7, 2, 5)]})
        cluster.know(FakeTransaction(4, partitions=(T0,)), "other")
        yield cluster


@pytest.fixture
def tool(fake: FakeCluster) -> Iterator[TransactionTool]:
    with tool_on(fake) as made:
        yield made


def tool_on(fake: FakeCluster, **overrides: Any) -> TransactionTool:
    return TransactionTool(kafka=kafka_for(fake, **overrides), now_ms=lambda: 10**9)


# --- abort -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("remembered", "sent"), [(-1, 0), (0, 0), (6, 6)])
def test_abort_writes_one_marker_to_the_leader(
    fake: FakeCluster, tool: TransactionTool, remembered: int, sent: int
) -> None:
    """The marker carries the pair of the open transaction, and the coordinator epoch that the leader remembers."""
    fake.show({T1: [FakeProducer(7, 2, 5, remembered)]})
    done = tool.abort("t", 1, start_offset=5)
    assert fake.markers == [(1, 2, T1, EndMarker(7, 2, commit=False, coordinator_epoch=sent))]
    assert (done.producer_id, done.producer_epoch, done.start_offset, done.marker_written) == (7, 2, 5, True)
    assert done.reason == "no coordinator knows producer id 7"


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("Ongoing", " --transactional-id 'my id'  # if its owner is permanently lost"),
        ("PrepareCommit", "log of broker 0"),
    ],
)
@pytest.mark.parametrize("by_pair", [True, False])
def test_abort_refuses_what_a_coordinator_knows(
    fake: FakeCluster, tool: TransactionTool, state: str, remedy: str, by_pair: bool
) -> None:
    """B17: the producer could still commit what readers have skipped."""
    fake.know(FakeTransaction(7, 2, state=state, partitions=(T1,)), "my id")
    how: dict[str, Any] = {"producer": ProducerIdAndEpoch(7, 2)} if by_pair else {"start_offset": 5}
    with pytest.raises(AbortRefusedError, match="its coordinator knows it as the current transaction of") as refused:
        tool.abort("t", 1, **how)
    assert remedy in str(refused.value)
    assert fake.of(Api.WRITE_TXN_MARKERS) == []


def test_abort_looks_again_right_before_the_marker(fake: FakeCluster, tool: TransactionTool) -> None:
    """The coordinator learns of the transaction after the first look."""
    learn = after(lambda: fake.know(FakeTransaction(7, 2, partitions=(T1,)), "late"))
    fake.script(Api.LIST_TRANSACTIONS, serve_it, serve_it, learn)
    with pytest.raises(AbortRefusedError, match="'late'"):
        tool.abort("t", 1, start_offset=5)
    assert fake.of(Api.WRITE_TXN_MARKERS) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"start_offset": 6}, r"start_offset=6.*begin at: 5 \(producer 7:2\)"),
        ({"producer": ProducerIdAndEpoch(7, 3)}, r"producer='7:3'.*begin at: 5"),
        ({"start_offset": -1}, "start_offset=-1"),
        ({}, "exactly one of start offset and producer"),
        ({"start_offset": 5, "producer": ProducerIdAndEpoch(7, 2)}, "exactly one of start offset"),
        ({"producer": ProducerIdAndEpoch(7, 2), "coordinator_epoch": 2**31}, "coordinator_epoch=2147483648"),
    ],
)
def test_abort_of_what_is_not_open_writes_nothing(
    fake: FakeCluster, tool: TransactionTool, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        tool.abort("t", 1, **arguments)
    assert fake.of(Api.WRITE_TXN_MARKERS) == []


def test_abort_writes_nothing_where_ids_are_hidden(fake: FakeCluster, tool: TransactionTool) -> None:
    fake.access = HIDDEN_IDS
    with pytest.raises(AuthorizationError):
        tool.abort("t", 1, start_offset=5)
    assert fake.of(Api.WRITE_TXN_MARKERS) == []


@pytest.mark.parametrize(
    ("step", "markers"),
    [(hang_up, 1), (answer(Code.NOT_LEADER_OR_FOLLOWER), 1), (answer(Code.UNKNOWN_TOPIC_OR_PARTITION), 1)],
    ids=["hang up", "moved", "unknown"],
)
def test_a_marker_that_was_not_written_is_sent_again(
    fake: FakeCluster, tool: TransactionTool, step: Step, markers: int
) -> None:
    fake.script(Api.WRITE_TXN_MARKERS, step)
    assert tool.abort("t", 1, start_offset=5).marker_written
    assert len(fake.markers) == markers
    assert len(fake.of(Api.WRITE_TXN_MARKERS)) == 2


def test_a_marker_whose_answer_was_lost_is_not_sent_twice(fake: FakeCluster, tool: TransactionTool) -> None:
    """The same pair may have begun its next transaction, and a second marker would end that."""
    fake.script(Api.WRITE_TXN_MARKERS, lose_answer)
    begin_next = after(lambda: fake.show({T1: [FakeProducer(7, 2, start_offset=8)]}))
    fake.script(Api.METADATA, *[serve_it] * 200)
    fake.script(Api.DESCRIBE_PRODUCERS, serve_it, serve_it, begin_next)
    done = tool.abort("t", 1, producer=ProducerIdAndEpoch(7, 2), coordinator_epoch=0)
    assert not done.marker_written
    assert len(fake.markers) == 1


def test_markers_that_never_arrive_end_in_an_error(fake: FakeCluster, tool: TransactionTool) -> None:
    fake.script(Api.WRITE_TXN_MARKERS, hang_up, hang_up, hang_up)
    with pytest.raises(OutcomeUnknownError, match=r"sent 3 times.*the answer was lost"):
        tool.abort("t", 1, start_offset=5)
    assert fake.markers == []


@pytest.mark.parametrize(("code", "error"), [(47, FencedError), (52, KafkaError), (31, AuthorizationError)])
def test_a_refused_marker_is_an_error(
    fake: FakeCluster, tool: TransactionTool, code: int, error: type[Exception]
) -> None:
    """47: a newer epoch has written. 52: the coordinator epoch is too old. 31: no CLUSTER_ACTION."""
    fake.script(Api.WRITE_TXN_MARKERS, answer(code))
    with pytest.raises(error, match="WriteTxnMarkers answered"):
        tool.abort("t", 1, start_offset=5)
    assert len(fake.of(Api.WRITE_TXN_MARKERS)) == 1


# --- force-terminate ---------------------------------------------------------------------------------------------


def test_force_terminate_is_a_plain_init_producer_id(fake: FakeCluster, tool: TransactionTool) -> None:
    """KIP-939, forceTerminateTransaction: also for ids with two-phase commit, whose time-out is reset by it."""
    fake.versions[Api.INIT_PRODUCER_ID] = (0, 6)
    fake.know(FakeTransaction(8, 3, coordinator=1, partitions=(T0,), timeout_ms=2**31 - 1), "a")
    fake.script(Api.INIT_PRODUCER_ID, answer(Code.CONCURRENT_TRANSACTIONS))
    done = tool.force_terminate("a")
    assert (done.state_before, done.partitions_before, done.producer_epoch) == ("Ongoing", (T0,), 5)
    asked = fake.of(Api.INIT_PRODUCER_ID)
    # The coordinator itself answers CONCURRENT_TRANSACTIONS once, and aborts meanwhile.
    assert [(request.node_id, request.version) for request in asked] == [(1, 5)] * 3
    assert (asked[0].body.producer_id, asked[0].body.producer_epoch) == (-1, -1)
    assert asked[0].body.transaction_timeout_ms == done.timeout_ms == 60_000
    assert [word in " ".join(done.warnings) for word in ("owed", "had no timeout", "fenced")] == [True] * 3


def test_force_terminate_keeps_the_timeout(fake: FakeCluster, tool: TransactionTool) -> None:
    """InitProducerId stores the timeout that it is sent; here nothing else changes than what must."""
    fake.know(FakeTransaction(8, state="CompleteCommit", timeout_ms=1234), "a")
    done = tool.force_terminate("a")
    assert (done.timeout_ms, len(done.warnings)) == (1234, 1)
    assert fake.of(Api.INIT_PRODUCER_ID)[0].body.transaction_timeout_ms == 1234


@pytest.mark.parametrize("name", ["unknown", ""])
def test_force_terminate_never_creates_an_id(fake: FakeCluster, tool: TransactionTool, name: str) -> None:
    with pytest.raises(ConfigurationError, match="transactional_id="):
        tool.force_terminate(name)
    # Already FindCoordinator would create the transaction log.
    assert fake.of(Api.INIT_PRODUCER_ID) + fake.of(Api.FIND_COORDINATOR) == []


def test_force_terminate_gives_up_in_time(fake: FakeCluster) -> None:
    """51 for ever: a leader has refused a marker, and the coordinator has given up on it."""
    fake.know(FakeTransaction(8, state="PrepareAbort", partitions=(T0,)), "a")
    fake.script(Api.INIT_PRODUCER_ID, *[answer(Code.CONCURRENT_TRANSACTIONS)] * 3000)
    with (
        tool_on(fake, max_block_ms=1_000) as tool,
        pytest.raises(OutcomeUnknownError, match=r"PrepareAbort.*until the coordinator's broker restarts.*CONCURRENT"),
    ):
        tool.force_terminate("a")


# --- what the database notes ---------------------------------------------------------------------------------------


class NotingStore(MemoryStateStore):
    """A store whose database is lost after so many notes; it keeps what Kafka was asked by the time of each."""

    def __init__(self, fake: FakeCluster) -> None:
        super().__init__()
        self.lost_after = 10
        self.settings: Any = None
        self.asked_before: list[int] = []
        self._fake = fake

    def open(self, options: Any) -> NotingStore:
        self.settings = options
        self._actor = Actor.of_this_process(reason=options.reason)
        return self

    def note_action(
        self, transactional_id: str, generation: int | None, action: str, detail: Mapping[str, Any]
    ) -> None:
        if len(self.asked_before) == self.lost_after:
            raise StateStoreError(operation="noting", detail="the database is gone")
        self.asked_before.append(len(self._fake.of(Api.INIT_PRODUCER_ID)))
        super().note_action(transactional_id, generation, action, detail)

    @property
    def outcomes(self) -> list[str]:
        return [line.detail["outcome"] for line in self.read_actions(last=9)[::-1]]


@pytest.fixture
def notes(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> NotingStore:
    made = NotingStore(fake)
    monkeypatch.setattr(tool_module, "open_store", made.open)
    return made


def terminate(made: TransactionTool) -> Any:
    return made.force_terminate("my id", database="postgresql://h/d", reason="readers wait", state_table="mine")


def test_it_is_noted_before_and_after(fake: FakeCluster, tool: TransactionTool, notes: NotingStore) -> None:
    """A process that dies in between leaves the first line."""
    fake.know(FakeTransaction(8, 3), "my id")
    done = terminate(tool)
    assert notes.outcomes == ["asked", "done"]
    assert notes.asked_before[0] == 0 < notes.asked_before[1]
    lines = notes.read_actions(last=9)
    assert {(line.transactional_id, line.action, line.reason) for line in lines} == {
        ("my id", "force_terminate", "readers wait")
    }
    assert lines[0].detail["producer"] == f"{done.producer_id}:{done.producer_epoch}"
    assert (notes.settings.state_table, notes.settings.database) == ("mine", "postgresql+psycopg2://h/d")


def test_a_refusal_is_noted(fake: FakeCluster, tool: TransactionTool, notes: NotingStore) -> None:
    fake.know(FakeTransaction(8), "my id")
    fake.script(Api.INIT_PRODUCER_ID, answer(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    with pytest.raises(AuthorizationError):
        terminate(tool)
    assert notes.outcomes == ["asked", "refused"]


def test_without_the_first_note_the_coordinator_is_not_asked(
    fake: FakeCluster, tool: TransactionTool, notes: NotingStore
) -> None:
    notes.lost_after = 0
    fake.know(FakeTransaction(8), "my id")
    with pytest.raises(StateStoreError, match="the database is gone"):
        terminate(tool)
    assert fake.of(Api.INIT_PRODUCER_ID) == []


@pytest.mark.parametrize("refused", [False, True])
def test_a_database_that_is_lost_meanwhile_hides_no_outcome(
    fake: FakeCluster, tool: TransactionTool, notes: NotingStore, caplog: pytest.LogCaptureFixture, refused: bool
) -> None:
    """Kafka has acted: that it did is told, and that it was not noted."""
    notes.lost_after = 1
    fake.know(FakeTransaction(8), "my id")
    if refused:
        fake.script(Api.INIT_PRODUCER_ID, answer(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        with pytest.raises(AuthorizationError):
            terminate(tool)
        assert "the outcome (refused) could not be recorded" in caplog.text
    else:
        assert "the outcome (done) could not be recorded" in terminate(tool).warnings[-1]
    assert notes.outcomes == ["asked"]
