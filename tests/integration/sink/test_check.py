"""A check before the first batch, on real servers: it finds what a batch would meet, and disturbs nobody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_2pc_sink import DualWriteSink, cli
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.sink.check.kafka_side import may_write
from spark_2pc_sink.testing import read_topic
from tests.harness.json_contract import read_output
from tests.integration.postgres import database_tables
from tests.integration.sink.targets import SCHEMA, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import MakeTopic
    from tests.harness.providers import Broker


def subjects(target: Target, level: str, schema: object = None, **options: object) -> dict[str, str]:
    """The lines of one level: subject and text."""
    report = target.sink(**options).check(schema)  # type: ignore[arg-type]
    return {each.subject: f"{each.text} {each.remedy}" for each in report.findings if each.level == level}


def test_nothing_is_in_the_way(target: Target, spark: SparkSession) -> None:
    """A new sink, with a table that fits. Of one broker and a server without fsync it is warned."""
    database_tables.run(target.database, "CREATE TABLE target (id bigint, name text, amount integer)")
    assert subjects(target, "problem", SCHEMA, create_table=False) == {}
    assert set(subjects(target, "warning", SCHEMA)) <= {f"topic {target.topic}", "transactions", "database"}
    assert subjects(target, "not_checked", SCHEMA) == {}


def test_another_database_than_postgresql_is_named(target: Target, topic: MakeTopic) -> None:
    """C20: with the option that lets it pass, a warning is left."""
    answer = "CREATE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql AS $$ SELECT 'CockroachDB CCL v26.3.0' $$"
    database_tables.run(
        target.database, f"ALTER FUNCTION pg_catalog.version() RENAME TO version_of_this_server; {answer}"
    )
    assert "accept_database='CockroachDB'" in subjects(target, "problem")["database"]
    accepted = {"accept_database": "CockroachDB", "create_table": True}
    assert subjects(target, "problem", **accepted) == {}
    assert (
        "it is CockroachDB, which lacks pg_terminate_backend"
        in subjects(target, "warning", **accepted)["kind of database"]
    )


def test_a_comparison_that_will_be_inconclusive_is_foreseen(target: Target) -> None:
    """In Python as on the command line: `spark-2pc verify` ends with exit code 5 then."""
    assert "it can compare both sides" in subjects(target, "ok")["verify"]
    options = {"mode": "upsert", "upsert_keys": ["id"], "upsert_where": "target.amount < EXCLUDED.amount"}
    assert "inconclusive (exit code 5) about table public.target" in subjects(target, "warning", **options)["verify"]


def test_rows_that_do_not_fit_are_found(target: Target, spark: SparkSession) -> None:
    """By the same code that plans the first batch."""
    database_tables.run(target.database, "CREATE TABLE target (id bigint, name text, amount date)")
    (found,) = subjects(target, "problem", SCHEMA, create_table=False).values()
    assert "amount" in found
    found = subjects(target, "problem", "id BIGINT, name STRING", create_table=True, table="other", key="idd")[
        "rows of other"
    ]
    assert "did you mean 'id'?" in found
    assert database_tables.rows(target.database, "SELECT to_regclass('other')") == [(None,)]


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


def test_an_empty_transaction_leaves_nothing_open(
    kafka_each_version: Broker, database: str, topic: MakeTopic, transactional_id: str
) -> None:
    """B35: no record is written, and no transaction is left."""
    name = topic(broker=kafka_each_version)
    sink = DualWriteSink(
        transactional_id=transactional_id,
        kafka={"bootstrap.servers": kafka_each_version.bootstrap},
        database=database,
        topic=name,
        table="none",
    )
    (found,) = (each for each in sink.check().findings if each.subject == "a transaction")
    assert (found.level, f"{transactional_id}.check" in found.text) == ("ok", True)
    assert read_topic(kafka_each_version.bootstrap, name) == []
    options = KafkaOptions.parse({"bootstrap.servers": kafka_each_version.bootstrap})
    with Cluster(options) as cluster:
        assert TransactionClient(cluster, f"{transactional_id}.check", options).describe().state == "CompleteAbort"
        assert TransactionClient(cluster, transactional_id, options).describe().producer is None


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
