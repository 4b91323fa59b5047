"""The executors that have passed are not tried again for the same, until a batch has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.job import executor_check
from spark_2pc_sink.sink.job.executor_check import ExecutorVerdict, check_executors
from spark_2pc_sink.sink.job.tried_executors import Needs, TriedExecutors, tried_executors

if TYPE_CHECKING:
    from collections.abc import Iterator

TWO: Final = frozenset({"app-1 node-1:1", "app-1 node-2:1"})


def options(transactional_id: str, **changed: Any) -> SinkOptions:
    given: dict[str, Any] = {
        "transactional_id": transactional_id,
        "topic": transactional_id,
        "table": transactional_id,
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "database": "postgresql+psycopg2://127.0.0.1/x",
    }
    return SinkOptions.parse(**{**given, **changed})


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExecutorVerdict]]:
    """The verdicts to come, the last one again and again; each try takes one."""
    verdicts: list[ExecutorVerdict] = []

    def try_executors(*_: Any, **__: Any) -> ExecutorVerdict:
        return verdicts.pop()

    monkeypatch.setattr(executor_check, "try_executors", try_executors)
    tried_executors.forget()
    yield verdicts
    tried_executors.forget()


def check(options: SinkOptions, executors: frozenset[str] | None = TWO) -> None:
    check_executors(None, options, tasks=2, can_send=True, executors=executors)  # type: ignore[arg-type]


def test_another_query_does_not_try_them_again(tries: list[ExecutorVerdict]) -> None:
    tries += [ExecutorVerdict({}, {})]
    for name in ("orders", "payments"):
        check(options(name))
    assert tries == []


def test_after_a_failed_batch_they_are_tried_again(tries: list[ExecutorVerdict]) -> None:
    tries += [ExecutorVerdict({}, {})] * 2
    check(options("orders"))
    tried_executors.forget()
    check(options("orders"))
    assert tries == []


@pytest.mark.parametrize(
    ("changed", "executors"),
    [
        ({}, TWO | {"app-1 node-3:1"}),
        ({}, TWO - {"app-1 node-2:1"}),
        ({}, None),
        ({"kafka": {"bootstrap.servers": "127.0.0.1:2"}}, TWO),
        ({"database": "postgresql+psycopg2://127.0.0.2/x"}, TWO),
        ({"inline_copy_bytes_max": 1000}, TWO),
    ],
    ids=["one more", "one less", "nobody says which", "other brokers", "another database", "no way to the database"],
)
def test_others_and_for_something_else_they_are_tried(
    tries: list[ExecutorVerdict], changed: dict[str, Any], executors: frozenset[str] | None
) -> None:
    tries += [ExecutorVerdict({}, {})] * 2
    check(options("orders"))
    check(options("orders", **changed), executors)
    assert tries == []


def test_those_that_have_not_passed_are_tried_again(tries: list[ExecutorVerdict]) -> None:
    tries += [ExecutorVerdict({}, {}), ExecutorVerdict({"node-1": "node-1: broken"}, {})]
    with pytest.raises(ConfigurationError, match="node-1: broken"):
        check(options("orders"))
    check(options("orders"))
    assert tries == []


def test_where_nobody_says_which_none_have_passed() -> None:
    tried, needs = TriedExecutors(), Needs.of(options("orders"), must_stage=True)
    tried.note(needs, None)
    assert not tried.have_passed(needs, None)
