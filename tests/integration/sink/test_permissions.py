"""A role and a user with the rights that docs/permissions.md lists, and no others: the sink writes to both sides."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
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
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.testing import read_topic
from spark_2pc_sink.testing.local_broker import create_topic
from tests.conformance.access import PASSWORD, secured, user_of
from tests.conformance.raw_client import RawClient
from tests.harness.kafka_tools import tool_command
from tests.harness.remedies import sql_in
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
@pytest.mark.parametrize("kind", ["reference", pytest.param("kafka", marks=pytest.mark.java)])
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


#: A right may show what else is missing, such as a topic that could not be described.
ROUNDS_MAX = 6


@pytest.fixture
def odd_role(database: str) -> Iterator[str]:
    """The URL of a role whose name needs quotation marks, in SQL and in a shell, and that may do nothing."""
    url = sa.make_url(database)
    run(
        database,
        "CREATE ROLE \"the Job's\" LOGIN PASSWORD 'pw'",
        f'REVOKE ALL ON DATABASE "{url.database}" FROM PUBLIC',
        f'GRANT CONNECT ON DATABASE "{url.database}" TO "the Job\'s"',
    )
    yield url.set(username="the Job's", password="pw").render_as_string(hide_password=False)
    run(database, 'DROP OWNED BY "the Job\'s" CASCADE; DROP ROLE "the Job\'s"')


def carry_out(remedy: str, database: str, administrators: str, capsys: pytest.CaptureFixture[str]) -> bool:
    """Run each line of a remedy that is a command or statement, as an administrator; whether there was one."""
    done = False
    for line in remedy.splitlines():
        program, *words = shlex.split(line, comments=True) if line.startswith(("kafka-", "spark-2pc ")) else [""]
        if program.startswith("kafka-"):
            words[words.index("--bootstrap-server") + 1] = administrators
            subprocess.run([*tool_command(program), *words], check=True, capture_output=True)
        elif program:
            capsys.readouterr()
            # What only shows something is of the form that the parser takes; tests of incidents run it.
            assert callable(cli.command_parser(words).parse_args(words).run)
            assert words[0] == "status" or cli.main(words) == 0
            run(database, *([capsys.readouterr().out] if words[:2] == ["state", "ddl"] else []))
        else:
            run(database, *sql_in(line))
        done = done or bool(program or sql_in(line))
    return done


@pytest.mark.kafka
@pytest.mark.java
# The last has every command that the others print; each command of Kafka's is a virtual machine.
@pytest.mark.parametrize(
    "state",
    [
        *(pytest.param(state, marks=pytest.mark.thorough) for state in ("", "made by another role")),
        "of another schema, without its history",
    ],
)
def test_what_a_check_prints_makes_a_sink_ready(
    state: str,
    spark: SparkSession,
    database: str,
    odd_role: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each command and statement, round by round, until a batch is written; at first the job's user may do nothing."""
    run(database, 'CREATE SCHEMA "the Shop"; CREATE TABLE "the Shop"."Orders" (id bigint, item text)')
    # A printed command has no password.
    monkeypatch.setenv("PGPASSWORD", sa.make_url(database).password or "")
    schema = "the State" if "schema" in state else "public"
    if state:
        run(database, ddl(StoreSettings(state_schema=schema, history_batches=0 if "without" in state else 1_000)))
    with secured("kafka", 1) as (administrators, users):
        sink = DualWriteSink(
            transactional_id=f"the orders, {state}",
            kafka=login(users),
            database=odd_role,
            topic="orders",
            table='"the Shop"."Orders"',
            mode="upsert",
            upsert_keys=["id"],
            bad_rows="dead_letter",
            state_schema=f'"{schema}"',
        )
        with closing(sink):
            report = sink.check("id BIGINT, item STRING")
            for _ in range(ROUNDS_MAX):
                found = [each for each in report.findings if each.level != "ok"]
                done = [each for each in found if carry_out(each.remedy, database, administrators, capsys)]
                assert set(report.problems) <= set(done), report
                report = sink.check("id BIGINT, item STRING")
                if not done:
                    break
            assert report.ready, report
            written = sink.write(spark.sql("SELECT 1L AS id, 'a' AS item"), batch_id=0)
        assert written.record_count == 1
    assert rows(database, 'SELECT * FROM "the Shop"."Orders"') == [(1, "a")]


def test_readmes_state_tables_are_those_that_the_sink_makes(database: str) -> None:
    """Types, lengths, defaults, what may be null, and the primary keys (which the sink checks itself)."""
    options = SinkOptions.parse(
        transactional_id="t", kafka={"bootstrap.servers": "h:1"}, database=database, table="t", topic="t"
    )
    run(database, *(each for each in statements() if each.startswith("CREATE TABLE")))
    run(database, ddl(StoreSettings(**{**options.store_settings(), "state_schema": "own"})))
    for query in (_COLUMNS, _CHECKS):
        assert rows(database, query.format("public")) == rows(database, query.format("own"))
