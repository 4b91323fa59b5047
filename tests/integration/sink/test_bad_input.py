"""What a user gets wrong: each is refused with the value, the rule and the remedy, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_2pc_sink import Records
from spark_2pc_sink.errors import (
    BatchAttemptsExhaustedError,
    ConfigurationError,
    DualWriteError,
    KafkaTimeoutError,
    RecordTooLargeError,
    UnknownTopicError,
    UnstorableValueError,
)
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.sink.job.lane_columns import rows_of
from spark_2pc_sink.sink.records.record_expressions import analyze, choose_expressions
from spark_2pc_sink.testing import free_port
from tests.harness.streams import session_settings
from tests.integration.sink.targets import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SCHEMA = StructType([StructField("id", LongType()), StructField("name", StringType())])


class Case:
    """A batch and a sink that would work, to be spoilt in one place."""

    def __init__(self, spark: SparkSession, target: Target) -> None:
        self.frame = spark.createDataFrame([(1, "one"), (2, "two")], SCHEMA)
        self.target = target

    def refused(self, frame: DataFrame | None = None, **spoilt: Any) -> DualWriteError:
        """Write with one thing spoilt; the error, after a look that nothing was written."""
        with pytest.raises(DualWriteError) as raised:
            self.target.write(self.frame if frame is None else frame, **{"key": "id", **spoilt})
        assert self.target.records() == []
        if self.target.rows("*", "to_regclass('target')") != [(None,)]:
            assert self.target.rows("count(*)") == [(0,)]
        return raised.value


@pytest.fixture
def case(spark: SparkSession, target: Target) -> Case:
    return Case(spark, target)


OWN_NAME: Final = "it must not end with a name or an operator"


NO_SQL: Final = [
    ("id +", "PARSE_SYNTAX_ERROR"),
    ("concat(id, name", "PARSE_SYNTAX_ERROR"),
    ("id;", "PARSE_SYNTAX_ERROR"),
    ("id, name", "PARSE_SYNTAX_ERROR"),
    ("CAST(id AS NOSUCH)", 'Unsupported data type "NOSUCH"'),
    ("nosuch(id)", "`nosuch`"),
    ("max(id)", "it aggregates rows"),
    ("explode(array(id))", "it turns one row into several"),
    ("x -> x", "it is a lambda function"),
    ("id name", OWN_NAME),
    ("id > 1 and", OWN_NAME),
]
OPTIONS: Final = ("value", "headers", "partition", "columns", "upsert_order_by", "delete_when", "where", "rows")


@pytest.mark.parametrize(
    ("option", "sql", "said"),
    [
        *(("key", *no_sql) for no_sql in NO_SQL),
        *((option, *NO_SQL[0]) for option in OPTIONS),
    ],
)
def test_an_expression_that_is_no_sql(spark: SparkSession, option: str, sql: str, said: str) -> None:
    """What the parser says about it is passed on, and never about a word that the user has not written."""
    given: dict[str, Any] = {option: {"id": sql} if option == "columns" else sql}
    if option in {"upsert_order_by", "delete_when"}:
        given |= {"mode": "upsert", "upsert_keys": ["id"]}
    if option == "where":
        given = {"writes": [Records(topic="t", where=sql)]}
    if option == "rows":
        given = {"writes": [Records(topic="t", rows=f"explode({sql}) AS one")]}
    error = _analyzed(spark, **given)
    assert error is not None
    assert said in error.rule
    assert "AS" not in error.rule.replace("CAST(id AS", "") or said == OWN_NAME


def test_options_are_expressions_over_the_batch_and_not_over_each_other(spark: SparkSession) -> None:
    """All are analyzed in one select, where Spark would take the name of one for a column in the next."""
    error = _analyzed(spark, key="name", value="concat(key, 'v')")
    assert error is not None
    assert (error.option, error.value) == ("value", "concat(key, 'v')")


def test_a_wrong_broker_address(case: Case) -> None:
    """B25: nothing hangs; the address and the deadline are named."""
    address = f"127.0.0.1:{free_port()}"
    error = case.refused(kafka={"bootstrap.servers": address, "max.block.ms": "2000"})
    assert isinstance(error, KafkaTimeoutError)
    assert address in str(error)
    assert "2000 ms" in str(error)


#: What is spoilt, the error, and what it says.
SPOILT: Final[dict[str, tuple[dict[str, Any], type[DualWriteError], tuple[str, ...]]]] = {
    "no table": ({"create_table": False}, ConfigurationError, ("public.target", "create_table=True")),
    "no topic of this name": ({"topic": "no-such-topic"}, UnknownTopicError, ("no-such-topic",)),
    "a record larger than the topic takes": (
        {"value": "repeat(name, 2000000)"}, RecordTooLargeError, ("max.message.bytes", "the record with key "),
    ),
    "NUL in a text": (
        {"columns": {"id": "id", "name": "concat(name, decode(unhex('00'), 'UTF-8'))"}},
        UnstorableValueError,
        ("column 'name' of the row with key=",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("spoilt", SPOILT)
def test_what_is_wrong_is_named_and_nothing_is_written(case: Case, spoilt: str) -> None:
    """C8."""
    options, kind, said = SPOILT[spoilt]
    error = case.refused(**options)
    assert isinstance(error, kind)
    assert [text for text in said if text not in str(error)] == []


@pytest.mark.parametrize(
    ("named", "rule"),
    [
        ("'no-such-topic'", "Kafka has no topic of this name"),
        ("'__consumer_offsets'", "an internal topic of Kafka"),
        ("CAST(X'ff' AS STRING)", "no topic can have this name"),
        ("NULL", "every row needs a topic"),
    ],
)
def test_a_row_that_names_no_topic(case: Case, monkeypatch: pytest.MonkeyPatch, named: str, rule: str) -> None:
    """A25: another attempt would not help: the row is named at once, and what to do about it."""
    monkeypatch.setattr(SmallBatches, "expected", True)
    frame = case.frame.selectExpr("*", f"CASE WHEN id = 2 THEN {named} ELSE '{case.target.topic}' END AS topic")
    # Not the whole row, of which the topic is a part: text that is none is refused there as well.
    error = case.refused(frame, topic=None, value="name")
    assert isinstance(error, UnstorableValueError)
    assert (error.column, error.row_key) == ("topic", "key='2'")
    assert rule in error.rule
    assert "the expression that makes the column" in error.remedy


PAIR = "named_struct('key', name, 'value', name)"
AS_BYTES = "named_struct('key', h.key, 'value', CAST(h.value AS BINARY))"


def header_of(text: str) -> str:
    """One header with this SQL as its value."""
    return f"named_struct('key', 'name', 'value', CAST({text} AS BINARY))"


@pytest.mark.parametrize(
    ("option", "expression", "remedy"),
    [
        ("key", "map('n', name)", "to_json(map('n', name))"),
        ("value", "id", "CAST(id AS STRING)"),
        ("partition", "'2'", "CAST('2' AS INT)"),
        ("headers", "id", "array(named_struct('key', 'name', 'value', CAST(CAST(id AS STRING) AS BINARY)))"),
        ("headers", "map('h', name)", f"transform(map_entries(map('h', name)), h -> {AS_BYTES})"),
        ("headers", f"array({PAIR})", f"transform(array({PAIR}), h -> {AS_BYTES})"),
        ("headers", "array(struct(name))", f"array({header_of('to_json(array(struct(name)))')})"),
    ],
)
def test_a_part_of_the_record_of_another_type(spark: SparkSession, option: str, expression: str, remedy: str) -> None:
    """The expression stands where it belongs, and the remedy is one that the sink takes."""
    error = _analyzed(spark, **{option: expression})
    assert error is not None
    assert (error.option, error.value) == (option, expression)
    assert f"convert it, with {option}={remedy!r}" in error.remedy
    assert _analyzed(spark, **{option: remedy}) is None


def test_a_topic_column_that_is_no_text(spark: SparkSession) -> None:
    """It has no option that could be named instead."""
    error = _analyzed(spark, "1.5D AS topic")
    assert error is not None
    assert "rename it before the sink" in error.remedy


def _analyzed(spark: SparkSession, *more: str, **options: Any) -> ConfigurationError | None:
    """What the sink says to these options, over a batch with more columns, before it is connected to anything."""
    frame = spark.createDataFrame([(1, "one")], SCHEMA).selectExpr("*", *more)
    given = {"transactional_id": "t", "kafka": {"bootstrap.servers": "h:1"}, "database": "postgresql://h/d"}
    outputs = {} if "writes" in options else {"topic": "orders", "table": "t"}
    try:
        [lane] = SinkOptions.parse(**given, **outputs, **options).lanes
        batch = rows_of(frame, lane.source)
        analyze(batch, choose_expressions(lane, batch.schema), lane.order_by)
    except ConfigurationError as error:
        return error
    return None


def test_a_role_that_may_not_write_the_table(case: Case) -> None:
    """Not after the records were sent: before the state table is looked for."""
    case.target.execute("CREATE TABLE target (id bigint, name text)", "CREATE ROLE reader LOGIN PASSWORD 'pw'")
    reader = sqlalchemy.make_url(case.target.database).set(username="reader", password="pw")
    try:
        error = case.refused(database=reader.render_as_string(hide_password=False))
    finally:
        case.target.execute("DROP ROLE reader")
    assert isinstance(error, ConfigurationError)
    assert 'GRANT INSERT ON "public"."target" TO "reader"' in error.remedy


def test_a_constraint_of_the_table(case: Case) -> None:
    """A26, C12: refused by PostgreSQL after the records were sent; the Kafka half is aborted."""
    case.target.execute("CREATE TABLE target (id bigint PRIMARY KEY CHECK (id < 2), name text)")
    error = case.refused()
    assert not isinstance(error, BatchAttemptsExhaustedError)
    assert "target_id_check" in str(error)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_partition_beyond_what_kafka_counts(case: Case, spark: SparkSession, ansi: str) -> None:
    """Its lower 32 bits are a partition that the topic has: the row must not go there, and is named."""
    with session_settings(spark, {"spark.sql.ansi.enabled": ansi}):
        error = case.refused(partition="CASE WHEN id = 2 THEN 4294967297 ELSE 0 END")
    assert isinstance(error, UnstorableValueError)
    assert (error.column, error.row_key, error.value) == ("partition", "key='2'", "4294967297")


def test_a_header_without_a_key(case: Case) -> None:
    """The row is named by its number where it has no key."""
    headers = "array(named_struct('key', IF(id = 2, NULL, 'h'), 'value', CAST(name AS BINARY)))"
    error = case.refused(headers=headers, key=None)
    assert isinstance(error, UnstorableValueError)
    assert "column 'headers' of the row with number " in str(error)


def test_speculation_is_refused(case: Case, spark: SparkSession) -> None:
    """A4: the setting and the remedy are named; the session is reconfigured under the sink's eyes."""
    conf = spark.sparkContext._conf
    conf.set("spark.speculation", "true")
    try:
        error = case.refused()
    finally:
        conf.set("spark.speculation", "false")
    assert isinstance(error, ConfigurationError)
    assert "spark.speculation=false" in str(error)
