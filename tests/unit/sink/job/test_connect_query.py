"""The query of a Spark Connect stream, and what its session tells; Spark's objects are stand-ins."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.job import calling_query, session_facts
from spark_2pc_sink.sink.job.calling_query import ConnectQuery, session_id_here
from spark_2pc_sink.sink.job.session_facts import WORKER_URL, ConnectSession, is_connect, stream_endpoint
from spark_2pc_sink.sink.stream.listener import StreamEndpoint

OPTIONS = SinkOptions.parse(
    transactional_id="orders",
    kafka={"bootstrap.servers": "127.0.0.1:9092"},
    database="postgresql+psycopg2://me@127.0.0.1/shop",
    topic="orders",
    table="orders",
)


def session(*queries: str) -> Any:
    active = [SimpleNamespace(id=query, isActive=True) for query in queries]
    return mock.Mock(streams=SimpleNamespace(active=active))


@pytest.fixture
def beside_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKER_URL, "sc://localhost:15002/;user_id=me")


def test_outside_foreach_batch_there_is_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKER_URL, raising=False)
    with pytest.raises(ConfigurationError, match=r"sink\.write\(df, batch_id=…\)"):
        ConnectQuery.of(session("a"), "orders", None)


@pytest.mark.usefixtures("beside_server")
def test_a_named_query_is_not_looked_for() -> None:
    query = ConnectQuery.of(session("a", "b"), "orders", None)
    assert query.ids.query_id == "query 'orders'"
    assert not query.is_stopping()


@pytest.mark.usefixtures("beside_server")
def test_the_one_query_of_the_session_in_which_the_stream_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since PySpark 4.3 a batch's own session is a clone that knows no query."""
    monkeypatch.setattr(calling_query, "session_by_id", {"root": session("a")}.__getitem__)
    assert ConnectQuery.of(session(), None, "root").ids.query_id == "a"
    assert ConnectQuery.of(session("a"), None, None).ids.query_id == "a"


@pytest.mark.usefixtures("beside_server")
@pytest.mark.parametrize(("queries", "shown"), [((), "is not known"), (("a", "b"), "has 2 of them")])
def test_where_it_cannot_be_told_which_query_calls_a_name_is_asked_for(queries: tuple[str, ...], shown: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{shown}; pass query_name='orders'"):
        ConnectQuery.of(session(*queries), None, None)


def test_a_classic_process_has_no_session_of_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(calling_query.sys.modules, "pyspark.sql.connect.session", raising=False)  # type: ignore[attr-defined]
    assert session_id_here() is None


def test_a_client_s_session_says_once_what_is_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    facts = ConnectSession(session(), "orders")
    for _ in range(2):
        facts.check_repeatable(mock.Mock(), "the batch")
    assert [message.partition(",")[0] for message in caplog.messages] == ["orders: Spark Connect shows no plans"]


def test_jobs_of_a_client_have_a_tag_which_is_taken_off_again() -> None:
    spark = session()
    with ConnectSession(spark, "orders").described("orders batch 1: write, all"):
        spark.addTag.assert_called_once_with("orders batch 1: write; all")
    spark.removeTag.assert_called_once_with("orders batch 1: write; all")


def test_tasks_run_here_only_beside_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may be on another machine than a server with master local[n]."""
    spark: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "conf": {}})()
    spark.conf = {"spark.master": "local[2]", "spark.driver.host": "localhost"}
    assert is_connect(spark)
    monkeypatch.delenv(WORKER_URL, raising=False)
    monkeypatch.setattr(session_facts, "_own_address", lambda peer: f"on the way to {peer}")
    assert stream_endpoint(spark, OPTIONS).host == "on the way to localhost"
    monkeypatch.setenv(WORKER_URL, "sc://localhost:15002")
    assert stream_endpoint(spark, OPTIONS).host == "127.0.0.1"


@pytest.mark.parametrize(
    ("settings", "options", "endpoint"),
    [
        ({}, {}, StreamEndpoint("driver", "driver")),
        ({"spark.driver.bindAddress": "0.0.0.0"}, {}, StreamEndpoint("0.0.0.0", "driver")),  # noqa: S104
        ({}, {"driver_port": 7100, "driver_port_range": 3}, StreamEndpoint("driver", "driver", (7100, 7101, 7102))),
        ({"spark.network.crypto.enabled": "true"}, {}, StreamEndpoint("driver", "driver", encrypted=True)),
        ({"spark.ssl.rpc.enabled": "TRUE"}, {}, StreamEndpoint("driver", "driver", encrypted=True)),
    ],
)
def test_executors_reach_the_driver_as_they_reach_it_for_spark(
    settings: dict[str, str], options: dict[str, Any], endpoint: StreamEndpoint
) -> None:
    """By Spark's own settings; encrypted where Spark's traffic is."""
    conf = {"spark.master": "spark://host:7077", "spark.driver.host": "driver", **settings}
    spark: Any = type("SparkSession", (), {"__module__": "pyspark.sql.session", "conf": conf})()
    assert stream_endpoint(spark, replace(OPTIONS, **options)) == endpoint
