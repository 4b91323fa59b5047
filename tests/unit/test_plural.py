"""Counts in texts for people."""

from __future__ import annotations

import pytest

from spark_2pc_sink.plural import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "row", "0 rows"), (1, "row", "1 row"), (2, "more partition", "2 more partitions"), (3, "batch", "3 batches")],
)
def test_a_noun_is_in_the_plural_unless_it_is_one(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text
