"""The key of a record that is made of a row."""

from __future__ import annotations

import pytest

from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.verification.record_key import RecordKey, record_key

COLUMNS = ("order_id", "a b", "amount")


def key_of(expression: str | None, columns: tuple[str, ...] = COLUMNS) -> RecordKey:
    return record_key(SinkLayout(table="t", key=expression), columns=columns, row_key=("order_id",))


@pytest.mark.parametrize(
    "expression", ["order_id", "CAST(order_id AS STRING)", "cast( `order_id` as string )", "`order_id`"]
)
def test_a_key_that_is_a_column_is_its_text(expression: str) -> None:
    assert key_of(expression).column == "order_id"
    assert not key_of(expression).unknown


def test_a_column_with_an_odd_name() -> None:
    assert key_of("`a b`").column == "a b"


def test_a_sink_without_an_expression_sends_none_or_the_column_key() -> None:
    """As Spark's own Kafka sink."""
    assert (key_of(None).column, key_of(None).unknown) == (None, "")
    assert key_of(None, (*COLUMNS, "key")).column == "key"


@pytest.mark.parametrize(
    "expression", ["concat(order_id, amount)", "customer", "CAST(order_id AS BINARY)", "upper(order_id)"]
)
def test_what_only_spark_can_make_is_not_guessed(expression: str) -> None:
    assert expression in key_of(expression).unknown


@pytest.mark.parametrize(
    ("row_key", "column", "known"),
    [((), None, True), (("order_id",), "order_id", True), (("order_id", "amount"), None, False)],
)
def test_without_a_note_of_the_sink_the_columns_that_name_a_row_tell(
    row_key: tuple[str, ...], column: str | None, known: bool
) -> None:
    """And a person is told to make sure of it."""
    found = record_key(None, columns=COLUMNS, row_key=row_key)
    assert (found.column, not found.unknown) == (column, known)
    assert ("Make sure" in found.note) is known
