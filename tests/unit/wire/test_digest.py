"""The digest of a batch: the same for the same records however they are sent, different for any other records."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spark_2pc_sink.wire.record_batch import batch_digest, combine_digests, format_digest
from tests.harness.record_batches import section_of
from tests.unit.wire.rows import LAYOUTS, Row, columns, rows


def digest(some: list[Row], *, topic: str = "orders", layout: str = "plain") -> int:
    return batch_digest(topic, section_of(*columns(some, layout=layout)))


@given(rows(), st.integers(0, 2**32), st.sampled_from(sorted(LAYOUTS)))
def test_order_and_layout_do_not_matter(some: list[Row], seed: int, layout: str) -> None:
    shuffled = random.Random(seed).sample(some, len(some))
    assert digest(shuffled, layout=layout) == digest(some)


@given(rows(), st.data())
def test_digests_of_parts_add_up_to_that_of_the_whole(some: list[Row], data: st.DataObject) -> None:
    """A6: batches cut elsewhere, tasks that share rows otherwise: offset deltas and lengths of records change."""
    first = data.draw(st.integers(0, len(some)))
    second = data.draw(st.integers(first, len(some)))
    parts = [digest(part) for part in (some[:first], some[first:second], some[second:])]
    assert combine_digests(*parts) == digest(some)


@given(rows(max_size=5), rows(max_size=5))
def test_other_records_have_another_digest(some: list[Row], others: list[Row]) -> None:
    assume(sorted(map(repr, some)) != sorted(map(repr, others)))
    assert digest(some) != digest(others)


_BASE: Row = (b"ab", b"cd", (("h", b"x"),))


@pytest.mark.parametrize(
    "other",
    [
        (b"abc", b"d", (("h", b"x"),)),
        (b"cd", b"ab", (("h", b"x"),)),
        (None, b"cd", (("h", b"x"),)),
        (b"ab", None, (("h", b"x"),)),
        (b"ab", b"cd", (("h", None),)),
        (b"ab", b"cd", (("", b"hx"),)),
        (b"ab", b"cd", (("h", b"x"), ("h", b"x"))),
        (b"ab", b"cdh", (("", b"x"),)),
    ],
    ids=repr,
)
def test_bytes_that_move_and_values_that_become_null_are_seen(other: Row) -> None:
    assert digest([other]) != digest([_BASE])


def test_a_record_that_comes_twice_is_seen() -> None:
    """An exclusive or would cancel out: two copies would look like none."""
    assert len({digest([]), digest([_BASE]), digest([_BASE] * 2), digest([_BASE] * 3)}) == 4


def test_the_topic_counts() -> None:
    assert digest([_BASE], topic="orders") != digest([_BASE], topic="orders2")


def test_the_number_is_fixed() -> None:
    """State rows outlive releases: what this says must never change."""
    assert format_digest(digest([_BASE, (None, None, ())])) == "3e00bc1a7daae62920e2d14a708b83ce"
