"""Before the first batch, on real servers: a check that disturbs no one, and the rights of docs/permissions.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from kafka.protocol.admin import CreateAclsRequest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from jdbc_state import StoreSettings
from jdbc_state.schema import ddl
from spark_2pc_sink import DualWriteSink, cli
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import KafkaOptions, SinkOptions
from spark_2pc_sink.sink.check.kafka_side import may_write
from spark_2pc_sink.testing import read_topic
from spark_2pc_sink.testing.local_broker import create_topic
from tests.conformance.access import PASSWORD, secured, user_of
from tests.conformance.raw_client import RawClient
from tests.harness.json_contract import read_output
from tests.harness.streams import FileStream
from tests.integration.postgres.database_tables import rows, run
from tests.integration.sink.targets import SCHEMA, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import MakeTopic
    from tests.harness.providers import Broker


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
    run(database, ddl(StoreSettings(**{**options.store_settings(), "state_schema": "own"})))
    for query in (_COLUMNS, _CHECKS):
        assert rows(database, query.format("public")) == rows(database, query.format("own"))
