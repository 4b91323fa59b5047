"""The scope of a verification, of the batches that a history knows."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.verification.api import Scope

KNOWN = [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("scope", "batches", "text"),
    [
        (Scope(), {3, 4, 5, 6}, "all"),
        (Scope(since=5), {5, 6}, "since batch 5"),
        (Scope(last=2), {5, 6}, "the last 2 batches"),
        (Scope(last=9), {3, 4, 5, 6}, "the last 9 batches"),
        (Scope(batch=4), {4}, "batch 4"),
    ],
)
def test_a_scope_names_batches(scope: Scope, batches: set[int], text: str) -> None:
    assert scope.of(KNOWN) == batches
    assert str(scope) == text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"since": 3, "batch": 4}, "cannot be combined with batch"),
        ({"last": 0}, "at least 1"),
        ({"since": -1}, "at least 0"),
        ({"batch": True}, "whole number"),
    ],
)
def test_a_scope_that_is_none_is_refused(given: dict[str, int], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Scope(**given)


@pytest.mark.parametrize(
    ("scope", "known", "told"),
    [
        (Scope(since=2), KNOWN, "has batches 3 to 6"),
        (Scope(batch=7), KNOWN, "has batches 3 to 6"),
        (Scope(last=1), [], "is empty"),
    ],
)
def test_a_batch_that_the_history_does_not_know_is_refused(scope: Scope, known: list[int], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        scope.of(known)
    assert Scope().of(known) == {*known}
