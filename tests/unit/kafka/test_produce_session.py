"""Produce against a scripted broker: lost answers, moved leaders, foreign writers, and what each ends as.

Covers B5 (nothing lands twice), B13 (CONCURRENT_TRANSACTIONS), B22 (an error is never lost, receipts count
acknowledgements), B25 (nothing hangs).
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import BatchRetryError, KafkaTimeoutError, LocalProtocolError
from spark_2pc_sink.kafka import produce_session as produce_session_module
from spark_2pc_sink.kafka import record_encoder
from spark_2pc_sink.kafka.batch_sender import PartitionReceipt, ProducedTransaction
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.kafka.error_policy import PRODUCE_RETRIED
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import batch_digest, encode_sections
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.wire import Received, Step, answer, keep_silent, lose_answer, serve_it
from tests.unit.kafka.support import PAIR, SMALL_BATCHES, T0, T1, one_batch_each, options_for, rows, session_on

pytestmark = pytest.mark.usefixtures("begun")


def sequences(fake: FakeCluster, partition: int = 0) -> list[int]:
    """The base sequences of the batches that came to one partition of t, in order of arrival."""
    return [
        batch.base_sequence
        for request in fake.of(Api.PRODUCE)
        for topic in request.body.topic_data
        for data in topic.partition_data
        if data.index == partition
        for batch in decode_record_batches(bytes(data.records))
    ]


def sizes(fake: FakeCluster) -> list[int]:
    """The bytes of every batch that came."""
    return [
        len(data.records)
        for request in fake.of(Api.PRODUCE)
        for topic in request.body.topic_data
        for data in topic.partition_data
    ]


def test_records_arrive_with_the_pair_and_in_sequence_from_zero(fake: FakeCluster, cluster: Cluster) -> None:
    """KIP-890: 'sequence numbers start from 0 in each transaction', since every transaction has its own epoch."""
    session = session_on(cluster, **SMALL_BATCHES)
    one_batch_each(session, T0, "a", "b", "c")
    session.append(T1, rows("x", "y"))
    receipts = session.flush()
    assert receipts == {T0: PartitionReceipt(3, 0, 2), T1: PartitionReceipt(2, 0, 1)}
    assert session.record_bytes == sum(sizes(fake))
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
    session = session_on(cluster, transaction_version=transaction_version)
    session.append(T0, rows("a"))
    session.flush()
    assert {request.version for request in fake.of(Api.PRODUCE)} == {version}


def test_ends_that_are_known_are_not_asked_for(fake: FakeCluster, cluster: Cluster) -> None:
    """The driver has asked beside its job; who has written behind that is found all the same."""
    session = ProduceSession(
        cluster, ProducedTransaction("orders", PAIR, 2), cluster.options, timestamp_ms=0, ends={T0: 0}
    )
    session.append(T0, rows("a"))
    session.flush()
    assert not fake.of(Api.LIST_OFFSETS)
    session.append(T1, rows("a"))
    session.flush()
    (asked,) = fake.of(Api.LIST_OFFSETS)
    assert [[each.partition_index for each in topic.partitions] for topic in asked.body.topics] == [[1]]


def queued(monkeypatch: pytest.MonkeyPatch, session: ProduceSession, value: str) -> None:
    """Queue a batch for each partition before anything is sent."""
    with monkeypatch.context() as patched:
        patched.setattr("spark_2pc_sink.kafka.batch_sender.BatchSender.pump", lambda _self, _wait_s: None)
        for partition in (T0, T1):
            session.append(partition, rows(value))
        for batch in session._encoder.finish():
            session._send(batch)


def test_one_request_carries_a_batch_of_each_partition(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_on(cluster)
    queued(monkeypatch, session, "a")
    session.flush()
    assert len(fake.of(Api.PRODUCE)) == 1
    assert fake.partitions[T0].values == fake.partitions[T1].values == 1


def test_a_request_stays_below_max_request_size(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_on(cluster, batch_bytes_max=3_000, max_request_bytes=3_100)
    queued(monkeypatch, session, "x" * 1_000)
    session.flush()
    assert len(fake.of(Api.PRODUCE)) == 2
    assert fake.partitions[T0].values == fake.partitions[T1].values == 1


# --- answers that never came ------------------------------------------------------------------------------------


def test_a_lost_acknowledgement_is_no_second_copy(fake: FakeCluster, cluster: Cluster) -> None:
    """KIP-98: a batch sent again with the same sequence is a duplicate, answered with the offset of the first."""
    fake.script(Api.PRODUCE, lose_answer)
    session = session_on(cluster)
    session.append(T0, rows("a", "b"))
    assert session.flush() == {T0: PartitionReceipt(2, 0, 1)}
    assert sequences(fake) == [0, 0]
    assert fake.partitions[T0].values == 2


def test_everything_behind_a_lost_answer_goes_again_in_order(fake: FakeCluster, cluster: Cluster) -> None:
    fake.script(Api.PRODUCE, serve_it, serve_it, lose_answer)
    session = session_on(cluster, **SMALL_BATCHES)
    one_batch_each(session, T0, *"abcdefgh")
    assert session.flush() == {T0: PartitionReceipt(8, 0, 7)}
    assert [batch[1] for batch in fake.partitions[T0].batches] == list(range(8))


def test_a_silent_broker_costs_request_timeout_and_no_more(fake: FakeCluster, cluster: Cluster) -> None:
    fake.script(Api.PRODUCE, keep_silent)
    with Cluster(options_for(fake, request_timeout_ms=100)) as impatient:
        session = session_on(impatient, request_timeout_ms=100)
        session.append(T0, rows("a"))
        assert session.flush() == {T0: PartitionReceipt(1, 0, 0)}


def test_the_deadline_ends_it_and_names_the_last_error(fake: FakeCluster, cluster: Cluster) -> None:
    fake.script(Api.PRODUCE, *[answer(Code.NOT_ENOUGH_REPLICAS)] * 1000)
    session = session_on(cluster, delivery_timeout_ms=1_000, request_timeout_ms=100)
    session.append(T0, rows("a"))
    with pytest.raises(KafkaTimeoutError, match=r"produce to t-0 .* 1000 ms.*NOT_ENOUGH_REPLICAS \(19\)"):
        session.flush()


@pytest.mark.parametrize(
    ("before", "named"),
    [([], "sent, but not answered"), ([answer(Code.NOT_ENOUGH_REPLICAS)], r"NOT_ENOUGH_REPLICAS \(19\)")],
    ids=["the-only-attempt", "after-an-answer"],
)
def test_an_attempt_that_the_deadline_cuts_short_does_not_hide_the_error_before_it(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, before: list[Step], named: str
) -> None:
    ahead_s = 0
    monkeypatch.setattr("spark_2pc_sink.kafka.batch_sender.monotonic", lambda: monotonic() + ahead_s)

    def keep_silent_past_the_deadline(received: Received, serve: Callable[[int], Any]) -> Any:
        nonlocal ahead_s
        ahead_s = 60
        return keep_silent(received, serve)

    fake.script(Api.PRODUCE, *before, keep_silent_past_the_deadline)
    with Cluster(options_for(fake, request_timeout_ms=300)) as impatient:
        session = session_on(impatient, delivery_timeout_ms=50_000, request_timeout_ms=300)
        session.append(T0, rows("a"))
        with pytest.raises(KafkaTimeoutError, match=rf"produce to t-0 .* 50000 ms.*{named}"):
            session.flush()


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


@pytest.mark.parametrize("code", sorted(PRODUCE_RETRIED), ids=lambda code: Code(code).name)
def test_retriable_answers_are_repeated_with_the_same_sequence(fake: FakeCluster, cluster: Cluster, code: int) -> None:
    fake.script(Api.PRODUCE, answer(code), answer(code))
    session = session_on(cluster)
    session.append(T0, rows("a", "b", "c"))
    assert session.flush() == {T0: PartitionReceipt(3, 0, 2)}
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


def test_a_new_leader_is_found_and_gets_the_same_sequence() -> None:
    with fake_cluster(brokers=2, topics={"t": 1}, begun=PAIR) as fake, Cluster(options_for(fake)) as cluster:
        session = session_on(cluster)
        session.append(T0, rows("a"))
        session.flush()
        fake.partitions[T0].leader = 1
        session.append(T0, rows("b"))
        assert session.flush() == {T0: PartitionReceipt(2, 0, 1)}
        assert [request.node_id for request in fake.of(Api.PRODUCE)] == [0, 0, 1]


def test_after_a_lost_connection_the_leader_is_looked_up_before_anything_is_sent() -> None:
    with fake_cluster(brokers=2, topics={"t": 1}, begun=PAIR) as fake, Cluster(options_for(fake)) as cluster:

        def move(received: Received, serve: Callable[[int], Any]) -> Any:
            try:
                return lose_answer(received, serve)
            finally:
                fake.partitions[T0].leader = 1

        fake.script(Api.PRODUCE, move)
        session = session_on(cluster)
        session.append(T0, rows("a"))
        assert session.flush() == {T0: PartitionReceipt(1, 0, 0)}
        assert [request.node_id for request in fake.of(Api.PRODUCE)] == [0, 1]


def test_a_leader_that_died_between_two_batches_is_replaced_too() -> None:
    with fake_cluster(brokers=2, topics={"t": 1}, begun=PAIR) as fake, Cluster(options_for(fake)) as cluster:
        fake.partitions[T0].leader = 1
        session = session_on(cluster)
        session.append(T0, rows("a"))
        session.flush()
        fake.brokers[1].stop()
        while 1 in cluster._connections:
            cluster.poll(0.01)
        fake.partitions[T0].leader = 0
        session.append(T0, rows("b"))
        assert session.flush() == {T0: PartitionReceipt(2, 0, 1)}


def test_a_partition_without_a_leader_is_waited_for(fake: FakeCluster, cluster: Cluster) -> None:
    session = session_on(cluster)
    session.append(T0, rows("a"))
    session.flush()
    fake.partitions[T0].leader = -1

    def elect(received: Received, serve: Callable[[int], Any]) -> Any:
        fake.partitions[T0].leader = 0
        return serve(Code.NONE)

    fake.script(Api.PRODUCE, answer(Code.NOT_LEADER_OR_FOLLOWER))
    fake.script(Api.METADATA, serve_it, serve_it, elect)
    session.append(T0, rows("b"))
    assert session.flush() == {T0: PartitionReceipt(2, 0, 1)}


# --- somebody else ----------------------------------------------------------------------------------------------


def test_a_first_send_that_was_there_already_fails_the_batch(fake: FakeCluster, cluster: Cluster) -> None:
    """Another writer with our pair was here before us: its records would be taken for ours (B5)."""
    other = session_on(cluster)
    other.append(T0, rows("theirs"))
    other.flush()
    session = session_on(cluster)
    session.append(T0, rows("ours"))
    with pytest.raises(BatchRetryError, match=r"another writer.*or the topic was deleted and recreated"):
        session.flush()


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
    session = session_on(cluster)
    session.append(T0, rows("a"))
    assert session.flush() == {T0: PartitionReceipt(1, 0, 0)}


def test_without_permission_to_read_the_topics_configuration_offsets_still_tell(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.configs = None
    first = session_on(cluster)
    first.append(T0, rows("a"))
    first.flush()
    second = session_on(cluster)
    second.append(T0, rows("a"))
    with pytest.raises(BatchRetryError):
        second.flush()


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
    wait_until(lambda: fake.of(Api.PRODUCE), deadline_s=10, what="a request")
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


def test_the_digest_is_that_of_the_records_and_not_of_their_batches(fake: FakeCluster, cluster: Cluster) -> None:
    values = [f"value {number}".ljust(60, ".") for number in range(20)]
    small, large = session_on(cluster, **SMALL_BATCHES), session_on(cluster)
    one_batch_each(small, T0, *values)
    large.append(T1, rows(*values))
    small.flush()
    large.flush()
    (section,) = encode_sections(rows(*values), [len(values)])
    assert small.digest == large.digest == batch_digest("t", section)


def test_a_closed_session_refuses(cluster: Cluster) -> None:
    session = session_on(cluster)
    session.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        session.append(T0, rows("a"))
    with pytest.raises(LocalProtocolError, match="closed"):
        session.flush()


def test_an_interrupted_call_ends_the_session(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows may be half way through, so nothing may be taken for complete afterwards (A14)."""
    session = session_on(cluster)

    def interrupt(_self: object, _wait_s: float) -> None:
        raise KeyboardInterrupt

    session.append(T0, rows("a"))
    monkeypatch.setattr("spark_2pc_sink.kafka.batch_sender.BatchSender.pump", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.flush()
    monkeypatch.undo()
    with pytest.raises(BatchRetryError, match="interrupted"):
        session.flush()


def test_at_most_max_in_flight_requests_are_under_way(fake: FakeCluster) -> None:
    """KIP-185: five at most, because a broker remembers the last five batches of a producer."""
    waiting = 0
    most = 0

    def hold(_received: Received, _serve: Callable[[int], Any]) -> Any:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        return None

    with Cluster(options_for(fake, max_in_flight=3)) as cluster:
        session: ProduceSession = session_on(cluster, max_in_flight=3, **SMALL_BATCHES)
        one_batch_each(session, T0, "a")
        session.flush()
        fake.script(Api.PRODUCE, *[hold] * 100)
        one_batch_each(session, T0, *"bcdefghij")
        while waiting < 3:
            session._sender.pump(0.05)
        session._sender.pump(0.05)
        assert most == 3


def test_nothing_is_sent_while_a_connection_logs_in_again(fake: FakeCluster) -> None:
    """KIP-368."""
    fake.session_lifetimes_ms = [0, 1, 0]  # of the first address, of the broker, and of the broker again
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "u"}
    with Cluster(options_for(fake, max_in_flight=3, sasl_password="right", **login)) as cluster:
        session: ProduceSession = session_on(cluster, max_in_flight=3, **SMALL_BATCHES)
        one_batch_each(session, T0, "a")
        session.flush()
        fake.logins_served.clear()

        def logs_in_again() -> bool:
            cluster.ready(0)
            return fake.logins == 3

        wait_until(logs_in_again, deadline_s=30, what="the new login")
        one_batch_each(session, T0, *"bcdefghij")
        session._sender.pump(0.05)
        assert session._sender._requests == []
        fake.logins_served.set()
        assert session.flush()[T0].records == 10
    assert fake.logins == 3


def test_a_request_that_could_not_be_sent_now_goes_again(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5."""
    session = session_on(cluster)
    session.append(T0, rows("a"))

    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise NodeUnavailableError("the connection was lost")

    monkeypatch.setattr(cluster, "send", fail)
    assert session.flush() == {T0: PartitionReceipt(1, 0, 0)}
    assert len(fake.partitions[T0].batches) == 1
