"""What the answers of both sides mean for a job: the lines of a check, and the paragraph below them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from pyspark.errors import PySparkException

from jdbc_state import SchemaReport
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import Records, Rows, SinkOptions
from spark_2pc_sink.sink.check import spark_side
from spark_2pc_sink.sink.check.check import DatabaseFacts, database_findings, guarantee
from spark_2pc_sink.sink.check.findings import Finding
from spark_2pc_sink.sink.check.kafka_side import (
    CLEANUP,
    MAX_TIMEOUT,
    MESSAGE_BYTES,
    MIN_INSYNC,
    TWO_PHASE,
    UNCLEAN,
    CheckedTopic,
    KafkaFacts,
    TopicRight,
    Trial,
    kafka_findings,
)
from spark_2pc_sink.sink.job.executors import ExecutorVerdict

TOPIC = CheckedTopic(
    "orders", partitions=4, replicas=3, operations=frozenset(TopicRight), configs={MIN_INSYNC: "2", UNCLEAN: "false"}
)
KAFKA = KafkaFacts(
    cluster_id="c",
    brokers=3,
    transaction_version=2,
    offers_two_phase=True,
    configs={MAX_TIMEOUT: "900000", TWO_PHASE: "true"},
    topics=(TOPIC,),
    trial=Trial(),
    log=replace(TOPIC, name="__transaction_state"),
)
DATABASE = DatabaseFacts(version="18.1", role="job")


def options(**given: Any) -> SinkOptions:
    kafka = {"bootstrap.servers": "h:1", **given.pop("kafka", {})}
    outputs = {} if "writes" in given else {"topic": "orders", "table": "orders"}
    return SinkOptions.parse(transactional_id="o", kafka=kafka, database="postgresql://h/d", **outputs, **given)


def of_kafka(facts: KafkaFacts, **given: Any) -> list[Finding]:
    return [each for each in kafka_findings(options(**given), facts) if each.level != "ok"]


def of_database(facts: DatabaseFacts, **given: Any) -> list[Finding]:
    return [each for each in database_findings(options(**given), facts) if each.level != "ok"]


def test_a_cluster_and_a_database_as_they_should_be_have_nothing_to_do() -> None:
    assert of_kafka(KAFKA) == []
    assert of_database(DATABASE) == []


def test_a_topic_that_each_row_names_is_not_checked() -> None:
    (found,) = of_kafka(replace(KAFKA, topics=()), writes=[Records(), Rows("orders")])
    assert (found.subject, found.level) == ("topics", "not_checked")
    assert of_kafka(replace(KAFKA, topics=()), writes=[Rows("orders")]) == []


def test_what_the_first_start_makes_is_no_problem() -> None:
    assert of_database(replace(DATABASE, state=SchemaReport(there=False, ready=False, lines=()))) == []


def test_a_topic_of_dead_letters_has_rules_of_its_own() -> None:
    """What may not be read is said once."""
    small = {**(TOPIC.configs or {}), MESSAGE_BYTES: "32767", CLEANUP: "compact"}
    letters = replace(TOPIC, name="bad", configs={**small, MESSAGE_BYTES: "1048588", CLEANUP: "delete"})
    given: dict[str, Any] = {"bad_rows": "dead_letter", "dead_letter_topic": "bad"}
    assert of_kafka(replace(KAFKA, topics=(replace(TOPIC, configs=small), letters)), **given) == []
    unread = of_kafka(replace(KAFKA, topics=(TOPIC, replace(letters, configs=None))), **given)
    assert [each.level for each in unread] == ["not_checked"]
    promise = guarantee(options(**given), KAFKA, DATABASE)
    assert "goes to table public.kafka_transaction_state_dead_letters and topic bad only, also exactly once." in promise
    by_row = of_kafka(replace(KAFKA, topics=(letters,)), writes=[Records(), Rows("t")], **given)
    assert "each row names its topic" in by_row[-1].text


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (ExecutorVerdict({}, {}), [("ok", "all can run the sink's tasks and reach the driver")]),
        (ExecutorVerdict({"a": "a: broken"}, {"b": "b: weak"}), [("problem", "a: broken"), ("warning", "b: weak")]),
        (ConfigurationError(option="o", value="a", rule="a: other", remedy="do"), [("problem", "a: other")]),
        (PySparkException("\nlost\n  at java"), [("not_checked", "Spark could not run a job on them: lost")]),
    ],
    ids=["fit", "verdict", "refused", "no job"],
)
def test_each_executor_host_is_a_line(
    end: ExecutorVerdict | Exception, said: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = mock.Mock(side_effect=[end])
    monkeypatch.setattr(spark_side, "try_executors", tried)
    monkeypatch.setattr(spark_side, "session_facts", mock.Mock())
    conf = {"spark.master": "spark://host:7077", "spark.driver.host": "driver"}
    spark: Any = mock.Mock(conf=conf, sparkContext=mock.Mock(pythonExec=sys.executable))
    found = list(spark_side.executor_findings(options(), spark))
    assert [(each.level, each.text) for each in found] == said
    assert all(bool(each.remedy) == (each.level != "ok") for each in found)
