"""What a broker's refusal of a record batch ends as. Covers B18 (deleted topic), B22 (no error is lost), B25."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    AbortableError,
    AuthorizationError,
    ConfigurationError,
    DualWriteError,
    FencedError,
    KafkaError,
    RecordRefusedError,
    RecordTooLargeError,
    UnknownTopicError,
)
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.arrow_layout import EncodedRows
from tests.unit.fakes.cluster import FakeCluster
from tests.unit.fakes.wire import Received, Step, answer
from tests.unit.kafka.support import SMALL_BATCHES, T0, one_batch_each, rows, sent_batches, session_on

pytestmark = pytest.mark.usefixtures("begun")


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

    def refused(_received: Received, serve: Callable[[int], Any]) -> Any:
        response = serve(code)
        [answered] = response.responses[0].partition_responses
        kind = type(answered).BatchIndexAndErrorMessage
        answered.record_errors = [kind(batch_index=at, batch_index_error_message=text) for at, text in errors.items()]
        return response

    return refused


def send(session: ProduceSession, batch: EncodedRows) -> None:
    session.append(T0, batch)
    session.flush()


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
    session.append(T0, rows("a"))
    session.flush()

    def delete(_received: Received, serve: Callable[[int], Any]) -> Any:
        response = serve(Code.UNKNOWN_TOPIC_OR_PARTITION)
        fake.partitions.clear()
        return response

    fake.script(Api.PRODUCE, delete)
    session.append(T0, rows("b"))
    with pytest.raises(UnknownTopicError, match="'t'"):
        session.flush()
