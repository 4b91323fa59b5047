"""Two sinks of one transactional id in one query: the second would write nothing, without an error."""

from __future__ import annotations

import pickle
import threading
from dataclasses import fields
from typing import Any

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.job.query_checks import RunIds
from spark_2pc_sink.sink.job.sinks_of_runs import _HOW, SinksOfRuns, what_is_written

RUN = RunIds("query", "run")


def options(**given: Any) -> SinkOptions:
    base = {
        "transactional_id": "orders",
        "kafka": {"bootstrap.servers": "h:1"},
        "database": "postgresql+psycopg2://job:secret@h/shop",
        "topic": "orders",
        "table": "orders",
    }
    return SinkOptions.parse(**{**base, **given})


def check_in(sinks: SinksOfRuns, run: RunIds = RUN, *, active: bool = True, **given: Any) -> None:
    sinks.check_in(run, options(**given), is_active=lambda _: active)


@pytest.fixture
def sinks() -> SinksOfRuns:
    sinks = SinksOfRuns()
    check_in(sinks)
    return sinks


@pytest.mark.parametrize(
    "given",
    [
        {"topic": "others"},
        {"table": "others"},
        {"database": "postgresql://job@h/other"},
        {"key": "id"},
        {"value": "'v'"},
        {"headers": "h"},
        {"partition": "0"},
        {"columns": {"id": "id"}},
        {"mode": "upsert", "upsert_keys": ["id"]},
        {"state_table": "other_state"},
    ],
)
def test_another_sink_of_the_id_is_refused(sinks: SinksOfRuns, given: dict[str, Any]) -> None:
    """A20: both are told apart by name, and the remedy is an id of its own. The first goes on."""
    with pytest.raises(ConfigurationError, match="transactional_id of its own") as refused:
        check_in(sinks, **given)
    assert f"{next(iter(given))}=" in refused.value.rule
    assert "secret" not in str(refused.value)
    check_in(sinks)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"transactional_id": "others", "table": "others"},
        {"lock_timeout_ms": 7_000, "on_batch": print},
        {"database": "postgresql://somebody:else@h/shop"},
    ],
)
def test_the_same_sink_built_anew_and_others_are_taken(sinks: SinksOfRuns, given: dict[str, Any]) -> None:
    """How a sink works may change, and its password."""
    check_in(sinks, **given)
    sinks.check_in(RUN, pickle.loads(pickle.dumps(options(**given))), is_active=lambda _: True)  # noqa: S301


def test_a_restarted_query_may_write_something_else(sinks: SinksOfRuns) -> None:
    """The state row says which batch it goes on with."""
    check_in(sinks, RunIds("query", "next run"), table="others")
    with pytest.raises(ConfigurationError):
        check_in(sinks, RunIds("query", "next run"))
    assert len(sinks) == 1


def test_queries_that_have_ended_are_forgotten(sinks: SinksOfRuns) -> None:
    for number in range(5):
        check_in(sinks, RunIds(f"query {number}", "run"), active=False)
    assert len(sinks) == 1


def test_of_two_threads_one_is_refused() -> None:
    """Both call for the first time at the same moment."""
    sinks, refused, ready = SinksOfRuns(), [], threading.Barrier(2)

    def call(table: str) -> None:
        ready.wait(10)
        try:
            check_in(sinks, table=table)
        except ConfigurationError as error:
            refused.append(error)

    threads = [threading.Thread(target=call, args=(table,)) for table in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(refused) == 1


def test_what_only_says_how_is_named_as_options_are() -> None:
    assert {item.name for item in fields(SinkOptions)} >= _HOW
    assert not _HOW & what_is_written(options()).keys()
