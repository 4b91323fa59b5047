"""The target of a comparison, and what is looked at, on a scripted broker, before librdkafka reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError, KafkaError, KafkaTimeoutError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.reference.storage.batches import build_batch
from spark_2pc_sink.verification.columns import Column, RecordFacts, TableShape, compared_columns
from spark_2pc_sink.verification.own_client import BatchCheck
from spark_2pc_sink.verification.report import NotComparableError
from spark_2pc_sink.verification.target import MARK, GivenTarget, Target, parse_record_columns, value_fields
from spark_2pc_sink.verification.topic_reader import client_settings
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.record_batch import Compression, compress
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.wire import changed, keep_silent
from tests.unit.kafka.support import T0, options_for

SHAPE = TableShape(
    TableName("t"), (Column("id", "bigint", "int8"), Column("b", "text", "text")), (("id",), ("id", "b"))
)


def test_the_sink_has_noted_what_the_caller_does_not_say() -> None:
    layout = SinkLayout(table="shop.orders", topic="orders", mode="upsert", upsert_keys=("id",))
    found = GivenTarget().completed(layout)
    assert (found.table, found.mode, found.keys, found.order_by) == ("shop.orders", "upsert", ("id",), None)
    assert GivenTarget(table="other", mode="append").completed(layout).table == "other"
    assert GivenTarget().completed(None).table is None
    late = GivenTarget().completed(
        SinkLayout(table="t", mode="upsert", upsert_keys=("id",), upsert_order_by="`at`", upsert_late_rows="keep_newer")
    )
    assert (late.order_by, late.order_first) == ('"at"', True)


@pytest.mark.parametrize(
    ("keys", "compared", "found"), [(("b",), "id b", ("b",)), ((), "id b", ("id",)), ((), "b", ())]
)
def test_a_key_is_the_given_one_or_a_unique_key_of_the_table(
    keys: tuple[str, ...], compared: str, found: tuple[str, ...]
) -> None:
    assert Target(keys=keys).key_of(SHAPE, compared.split()) == found
    with pytest.raises(ConfigurationError, match="'x' is not"):
        Target(keys=("x",)).key_of(SHAPE, compared.split())


@pytest.mark.parametrize(
    ("given", "told"), [({"mode": "upsert"}, "upsert_keys"), ({"order_by": "at"}, "requires mode='upsert'")]
)
def test_upserts_need_keys_and_an_order_needs_upserts(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Target(**given)


# --- the user's expressions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (None, []),
        ("id = key::bigint", [("id", "key::bigint")]),
        (
            "order_id = (value->>'id')::bigint, total = round((value->>'a')::numeric, 2)",
            [("order_id", "(value->>'id')::bigint"), ("total", "round((value->>'a')::numeric, 2)")],
        ),
        (
            "\"Order, no\" = value->>'a,b', B = (ARRAY[1, 2])[1]",
            [("Order, no", "value->>'a,b'"), ("b", "(ARRAY[1, 2])[1]")],
        ),
        ("paid = (value->>'state') = 'paid'", [("paid", "(value->>'state') = 'paid'")]),
    ],
)
def test_expressions_are_separated_by_commas(text: str | None, columns: list[tuple[str, str]]) -> None:
    assert list(parse_record_columns(text).items()) == columns


@pytest.mark.parametrize(
    ("text", "told"),
    [
        *((text, "column = SQL expression") for text in ("id", "id =", "id == 3", "id = 1,")),
        *((text, "must be closed") for text in ("id = (1", "id = 1)", "id = 'x")),
        ("id = 1, ID = 2", "must occur once"),
    ],
)
def test_what_is_no_list_of_expressions_is_refused(text: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        parse_record_columns(text)


# --- tombstones ----------------------------------------------------------------------------------------------------


def layout(key: str | None, columns: dict[str, str] | None = None) -> SinkLayout:
    return SinkLayout(table="orders", key=key, columns=columns, mode="upsert", upsert_keys=("id",))


@pytest.mark.parametrize(
    ("noted", "known"),
    [
        (None, True),
        (layout("CAST(id AS STRING)"), True),
        (layout("coalesce(a.id, b.id)", {"id": "coalesce(a.id, b.id)"}), True),
        (layout("concat('o-', id)"), False),
    ],
)
def test_the_key_of_a_tombstone_is_the_text_of_the_column(noted: SinkLayout | None, known: bool) -> None:
    target = GivenTarget(mode="upsert", keys=("id",)).completed(noted)
    assert target.key_column == ("id" if known else None)
    if known:
        assert json.loads(target.tombstone(b"7")) == {"id": "7", MARK: True}
        return
    with pytest.raises(NotComparableError, match="of a tombstone does not contain id"):
        target.tombstone(b"7")


def test_the_key_of_a_tombstone_is_an_object_of_all_columns() -> None:
    target = Target(mode="upsert", keys=("a", "b"))
    assert json.loads(target.tombstone(b'{"b": "x", "a": 1.50, "c": 0}')) == {"a": "1.50", "b": "x", MARK: True}
    for key in (b'{"a": 1}', b"1", None):
        with pytest.raises(NotComparableError):
            target.tombstone(key)


# --- librdkafka ----------------------------------------------------------------------------------------------------


def test_librdkafka_gets_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """From where the sink has them; an older library would wait for one in vain."""
    login = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: ("token", 4_102_444_800)}
    options = KafkaOptions.parse({"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", **login})
    monkeypatch.setattr("spark_2pc_sink.verification.topic_reader.version", lambda _: "2.13.0")
    assert client_settings(options)["oauth_cb"]("") == ("token", 4_102_444_800, "", {})
    monkeypatch.setattr("spark_2pc_sink.verification.topic_reader.version", lambda _: "2.12.2")
    with pytest.raises(ConfigurationError, match=r"2\.12\.2 is installed, and tokens require 2\.13"):
        client_settings(options)


def shape(*columns: Column) -> TableShape:
    return TableShape(TableName("target"), columns)


def facts(*values: object) -> RecordFacts:
    found = RecordFacts()
    found.note(json.dumps(value).encode() for value in values)
    return found


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        (Column("c", "interval[]", "_interval", is_array=True), ["INTERVAL '1' DAY"], "intervals"),
        (Column("c", "bytea[]", "_bytea", is_array=True), ["AA=="], "elements"),
        (Column("c", "text", "text"), {"a": 1}, "an object or an array"),
    ],
)
def test_what_is_spelt_otherwise_is_left_out_and_named(column: Column, value: object, why: str) -> None:
    found = compared_columns(shape(column), facts({"c": value}))
    assert found.columns == ()
    assert why in found.not_checked[0].why


def test_columns_and_fields_without_a_counterpart_are_named() -> None:
    table = shape(
        Column("id", "bigint", "int8"),
        Column("serial", "bigint", "int8", filled=True),
        Column("sum", "bigint", "int8", generated=True),
        Column("other", "text", "text"),
    )
    found = compared_columns(table, facts({"id": 1, "more": 2}))
    assert (found.names, found.unseen) == (("id",), ("serial", "sum", "other"))
    assert [(part.what, part.why) for part in found.not_checked] == [
        ("column serial", "the table fills it, and no record has a field of that name"),
        ("column sum", "the table computes it, and no record has a field of that name"),
        ("column other", "no record has a field of that name"),
        ("fields more of the records", "the table has no column of that name"),
    ]


# --- the sink's expressions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expression", "path"),
    [
        (None, "id", ("id",)),
        (None, "line.sku", ("line", "sku")),
        (None, "upper(name)", ()),
        ("to_json(struct(*))", "id", ("id",)),
        ("to_json(struct(id, line.*))", "line.n", ("n",)),
        ("to_json(struct(id, line))", "line.n", ("line", "n")),
        ("to_json(struct(upper(name) AS name, id AS `no`))", "id", ("no",)),
        ("to_json(struct(upper(name) AS name))", "name", ()),
        ("to_json(named_struct('no', id, 'x, y', concat(a, ',)')))", "concat(a, ',)')", ("x, y",)),
        ("struct(id, line.sku)", "line . `sku`", ("sku",)),
    ],
)
def test_a_field_has_the_value_of_the_same_expression(
    value: str | None, expression: str, path: tuple[str, ...]
) -> None:
    fields = value_fields(value)
    assert fields is not None
    assert fields.path_of(expression) == path


@pytest.mark.parametrize(
    "value",
    [
        "name",
        "to_json(m)",
        "f(struct(a))",
        "struct(a) || struct(b)",
        "to_json(struct(a)) || (b)",
        "struct()",
        "named_struct(n, id)",
    ],
)
def test_other_values_do_not_show_what_they_are_made_of(value: str) -> None:
    assert value_fields(value) is None


BYTES_MAX = 100_000
TOGETHER_BYTES = 1_000
#: Less than one batch.
AHEAD_BYTES = 10


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with fake_cluster(brokers=2) as cluster:
        yield cluster


def checker(fake: FakeCluster, *, max_block_ms: int = 10_000) -> BatchCheck:
    options = options_for(fake, max_block_ms=max_block_ms)
    return BatchCheck(options=options, bytes_max=BYTES_MAX, together_bytes=TOGETHER_BYTES, ahead_bytes=AHEAD_BYTES)


def batch(plain_bytes: int, codec: Compression = Compression.GZIP) -> bytes:
    """One that becomes so many bytes. Nobody looks for its records."""
    payload = bytes(memoryview(compress(pa.py_buffer(bytes(plain_bytes)), codec)))
    return build_batch(payload, record_count=1, timestamp_ms=0, attributes=codec.value)


def put(fake: FakeCluster, *batches: bytes) -> None:
    for each in batches:
        fake.partitions[T0].put(each)


def fetched(fake: FakeCluster) -> list[int]:
    """From where partition 0 was read."""
    return [
        partition.fetch_offset
        for request in fake.of(Api.FETCH)
        for topic in request.body.topics
        for partition in topic.partitions
        if partition.partition == T0.partition
    ]


def test_a_batch_that_becomes_too_large_is_named_with_its_remedy(fake: FakeCluster) -> None:
    """D13."""
    # What is not compressed has no bound.
    put(fake, batch(BYTES_MAX), batch(BYTES_MAX * 2, Compression.NONE))
    checker(fake).check({T0: (0, 2)})
    large = batch(BYTES_MAX + 1)
    put(fake, large)
    with pytest.raises(KafkaError) as raised:
        checker(fake).check({T0: (0, 3)})
    assert raised.value.code == Code.CORRUPT_MESSAGE
    text = str(raised.value)
    assert f"the batch at offset 2 of t-0, {len(large)} bytes: its GZIP data cannot be read: " in text
    assert f"more than {BYTES_MAX} bytes; kafka-dump-log.sh shows" in text


def test_a_batch_that_is_no_batch_is_named_with_its_partition(fake: FakeCluster) -> None:
    put(fake, batch(10))

    def damage(response: Any) -> None:
        part = response.responses[0].partitions[0]
        part.records = part.records[:-1] + b"?"

    fake.script(Api.FETCH, changed(damage))
    with pytest.raises(KafkaError, match="t-0: the batch at offset 0: it has CRC"):
        checker(fake).check({T0: (0, 1)})


def test_each_batch_is_read_once(fake: FakeCluster) -> None:
    put(fake, *[batch(10)] * 6)
    check = checker(fake)
    check.check({T0: (2, 4)})
    # The batch after the end is more than may be read ahead.
    assert fetched(fake) == [2, 3, 4]
    assert [check.has_seen(T0, offset) for offset in (1, 2, 4, 5)] == [False, True, True, False]
    check.check({T0: (2, 4)})
    check.check({T0: (3, 6)})
    assert fetched(fake) == [2, 3, 4, 5]
    put(fake, batch(10))
    check.check({T0: (3, 6)})
    assert fetched(fake) == [2, 3, 4, 5, 6]
    # Only an earlier beginning is another reading.
    check.check({T0: (0, 6)})
    assert fetched(fake)[5:] == [0, 1, 2, 3, 4, 5, 6]
    assert all(check.has_seen(T0, offset) for offset in range(7))


def test_what_librdkafka_may_read_ahead_is_looked_at_and_no_more(fake: FakeCluster) -> None:
    put(fake, batch(10), batch(BYTES_MAX + 1))
    with pytest.raises(KafkaError, match="the batch at offset 1 of t-0"):
        checker(fake).check({T0: (0, 1)})
    put(fake, *[batch(10)] * 2, batch(BYTES_MAX + 1))
    checker(fake).check({T0: (2, 3)})


def test_batches_that_become_too_much_together_are_told(fake: FakeCluster) -> None:
    """D13: each alone is in order."""
    half = batch(BYTES_MAX // 2 + 1)
    assert len(half) < TOGETHER_BYTES / 2
    check = checker(fake)
    put(fake, half, batch(TOGETHER_BYTES, Compression.NONE), half)
    check.check({T0: (0, 3)})
    assert not check.dense
    put(fake, half)
    check.check({T0: (3, 4)})
    assert check.dense


def test_a_reader_that_hears_of_no_record_gives_up(fake: FakeCluster) -> None:
    """A request that the deadline cuts short says less than the answers before it."""

    def empty(response: Any) -> None:
        response.responses[0].partitions[0].records = b""

    put(fake, batch(10))
    fake.script(Api.FETCH, changed(empty), *[keep_silent] * 100)
    with pytest.raises(KafkaTimeoutError, match="no record arrived of t-0"):
        checker(fake, max_block_ms=500).check({T0: (0, 1)})
