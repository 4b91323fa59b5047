"""Before the first batch: a check that disturbs no one, rights, and what a user gets wrong, refused with a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy
import sqlalchemy as sa
from kafka.protocol.admin import CreateAclsRequest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from jdbc_state.schema import ddl
from spark_2pc_sink import DualWriteSink, Records, cli, errors
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import KafkaOptions, SinkOptions
from spark_2pc_sink.sink.check.kafka_side import may_write
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.sink.job.lane_columns import rows_of
from spark_2pc_sink.sink.records.record_expressions import analyze, choose_expressions
from spark_2pc_sink.testing import free_port, read_topic
from spark_2pc_sink.testing.kafka_broker import create_topic
from tests.conformance.access import PASSWORD, secured, user_of
from tests.conformance.raw_client import RawClient
from tests.conftest import MakeTopic
from tests.harness.json_contract import read_output
from tests.harness.providers import Broker
from tests.harness.streams import FileStream, session_settings
from tests.integration.postgres.database_tables import rows, run
from tests.integration.sink.targets import SCHEMA, Target


def subjects(target: Target, level: str, schema: object = None, **options: object) -> dict[str, str]:
    """The lines of one level: subject and text."""
    report = target.sink(**options).check(schema)  # type: ignore[arg-type]
    return {each.subject: f"{each.text} {each.remedy}" for each in report.findings if each.level == level}


@pytest.mark.usefixtures("spark")
def test_nothing_is_in_the_way(target: Target) -> None:
    """A new sink, with a table that fits. Of one broker and a server without fsync it is warned."""
    target.execute("CREATE TABLE target (id bigint, name text, amount integer)")
    assert subjects(target, "problem", SCHEMA, create_table=False) == {}
    assert set(subjects(target, "warning", SCHEMA)) <= {f"topic {target.topic}", "transactions", "database"}
    assert subjects(target, "not_checked", SCHEMA) == {}


def test_another_database_than_postgresql_is_named(target: Target, topic: MakeTopic) -> None:
    """C20: with the option that lets it pass, a warning is left."""
    answer = "CREATE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql AS $$ SELECT 'CockroachDB CCL v26.3.0' $$"
    target.execute("ALTER FUNCTION pg_catalog.version() RENAME TO version_of_this_server", answer)
    assert "accept_database='CockroachDB'" in subjects(target, "problem")["database"]
    accepted = {"accept_database": "CockroachDB", "create_table": True}
    assert subjects(target, "problem", **accepted) == {}
    warned = subjects(target, "warning", **accepted)["kind of database"]
    assert "it is CockroachDB, which lacks pg_terminate_backend" in warned


def test_a_comparison_that_will_be_inconclusive_is_foreseen(target: Target) -> None:
    """In Python as on the command line: `spark-2pc verify` ends with exit code 5 then."""
    assert "it can compare both sides" in subjects(target, "ok")["verify"]
    options = {"mode": "upsert", "upsert_keys": ["id"], "upsert_where": "target.amount < EXCLUDED.amount"}
    assert "inconclusive (exit code 5) about table public.target" in subjects(target, "warning", **options)["verify"]


@pytest.mark.usefixtures("spark")
def test_rows_that_do_not_fit_are_found(target: Target) -> None:
    """By the same code that plans the first batch."""
    target.execute("CREATE TABLE target (id bigint, name text, amount date)")
    (found,) = subjects(target, "problem", SCHEMA, create_table=False).values()
    assert "amount" in found
    misspelt = subjects(target, "problem", "id BIGINT, name STRING", table="other", key="idd")
    assert "did you mean 'id'?" in misspelt["rows of other"]
    assert rows(target.database, "SELECT to_regclass('other')") == [(None,)]


def test_a_rule_for_deletions_is_found(target: Target) -> None:
    """C17: as by the first batch; a sink that deletes nothing takes the table."""
    target.execute(
        "CREATE TABLE target (id bigint PRIMARY KEY, name text, amount integer)",
        "CREATE RULE keep AS ON DELETE TO target DO INSTEAD NOTHING",
    )
    options = {"mode": "upsert", "upsert_keys": ["id"], "create_table": False}
    assert subjects(target, "problem", **options) == {}
    (found,) = subjects(target, "problem", **options, delete_when="name IS NULL").values()
    assert "its rule 'keep' rewrites deletions" in found


def test_a_producer_at_work_is_not_disturbed(target: Target) -> None:
    """A check asks whether the id may be written; the pair and the open transaction stay as they are."""
    options = KafkaOptions.parse({"bootstrap.servers": target.broker.bootstrap})
    with Cluster(options) as cluster:
        client = TransactionClient(cluster, target.transactional_id, options)
        client.init_producer_id()
        before = client.describe()
        assert subjects(target, "problem") == {}
        assert may_write(cluster, target.transactional_id)
        assert client.describe() == before


def test_an_empty_transaction_leaves_nothing_open(target_of_each_version: Target) -> None:
    """B35: no record is written, and no transaction is left."""
    target = target_of_each_version
    checking = f"{target.transactional_id}.check"
    assert checking in subjects(target, "ok")["a transaction"]
    assert target.records() == []
    options = KafkaOptions.parse({"bootstrap.servers": target.broker.bootstrap})
    with Cluster(options) as cluster:
        assert TransactionClient(cluster, checking, options).describe().state == "CompleteAbort"
        assert TransactionClient(cluster, target.transactional_id, options).describe().producer is None


def test_without_two_phase_commit_a_crash_may_last_as_long_as_a_transaction(
    kafka_without_2pc: Broker, database: str, topic: MakeTopic, transactional_id: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """On the command line, with the file of the job; and a topic and a table that are not there."""
    path = tmp_path / "orders.toml"
    path.write_text(
        f'transactional_id = "{transactional_id}"\ndatabase = "{database}"\ntopic = "none"\ntable = "none"\n'
        f'[kafka]\nbootstrap.servers = "{kafka_without_2pc.bootstrap}"\n'
    )
    assert cli.main(["check", str(path), "--json"]) == 3
    found = read_output(capsys.readouterr().out)
    lines = {each["subject"]: each for each in found["findings"]}
    assert lines["two-phase commit"]["level"] == "warning"
    assert {name for name, each in lines.items() if each["level"] == "problem"} == {"topic none", "table none"}
    assert "the job may stay down for 15 minutes." in found["guarantee"]
    path.write_text(path.read_text().replace('topic = "none"', f'topic = "{topic(broker=kafka_without_2pc)}"'))
    assert cli.main(["check", str(path), "--create-table", "true"]) == 0
    assert cli.main(["check", str(path), "--create-table", "true", "--strict"]) == 3
    assert "0 problems" in capsys.readouterr().out


# --- the rights that docs/permissions.md lists, and no others --------------------------------------------------------

PAGE = (Path(__file__).parents[3] / "docs" / "permissions.md").read_text()
ORDERS = StructType([StructField("order_id", LongType()), StructField("item", StringType())])

#: What the page's commands have, as ``CreateAcls`` names it.
RESOURCES = {"--topic": 2, "--cluster": 4, "--transactional-id": 5}
OPERATIONS = {"Read": 3, "Write": 4, "DescribeConfigs": 10, "TwoPhaseCommit": 15}
_ALLOW, _LITERAL, _VERSION = 3, 3, 3

_COLUMNS = """
SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, column_default
FROM information_schema.columns
WHERE table_schema = '{}' ORDER BY table_name, column_name
"""
_CHECKS = """
SELECT pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = '{}'::regnamespace AND contype IN ('p', 'c') ORDER BY 1
"""


def statements() -> list[str]:
    """The page's SQL."""
    block = PAGE.split("```sql\n")[1].split("```")[0]
    return [each.strip() for each in re.sub("--.*", "", block).split(";") if each.strip()]


def rights(topic: str) -> list[Any]:
    """The page's ACLs, for this topic and the first user of a server with users."""
    made = []
    for command in re.findall("--add --allow-principal User:job (.*)", PAGE):
        flag, name = re.match(r"(--[\w-]+) (\w*)", command).groups()  # type: ignore[union-attr]
        made += [
            CreateAclsRequest.AclCreation(
                resource_type=RESOURCES[flag],
                resource_name={"--topic": topic, "--cluster": "kafka-cluster"}.get(flag, name),
                resource_pattern_type=_LITERAL,
                principal=f"User:{user_of(0)}",
                host="*",
                operation=OPERATIONS[operation],
                permission_type=_ALLOW,
            )
            for operation in re.findall(r"--operation (\w+)", command)
        ]
    return made


@pytest.fixture
def role(database: str) -> Iterator[str]:
    """The role job, in a database that gives everybody nothing; the URL with which it logs in."""
    named = sa.make_url(database).database
    run(
        database,
        "CREATE ROLE job LOGIN PASSWORD 'pw'",
        f'REVOKE ALL ON DATABASE "{named}" FROM PUBLIC',
        f'GRANT CONNECT ON DATABASE "{named}" TO job',
    )
    yield sa.make_url(database).set(username="job", password="pw").render_as_string(hide_password=False)
    run(database, "DROP OWNED BY job CASCADE", "DROP ROLE job")


def login(users: str) -> dict[str, str]:
    """The first user's."""
    return {
        "bootstrap.servers": users,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user_of(0),
        "sasl.password": PASSWORD,
    }


def problems(users: str, role: str) -> set[str]:
    """What a check finds, as this user and this role."""
    sink = DualWriteSink(transactional_id="orders", kafka=login(users), database=role, topic="orders", table="orders")
    return {each.subject for each in sink.check().problems}


@pytest.mark.kafka
@pytest.mark.parametrize("kind", ["reference", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])])
def test_the_rights_that_readme_lists_are_enough(
    kind: str, spark: SparkSession, tmp_path: Path, database: str, role: str
) -> None:
    """An upsert with two-phase commit; and a second run."""
    run(database, "CREATE TABLE orders (order_id bigint PRIMARY KEY, item text)")
    named = str(sa.make_url(database).database)
    stream = FileStream(spark, tmp_path, ORDERS)
    with secured(kind, 1) as (administrators, users):
        create_topic(administrators, "orders", partitions=2)
        kafka, lacking = {"transactional id", "topic orders"}, problems(users, role)
        assert lacking == kafka | {"state table", "table orders"}
        run(database, *(each.replace("DATABASE shop", f'DATABASE "{named}"') for each in statements()))
        assert problems(users, role) == kafka
        with RawClient(administrators) as administrator:
            answered = administrator.call(CreateAclsRequest(creations=rights("orders")), _VERSION)
        assert {each.error_code for each in answered.results} == {0}, answered
        assert problems(users, role) == set()
        sides: dict[str, Any] = {"transactional_id": "orders", "kafka": login(users), "database": role}
        upsert: dict[str, Any] = {"key": "order_id", "mode": "upsert", "upsert_keys": ["order_id"]}
        for number in range(2):
            stream.add([(1, f"one-{number}"), (number + 2, "more")])
            stream.run(DualWriteSink(**sides, topic="orders", table="orders", **upsert))
        assert len(read_topic(administrators, "orders")) == 4
        options = KafkaOptions.parse(login(users))
        with Cluster(options) as cluster:
            assert TransactionClient(cluster, "orders", options).init_producer_id().two_phase_commit
    assert rows(database, "SELECT * FROM orders ORDER BY 1") == [(1, "one-1"), (2, "more"), (3, "more")]


def test_readmes_state_tables_are_those_that_the_sink_makes(database: str) -> None:
    """Types, lengths, defaults, what may be null, and the primary keys (which the sink checks itself)."""
    options = SinkOptions.parse(
        transactional_id="t", kafka={"bootstrap.servers": "h:1"}, database=database, table="t", topic="t"
    )
    run(database, *(each for each in statements() if each.startswith("CREATE TABLE")))
    run(database, ddl(replace(options.store_settings(), state_schema="own")))
    for query in (_COLUMNS, _CHECKS):
        assert rows(database, query.format("public")) == rows(database, query.format("own"))


ID_AND_NAME = StructType([StructField("id", LongType()), StructField("name", StringType())])


class Case:
    """A batch and a sink that would work, to be spoilt in one place."""

    def __init__(self, spark: SparkSession, target: Target) -> None:
        self.frame = spark.createDataFrame([(1, "one"), (2, "two")], ID_AND_NAME)
        self.target = target

    def refused(self, frame: DataFrame | None = None, **spoilt: Any) -> errors.DualWriteError:
        """Write with one thing spoilt; the error, after a look that nothing was written."""
        with pytest.raises(errors.DualWriteError) as raised:
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
    assert isinstance(error, errors.KafkaTimeoutError)
    assert address in str(error)
    assert "2000 ms" in str(error)


#: What is spoilt, the error, and what it says.
SPOILT: Final[dict[str, tuple[dict[str, Any], type[errors.DualWriteError], tuple[str, ...]]]] = {
    "no table": ({"create_table": False}, errors.ConfigurationError, ("public.target", "create_table=True")),
    "no topic of this name": ({"topic": "no-such-topic"}, errors.UnknownTopicError, ("no-such-topic",)),
    "a record larger than the topic takes": (
        {"value": "repeat(name, 2000000)"}, errors.RecordTooLargeError, ("max.message.bytes", "the record with key "),
    ),
    "NUL in a text": (
        {"columns": {"id": "id", "name": "concat(name, decode(unhex('00'), 'UTF-8'))"}},
        errors.UnstorableValueError,
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
    assert isinstance(error, errors.UnstorableValueError)
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


def _analyzed(spark: SparkSession, *more: str, **options: Any) -> errors.ConfigurationError | None:
    """What the sink says to these options, over a batch with more columns, before it is connected to anything."""
    frame = spark.createDataFrame([(1, "one")], ID_AND_NAME).selectExpr("*", *more)
    given = {"transactional_id": "t", "kafka": {"bootstrap.servers": "h:1"}, "database": "postgresql://h/d"}
    outputs = {} if "writes" in options else {"topic": "orders", "table": "t"}
    try:
        [lane] = SinkOptions.parse(**given, **outputs, **options).lanes
        batch = rows_of(frame, lane.source)
        analyze(batch, choose_expressions(lane, batch.schema), lane.order_by)
    except errors.ConfigurationError as error:
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
    assert isinstance(error, errors.ConfigurationError)
    assert 'GRANT INSERT ON "public"."target" TO "reader"' in error.remedy


def test_a_constraint_of_the_table(case: Case) -> None:
    """A26, C12: refused by PostgreSQL after the records were sent; the Kafka half is aborted."""
    case.target.execute("CREATE TABLE target (id bigint PRIMARY KEY CHECK (id < 2), name text)")
    error = case.refused()
    assert not isinstance(error, errors.BatchAttemptsExhaustedError)
    assert "target_id_check" in str(error)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_partition_beyond_what_kafka_counts(case: Case, spark: SparkSession, ansi: str) -> None:
    """Its lower 32 bits are a partition that the topic has: the row must not go there, and is named."""
    with session_settings(spark, {"spark.sql.ansi.enabled": ansi}):
        error = case.refused(partition="CASE WHEN id = 2 THEN 4294967297 ELSE 0 END")
    assert isinstance(error, errors.UnstorableValueError)
    assert (error.column, error.row_key, error.value) == ("partition", "key='2'", "4294967297")


def test_a_header_without_a_key(case: Case) -> None:
    """The row is named by its number where it has no key."""
    headers = "array(named_struct('key', IF(id = 2, NULL, 'h'), 'value', CAST(name AS BINARY)))"
    error = case.refused(headers=headers, key=None)
    assert isinstance(error, errors.UnstorableValueError)
    assert "column 'headers' of the row with number " in str(error)


def test_speculation_is_refused(case: Case, spark: SparkSession) -> None:
    """A4: the setting and the remedy are named; the session is reconfigured under the sink's eyes."""
    conf = spark.sparkContext._conf
    conf.set("spark.speculation", "true")
    try:
        error = case.refused()
    finally:
        conf.set("spark.speculation", "false")
    assert isinstance(error, errors.ConfigurationError)
    assert "spark.speculation=false" in str(error)
