"""Produce against a scripted broker: lost answers, moved leaders, foreign writers, refusals, and what each ends as.

Covers B5 (nothing lands twice), B13 (CONCURRENT_TRANSACTIONS), B18 (deleted topic), B22 (an error is never lost,
receipts count acknowledgements), B25 (nothing hangs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    AbortableError,
    AuthorizationError,
    BatchRetryError,
    ConfigurationError,
    DualWriteError,
    FencedError,
    KafkaError,
    KafkaTimeoutError,
    RecordRefusedError,
    RecordTooLargeError,
    UnknownTopicError,
)
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka import produce_session as produce_session_module, record_encoder
from spark_2pc_sink.kafka.batch_sender import PartitionReceipt
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.error_policy import PRODUCE_RETRIED
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.arrow_layout import EncodedRows
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.wire import Received, Step, answer, changed, lose_answer, serve_it
from tests.unit.kafka.support import (
    PAIR,
    SMALL_BATCHES,
    T0,
    T1,
    one_batch_each,
    options_for,
    rows,
    sent_batches,
    session_on,
)

pytestmark = pytest.mark.usefixtures("begun")


def sequences(fake: FakeCluster, partition: int = 0) -> list[int]:
    """The base sequences of the batches that came to one partition of t, in order of arrival."""
    came = b"".join(data for index, data in sent_batches(fake) if index == partition)
    return [batch.base_sequence for batch in decode_record_batches(came)]


def send(session: ProduceSession, batch: EncodedRows) -> dict[TopicPartition, PartitionReceipt]:
    session.append(T0, batch)
    return session.flush()


def test_records_arrive_with_the_pair_and_in_sequence_from_zero(fake: FakeCluster, cluster: Cluster) -> None:
    """KIP-890: 'sequence numbers start from 0 in each transaction', since every transaction has its own epoch."""
    session = session_on(cluster, **SMALL_BATCHES)
    one_batch_each(session, T0, "a", "b", "c")
    session.append(T1, rows("x", "y"))
    receipts = session.flush()
    assert receipts == {T0: PartitionReceipt(3, 0, 2), T1: PartitionReceipt(2, 0, 1)}
    assert session.record_bytes == sum(len(batch) for _, batch in sent_batches(fake))
    assert [batch[0] for batch in fake.partitions[T0].batches] == [(PAIR.producer_id, PAIR.epoch)] * 3
    assert sequences(fake) == [0, 1, 2]
    request = fake.of(Api.PRODUCE)[0].body
    assert (request.acks, request.transactional_id) == (-1, "orders")


@pytest.mark.parametrize(("transaction_version", "version"), [(0, 11), (1, 11), (2, 12)])
def test_produce_adds_partitions_only_where_nobody_else_does(
    fake: FakeCluster, cluster: Cluster, transaction_version: int, version: int
) -> None:
    """KIP-890: Produce 12 adds partitions implicitly; 11 verifies that they were added."""
    if transaction_version < 2:
        fake.know(FakeTransaction(PAIR.producer_id, PAIR.epoch, partitions=(T0,)))
    send(session_on(cluster, transaction_version=transaction_version), rows("a"))
    assert {request.version for request in fake.of(Api.PRODUCE)} == {version}


def queued(monkeypatch: pytest.MonkeyPatch, session: ProduceSession, value: str) -> None:
    """Queue a batch for each partition before anything is sent."""
    with monkeypatch.context() as patched:
        patched.setattr("spark_2pc_sink.kafka.batch_sender.BatchSender.pump", lambda _self, _wait_s: None)
        for partition in (T0, T1):
            session.append(partition, rows(value))
        for batch in session._encoder.finish():
            session._send(batch)


@pytest.mark.parametrize(("value_bytes", "requests"), [(1, 1), (1_000, 2)])
def test_one_request_carries_a_batch_of_each_partition_up_to_max_request_size(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, value_bytes: int, requests: int
) -> None:
    session = session_on(cluster, batch_bytes_max=3_000, max_request_bytes=3_100)
    queued(monkeypatch, session, "x" * value_bytes)
    session.flush()
    assert len(fake.of(Api.PRODUCE)) == requests
    assert fake.partitions[T0].values == fake.partitions[T1].values == 1


# --- answers that never came ------------------------------------------------------------------------------------


def test_everything_behind_a_lost_answer_goes_again_in_order(fake: FakeCluster, cluster: Cluster) -> None:
    fake.script(Api.PRODUCE, serve_it, serve_it, lose_answer)
    session = session_on(cluster, **SMALL_BATCHES)
    one_batch_each(session, T0, *"abcdefgh")
    assert session.flush() == {T0: PartitionReceipt(8, 0, 7)}
    assert [batch[1] for batch in fake.partitions[T0].batches] == list(range(8))


def test_the_deadline_ends_it_and_names_the_last_error(fake: FakeCluster, cluster: Cluster) -> None:
    fake.script(Api.PRODUCE, *[answer(Code.NOT_ENOUGH_REPLICAS)] * 1000)
    session = session_on(cluster, delivery_timeout_ms=1_000, request_timeout_ms=100)
    with pytest.raises(KafkaTimeoutError, match=r"produce to t-0 .* 1000 ms.*NOT_ENOUGH_REPLICAS \(19\)"):
        send(session, rows("a"))


def test_time_that_the_caller_takes_does_not_count(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that computes for minutes between two appends finds its batches sent and acknowledged afterwards."""
    now_s = 1_000.0
    monkeypatch.setattr("spark_2pc_sink.kafka.batch_sender.monotonic", lambda: now_s)
    session = session_on(cluster, delivery_timeout_ms=5_000, **SMALL_BATCHES)
    one_batch_each(session, T0, *"abcdefghij")
    now_s += 600
    one_batch_each(session, T0, "k")
    now_s += 600
    assert session.flush()[T0].records == 11


# --- answers that say "again" -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [None, *sorted(PRODUCE_RETRIED)])
def test_what_was_not_acknowledged_is_repeated_with_the_same_sequence(
    fake: FakeCluster, cluster: Cluster, code: int | None
) -> None:
    """KIP-98: a batch whose answer was lost is a duplicate then, answered with the offset of the first."""
    fake.script(Api.PRODUCE, *[lose_answer if code is None else answer(code)] * 2)
    assert send(session_on(cluster), rows("a", "b", "c")) == {T0: PartitionReceipt(3, 0, 2)}
    assert sequences(fake) == [0, 0, 0]
    assert fake.partitions[T0].values == 3


def test_out_of_order_behind_a_failure_is_not_an_error(fake: FakeCluster, cluster: Cluster) -> None:
    """The batches in flight behind a refused one are gaps to the broker until that one has come (B5)."""
    fake.script(Api.PRODUCE, serve_it, answer(Code.NOT_ENOUGH_REPLICAS))
    session = session_on(cluster, **SMALL_BATCHES)
    one_batch_each(session, T0, "a")
    session.flush()
    # Held back until four of them are on the wire, so that three arrive behind the refused one.
    one_batch_each(session, T0, "b", "c", "d", "e", "f")
    assert session.flush() == {T0: PartitionReceipt(6, 0, 5)}
    arrived = sequences(fake)
    assert arrived[:2] == [0, 1]
    assert arrived.count(1) == 2
    assert [batch[1] for batch in fake.partitions[T0].batches] == list(range(6))


def test_a_batch_that_timed_out_may_have_been_appended(fake: FakeCluster, cluster: Cluster) -> None:
    """REQUEST_TIMED_OUT says that it is in the leader's log; those behind it succeed (B22: each counted once)."""

    def time_out(response: Any) -> None:
        response.responses[0].partition_responses[0].error_code = Code.REQUEST_TIMED_OUT

    fake.script(Api.PRODUCE, serve_it, changed(time_out))
    session = session_on(cluster, **SMALL_BATCHES)
    one_batch_each(session, T0, "a")
    session.flush()
    one_batch_each(session, T0, *"bcdef")
    assert session.flush() == {T0: PartitionReceipt(6, 0, 5)}
    assert sequences(fake).count(1) == 2
    assert [batch[1] for batch in fake.partitions[T0].batches] == list(range(6))


def test_a_new_leader_is_found_and_gets_the_same_sequence() -> None:
    with fake_cluster(brokers=2, topics={"t": 1}, begun=PAIR) as fake, Cluster(options_for(fake)) as cluster:
        session = session_on(cluster)
        send(session, rows("a"))
        fake.partitions[T0].leader = 1
        assert send(session, rows("b")) == {T0: PartitionReceipt(2, 0, 1)}
        assert [request.node_id for request in fake.of(Api.PRODUCE)] == [0, 0, 1]


# --- somebody else ----------------------------------------------------------------------------------------------


def test_a_first_send_that_was_there_already_fails_the_batch(fake: FakeCluster, cluster: Cluster) -> None:
    """Another writer with our pair was here before us: its records would be taken for ours (B5)."""
    send(session_on(cluster), rows("theirs"))
    with pytest.raises(BatchRetryError, match=r"another writer.*or the topic was deleted and recreated"):
        send(session_on(cluster), rows("ours"))


def test_a_writer_that_comes_between_shows_by_the_time_in_the_answer(fake: FakeCluster, cluster: Cluster) -> None:
    """Above the offset that we know, only the answer's time tells a duplicate from an append (CreateTime topics)."""
    session, other = session_on(cluster, **SMALL_BATCHES), session_on(cluster, **SMALL_BATCHES)
    one_batch_each(session, T0, "a")
    one_batch_each(other, T0, "b")
    other.flush()
    with pytest.raises(BatchRetryError, match="another writer"):
        session.flush()


def test_on_a_log_append_time_topic_every_answer_has_a_time(fake: FakeCluster, cluster: Cluster) -> None:
    assert fake.configs is not None
    fake.configs["message.timestamp.type"] = "LogAppendTime"
    fake.partitions[T0].stamp_appends()
    assert send(session_on(cluster), rows("a")) == {T0: PartitionReceipt(1, 0, 0)}


# --- the rest of the contract -------------------------------------------------------------------------------------


def test_append_waits_while_too_much_is_unacknowledged(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_session_module, "UNACKNOWLEDGED_BYTES_MAX", 1_000)
    session = session_on(cluster, **SMALL_BATCHES)
    for _ in range(100):
        one_batch_each(session, T0, "a")
        assert session._sender.unacknowledged_bytes <= 1_000
    assert session.flush()[T0].records == 100


def test_batches_are_sent_as_soon_as_they_fill_a_request(fake: FakeCluster, cluster: Cluster) -> None:
    """One request for each batch would have the coordinator write down all partitions of the transaction each time."""
    session = session_on(cluster, batch_bytes_max=200, max_request_bytes=3_000)
    for partition in (T0, T1):
        one_batch_each(session, partition, *"abc")
    assert not fake.of(Api.PRODUCE)
    one_batch_each(session, T0, *"defghijklmnopqrst")
    wait_until(lambda: fake.of(Api.PRODUCE), what="a request")
    (topic,) = fake.of(Api.PRODUCE)[0].body.topic_data
    assert len(topic.partition_data) == 2
    session.flush()
    assert (fake.partitions[T0].values, fake.partitions[T1].values) == (20, 3)


def test_rows_kept_for_fuller_batches_are_bounded(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_encoder, "KEPT_BYTES_MAX", 500)
    session = session_on(cluster)
    for _ in range(20):
        session.append(T0, rows("x" * 40))
        session.append(T1, rows("x" * 40))
        assert session._encoder._kept_bytes <= 500
    assert sum(receipt.records for receipt in session.flush().values()) == 40


@pytest.mark.parametrize(("first", "under_way"), [("a", 3), ("", 1)])
def test_at_most_max_in_flight_requests_are_under_way(fake: FakeCluster, first: str, under_way: int) -> None:
    """KIP-185: five at most, because a broker remembers the last five batches of a producer.

    Until the first acknowledgement one batch travels alone: below transaction.version 2 a leader without an entry takes
    any first sequence (SEMANTICS of 45, case iii).
    """
    waiting = 0
    most = 0

    def hold(_received: Received, _serve: Callable[[int], Any]) -> Any:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        return None

    with Cluster(options_for(fake, max_in_flight=3)) as cluster:
        session: ProduceSession = session_on(cluster, max_in_flight=3, **SMALL_BATCHES)
        one_batch_each(session, T0, *first)
        session.flush()
        fake.script(Api.PRODUCE, *[hold] * 100)
        one_batch_each(session, T0, *"bcdefghij")
        while waiting < under_way:
            session._sender.pump(0.05)
        session._sender.pump(0.05)
        assert most == under_way


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.INVALID_PRODUCER_EPOCH, FencedError),
        (Code.INVALID_TXN_STATE, AbortableError),
        (Code.TRANSACTION_ABORTABLE, AbortableError),
        (Code.TOPIC_AUTHORIZATION_FAILED, AuthorizationError),
        (Code.INVALID_RECORD, KafkaError),
        (4711, KafkaError),
    ],
)
def test_refusals_end_the_session_for_good(
    fake: FakeCluster, cluster: Cluster, code: int, error: type[DualWriteError]
) -> None:
    """An error that came back for an earlier append is raised by whatever is called next, and again (B22, B25)."""
    fake.script(Api.PRODUCE, answer(code))
    session = session_on(cluster, **SMALL_BATCHES)
    with pytest.raises(error) as caught:
        one_batch_each(session, T0, *["a"] * 1000)
    assert type(caught.value) is error
    for call in (session.flush, lambda: session.append(T0, rows("b"))):
        with pytest.raises(error) as again:
            call()
        assert again.value is caught.value


def naming(code: Code, errors: dict[int, str]) -> Step:
    """Refuse a batch for some of its records."""

    def refuse(response: Any) -> None:
        [answered] = response.responses[0].partition_responses
        kind = type(answered).BatchIndexAndErrorMessage
        answered.record_errors = [kind(batch_index=at, batch_index_error_message=text) for at, text in errors.items()]

    return changed(refuse, code)


KEYS = pa.array(["a", None, "c", None])
VALUES = pa.array(["first", "second", "third", "fourth"])


def test_a_record_that_its_broker_names_is_a_bad_row(fake: FakeCluster, cluster: Cluster) -> None:
    """With what the record says, and the broker of it."""
    fake.script(Api.PRODUCE, naming(Code.INVALID_RECORD, {1: "no schema", 2: "no schema either", 9: "not there"}))
    with pytest.raises(RecordRefusedError, match=r"t-0 refuses the record with value second: no schema;") as error:
        send(session_on(cluster), EncodedRows.of(KEYS, VALUES, None))
    assert (len(error.value.contents), error.value.lacks_key) == (2, False)


@pytest.mark.parametrize("known", [True, False])
def test_a_record_without_a_key_for_a_compacted_topic_is_a_bad_row(
    fake: FakeCluster, cluster: Cluster, *, known: bool
) -> None:
    """Nothing is sent where the topic's settings may be read; else the broker says it."""
    if known:
        assert fake.configs is not None
        fake.configs["cleanup.policy"] = "compact,delete"
    else:
        fake.script(Api.PRODUCE, naming(Code.INVALID_RECORD, {1: "no key", 3: "no key"}))
    said = r"with value second: the topic is compacted .* Set the option key to an expression that is never null"
    with pytest.raises(RecordRefusedError, match=said) as e:
        send(session_on(cluster), EncodedRows.of(KEYS, VALUES, None))
    assert e.value.lacks_key
    assert len(fake.of(Api.PRODUCE)) == (not known)


def test_a_time_that_the_topic_does_not_take_is_no_bad_row(fake: FakeCluster, cluster: Cluster) -> None:
    """It is that of each record of the batch."""
    fake.script(Api.PRODUCE, naming(Code.INVALID_TIMESTAMP, {0: "Timestamp 5 is out of range"}))
    said = r"t-0 must accept records with this time: Timestamp 5 is .* correct the clock"
    with pytest.raises(ConfigurationError, match=said):
        send(session_on(cluster), rows("a"))


@pytest.mark.parametrize(
    ("configs", "options", "limit"),
    [
        ({"max.message.bytes": "1000"}, {}, "max.message.bytes of the topic is 1000"),
        ({"max.message.bytes": "4000", "segment.bytes": "1000"}, {}, "segment.bytes of the topic is 1000"),
        ({}, {"batch_bytes_max": 1_000, "max_request_bytes": 1_500}, "max.request.size is 1500"),
    ],
)
def test_a_record_beyond_a_limit_is_named_by_its_key_and_not_sent(
    fake: FakeCluster, cluster: Cluster, configs: dict[str, str], options: dict[str, int], limit: str
) -> None:
    assert fake.configs is not None
    fake.configs |= configs
    with pytest.raises(RecordTooLargeError) as caught:
        send(session_on(cluster, **options), EncodedRows.of(pa.array(["order-17"]), pa.array(["x" * 2000]), None))
    assert (caught.value.row_key, caught.value.partition) == ("order-17", 0)
    assert limit in str(caught.value)
    assert fake.of(Api.PRODUCE) == []


@pytest.mark.parametrize(
    ("key", "shown"),
    [(None, "null"), (b"\xff\x00", "0xff00"), ("naïve", "naïve"), ("k" * 500, "k" * 80 + "…")],
)
def test_a_record_that_the_broker_calls_too_large_is_named_by_its_key(
    fake: FakeCluster, cluster: Cluster, key: object, shown: str
) -> None:
    fake.configs = None
    fake.script(Api.PRODUCE, answer(Code.MESSAGE_TOO_LARGE))
    keys = pa.array([key], pa.string() if isinstance(key, str) else pa.binary())
    with pytest.raises(RecordTooLargeError) as caught:
        send(session_on(cluster), EncodedRows.of(keys, pa.array(["x"]), None))
    assert caught.value.row_key == shown


def test_a_batch_that_is_too_large_says_which_option_to_change(fake: FakeCluster, cluster: Cluster) -> None:
    fake.configs = None
    fake.script(Api.PRODUCE, answer(Code.RECORD_LIST_TOO_LARGE))
    with pytest.raises(ConfigurationError, match=r"batch\.size.*2 records.*max\.message\.bytes"):
        send(session_on(cluster), rows("a", "b"))


def test_batches_are_cut_below_the_topics_limit(fake: FakeCluster, cluster: Cluster) -> None:
    assert fake.configs is not None
    fake.configs["max.message.bytes"] = "4000"
    send(session_on(cluster), rows(*("x" * 100 for _ in range(100))))
    sizes = [len(batch) for _, batch in sent_batches(fake)]
    assert max(sizes) <= 4000
    assert sum(sizes) > 20_000


def test_a_topic_deleted_under_way_is_an_error(fake: FakeCluster, cluster: Cluster) -> None:
    """B18: the records of a deleted topic are not quietly dropped."""
    session = session_on(cluster)
    send(session, rows("a"))
    fake.script(Api.PRODUCE, changed(lambda _: fake.partitions.clear(), Code.UNKNOWN_TOPIC_OR_PARTITION))
    with pytest.raises(UnknownTopicError, match="'t'"):
        send(session, rows("b"))
