"""A role and a user with the rights that docs/permissions.md lists, and no others: the sink writes to both sides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from kafka.protocol.admin import CreateAclsRequest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from jdbc_state import StoreSettings
from jdbc_state.schema import ddl
from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.testing import read_topic
from spark_2pc_sink.testing.local_broker import create_topic
from tests.conformance.access import PASSWORD, secured, user_of
from tests.conformance.raw_client import RawClient
from tests.harness.streams import FileStream, make_sink
from tests.integration.postgres.database_tables import rows, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "permissions.md").read_text()
SCHEMA = StructType([StructField("order_id", LongType()), StructField("item", StringType())])

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
    report = DualWriteSink(
        transactional_id="orders", kafka=login(users), database=role, topic="orders", table="orders"
    ).check()
    return {each.subject for each in report.problems}


@pytest.mark.kafka
@pytest.mark.parametrize("kind", ["reference", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])])
def test_the_rights_that_readme_lists_are_enough(
    kind: str, spark: SparkSession, tmp_path: Path, database: str, role: str
) -> None:
    """An upsert with two-phase commit; and a second run."""
    run(database, "CREATE TABLE orders (order_id bigint PRIMARY KEY, item text)")
    named = str(sa.make_url(database).database)
    run(database, *(each.replace("DATABASE shop", f'DATABASE "{named}"') for each in statements()))
    stream = FileStream(spark, tmp_path, SCHEMA)
    with secured(kind, 1) as (administrators, users):
        create_topic(administrators, "orders", partitions=2)
        assert problems(users, role) == {"transactional id", "topic orders"}
        with RawClient(administrators) as administrator:
            answered = administrator.call(CreateAclsRequest(creations=rights("orders")), _VERSION)
        assert {each.error_code for each in answered.results} == {0}, answered
        assert problems(users, role) == set()
        kafka = login(users)
        for number in range(2):
            stream.add([(1, f"one-{number}"), (number + 2, "more")])
            sink = make_sink(
                broker=SimpleNamespace(bootstrap=users),
                database=role,
                transactional_id="orders",
                topic="orders",
                kafka=kafka,
                table="public.orders",
                create_table=False,
                key="order_id",
                mode="upsert",
                upsert_keys=["order_id"],
            )
            stream.run(sink)
        assert len(read_topic(administrators, "orders")) == 4
        options = SinkOptions.parse(
            transactional_id="orders", kafka=kafka, database=role, table="orders", topic="orders"
        )
        with Cluster(options.kafka) as cluster:
            assert TransactionClient(cluster, "orders", options.kafka).init_producer_id().two_phase_commit
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
