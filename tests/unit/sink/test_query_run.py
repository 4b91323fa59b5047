"""The start of a run: executors are tried while the driver asks both sides, and a claim waits for both."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink import query_run
from spark_2pc_sink.sink.query_run import QueryRun

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 30
BROKEN = ConfigurationError(option="executors", value="node-1", rule="node-1: broken", remedy="mend it")
MISSING = ConfigurationError(option="table", value="orders", rule="it exists", remedy="create it")


@pytest.fixture
def tried_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], Any]:
    """Makes the context in which executors are tried by a function."""

    def made(check: Callable[[], None]) -> Any:
        monkeypatch.setattr(query_run, "check_executors", lambda *_, **__: check())
        run: Any = QueryRun.__new__(QueryRun)
        run._channel, run._options = None, SimpleNamespace(transactional_id="orders")
        run._facts = SimpleNamespace(
            tasks_at_once=lambda: 2,
            executors=frozenset,
            sender=lambda _: None,
            described=lambda _: nullcontext(),
            inheriting=lambda function: function,
        )
        return run._executors_tried(SimpleNamespace(conf={"spark.master": "spark://node-1:7077"}))

    return made


def test_neither_waits_for_the_other(tried_by: Callable[[Callable[[], None]], Any]) -> None:
    both = threading.Barrier(2)

    def check() -> None:
        both.wait(DEADLINE_S)

    with tried_by(check):
        both.wait(DEADLINE_S)
    assert not both.broken


def test_a_broken_executor_ends_the_start(tried_by: Callable[[Callable[[], None]], Any]) -> None:
    def check() -> None:
        raise BROKEN

    with pytest.raises(ConfigurationError, match="node-1: broken"), tried_by(check):
        pass


def test_what_the_driver_finds_comes_first_and_no_job_is_left_behind(
    tried_by: Callable[[Callable[[], None]], Any],
) -> None:
    ended = threading.Event()

    def check() -> None:
        ended.set()
        raise BROKEN

    with pytest.raises(ConfigurationError, match="orders"), tried_by(check):
        raise MISSING
    assert ended.is_set()


def test_with_a_local_master_there_are_none_to_try() -> None:
    run: Any = QueryRun.__new__(QueryRun)
    with run._executors_tried(SimpleNamespace(conf={"spark.master": "local[2]"})):
        pass
