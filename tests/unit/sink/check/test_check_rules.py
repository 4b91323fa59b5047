"""What the answers of both sides mean for a job: the lines of a check, and the paragraph below them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from pyspark.errors import PySparkException

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import Records, Rows, SinkOptions
from spark_2pc_sink.sink.check.check import DatabaseFacts, TableFacts, database_findings, guarantee
from spark_2pc_sink.sink.check.executor_side import executor_findings
from spark_2pc_sink.sink.check.findings import Finding, Level
from spark_2pc_sink.sink.check.kafka_rules import TopicRight, kafka_findings
from spark_2pc_sink.sink.check.kafka_side import (
    CLEANUP,
    DISKLESS,
    MAX_TIMEOUT,
    MESSAGE_BYTES,
    MIN_INSYNC,
    TWO_PHASE,
    UNCLEAN,
    CheckedTopic,
    KafkaFacts,
    Trial,
)
from spark_2pc_sink.sink.job import executors, session_facts
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
DATABASE = DatabaseFacts(version="18.1", version_number=180001, role="job", tables=(TableFacts("orders", columns=3),))


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


@pytest.mark.parametrize(
    ("changed", "subject", "level", "words"),
    [
        ({"problem": "no broker answered"}, "brokers", "problem", "no broker answered"),
        ({"transaction_version": 1}, "transaction.version", "warning", "upgrade --feature transaction.version=2"),
        ({"id_allowed": False}, "transactional id", "problem", "--transactional-id o --operation Write"),
        ({"offers_two_phase": False}, "two-phase commit", "warning", "may stay down for 15 minutes"),
        ({"log": replace(TOPIC, replicas=1)}, "transactions", "warning", "has 1 replica:"),
        (
            {"trial": Trial(refused={"orders": "code 42"})},
            "topic orders",
            "problem",
            "support transactions: code 42",
        ),
    ],
)
def test_what_is_said_of_a_cluster(changed: dict[str, Any], subject: str, level: Level, words: str) -> None:
    (found,) = of_kafka(replace(KAFKA, **changed))
    assert (found.subject, found.level) == (subject, level)
    assert words in f"{found.text} {found.remedy}"


@pytest.mark.parametrize(
    ("changed", "level", "words"),
    [
        ({"there": False}, "problem", "kafka-topics.sh --bootstrap-server h:1 --create --topic orders"),
        ({"operations": frozenset({TopicRight.READ})}, "problem", "may not write there"),
        ({"operations": frozenset({TopicRight.WRITE})}, "warning", "may not read there"),
        ({"configs": {MIN_INSYNC: "2", DISKLESS: "true"}}, "problem", "not support transactions: diskless.enable=true"),
        ({"configs": {MIN_INSYNC: "2", UNCLEAN: "true"}}, "warning", "unclean.leader.election.enable=false"),
    ],
)
def test_what_is_said_of_a_topic(changed: dict[str, Any], level: Level, words: str) -> None:
    (found,) = of_kafka(replace(KAFKA, topics=(replace(TOPIC, **changed),)))
    assert (found.subject, found.level) == ("topic orders", level)
    assert words in f"{found.text} {found.remedy}"


def test_a_topic_that_each_row_names_is_not_checked() -> None:
    (found,) = of_kafka(replace(KAFKA, topics=()), writes=[Records(), Rows("orders")])
    assert (found.subject, found.level) == ("topics", "not_checked")
    assert of_kafka(replace(KAFKA, topics=()), writes=[Rows("orders")]) == []


@pytest.mark.parametrize(
    ("changed", "subject", "level", "words"),
    [
        ({"problem": "no route"}, "database", "problem", "no route"),
        ({"standby": True}, "database", "problem", "target_session_attrs=read-write"),
        ({"version_number": 130009}, "database", "problem", "needs 14 or later"),
        ({"state_ready": False, "state_lines": ("old",)}, "state table", "problem", "old choose another state_table"),
        (
            {"state_there": False, "may_make_state": False, "state_remedies": ("spark-2pc state ddl",)},
            "state table",
            "problem",
            "may not create it spark-2pc state ddl",
        ),
        ({"tables": (TableFacts("t", may_insert=False),)}, "table t", "problem", 'GRANT INSERT ON t TO "job"'),
    ],
)
def test_what_is_said_of_a_database(changed: dict[str, Any], subject: str, level: Level, words: str) -> None:
    (found,) = of_database(replace(DATABASE, **changed))
    assert (found.subject, found.level) == (subject, level)
    assert words in f"{found.text} {found.remedy}"


def test_what_the_first_start_makes_is_no_problem() -> None:
    facts = replace(DATABASE, state_there=False, tables=(TableFacts("t", created=True),))
    for letters in (TableFacts("d", created=True), TableFacts("d")):
        assert of_database(replace(facts, dead_letters=letters)) == []


@pytest.mark.parametrize(
    ("kafka", "database", "words"),
    [
        (KAFKA, DATABASE, "The job may stay down indefinitely"),
        (
            replace(KAFKA, offers_two_phase=False),
            DATABASE,
            "the job may stay down for 15 minutes.",
        ),
        (
            replace(KAFKA, topics=(replace(TOPIC, replicas=1),)),
            DATABASE,
            "records of orders survive the loss of one broker",
        ),
    ],
)
def test_the_paragraph_says_what_holds_and_what_does_not(
    kafka: KafkaFacts, database: DatabaseFacts, words: str
) -> None:
    found = guarantee(options(), kafka, database)
    assert found.startswith("Every row of a batch is written to topic orders and table orders exactly once")
    assert words in found
    assert ("loss of one broker" in found) is ("loss of one broker" in words)


@pytest.mark.parametrize(
    ("configs", "level", "words"),
    [
        ({MESSAGE_BYTES: "1048588", CLEANUP: "delete"}, "ok", ""),
        ({MESSAGE_BYTES: "32767"}, "problem", "a dead letter may need 32768"),
        ({MESSAGE_BYTES: "32768"}, "warning", "sent without their row"),
        ({MESSAGE_BYTES: "2000000", CLEANUP: "compact,delete"}, "warning", "replaces that of an equal row"),
    ],
)
def test_what_is_said_of_a_topic_of_dead_letters(configs: dict[str, str | None], level: Level, words: str) -> None:
    """Of the sink's other topics nothing of it; what may not be read is said once."""
    letters = replace(TOPIC, name="bad", configs={**(TOPIC.configs or {}), **configs})
    given: dict[str, Any] = {"bad_rows": "dead_letter", "dead_letter_topic": "bad"}
    found = of_kafka(replace(KAFKA, topics=(replace(letters, name="orders"), letters)), **given)
    assert [(each.subject, each.level) for each in found] == [("dead-letter topic bad", level)] * (level != "ok")
    assert all(words in each.text for each in found)
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
    monkeypatch.setattr(executors, "try_executors", tried)
    monkeypatch.setattr(session_facts, "session_facts", mock.Mock())
    conf = {"spark.master": "spark://host:7077", "spark.driver.host": "driver"}
    spark: Any = mock.Mock(conf=conf, sparkContext=mock.Mock(pythonExec=sys.executable))
    found = list(executor_findings(options(), spark))
    assert [(each.level, each.text) for each in found] == said
    assert all(bool(each.remedy) == (each.level != "ok") for each in found)
