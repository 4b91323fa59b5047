"""The executors that have passed are not tried again for the same, until a batch has failed."""

from __future__ import annotations

from typing import Any, Final

import pytest

from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.job.tried_executors import Needs, TriedExecutors

TWO: Final = frozenset({"driver:1", "a:2", "b:2"})


def needs(transactional_id: str = "orders", application: str = "app-1", **changed: Any) -> Needs:
    given: dict[str, Any] = {
        "transactional_id": transactional_id,
        "topic": transactional_id,
        "table": transactional_id,
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "database": "postgresql+psycopg2://127.0.0.1/x",
    }
    must_stage = bool(changed.pop("must_stage", False))
    return Needs.of(application, SinkOptions.parse(**{**given, **changed}), must_stage=must_stage)


@pytest.fixture
def tried() -> TriedExecutors:
    made = TriedExecutors()
    made.note(needs(), TWO)
    return made


def test_for_another_query_they_have_passed(tried: TriedExecutors) -> None:
    assert tried.have_passed(needs("payments"), TWO)


def test_when_a_batch_has_failed_none_have_passed(tried: TriedExecutors) -> None:
    tried.forget()
    assert not tried.have_passed(needs(), TWO)


@pytest.mark.parametrize(
    "changed",
    [
        {"application": "app-2"},
        {"kafka": {"bootstrap.servers": "127.0.0.1:2"}},
        {"database": "postgresql+psycopg2://127.0.0.2/x"},
        {"must_stage": True},
    ],
    ids=["another application", "other brokers", "another database", "no other way for rows"],
)
def test_for_something_else_they_have_not_passed(tried: TriedExecutors, changed: dict[str, Any]) -> None:
    assert not tried.have_passed(needs(**changed), TWO)


@pytest.mark.parametrize("executors", [TWO | {"c:2"}, TWO - {"b:2"}, None], ids=["one more", "one less", "not told"])
def test_others_have_not_passed(tried: TriedExecutors, executors: frozenset[str] | None) -> None:
    assert not tried.have_passed(needs(), executors)


def test_where_nobody_tells_which_none_have_passed() -> None:
    tried = TriedExecutors()
    tried.note(needs(), None)
    assert not tried.have_passed(needs(), None)
