"""The user's expressions for the columns of a record, taken apart."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.verification.record_columns import RecordColumn, parse_record_columns


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (None, []),
        ("id = key::bigint", [("id", "key::bigint")]),
        (
            "order_id = (value->>'id')::bigint, total = round((value->>'a')::numeric, 2)",
            [("order_id", "(value->>'id')::bigint"), ("total", "round((value->>'a')::numeric, 2)")],
        ),
        (
            "\"Order, no\" = value->>'a,b', B = (ARRAY[1, 2])[1]",
            [("Order, no", "value->>'a,b'"), ("b", "(ARRAY[1, 2])[1]")],
        ),
        ("a = value->>'it''s, so', c = 1", [("a", "value->>'it''s, so'"), ("c", "1")]),
        ("paid = (value->>'state') = 'paid'", [("paid", "(value->>'state') = 'paid'")]),
    ],
)
def test_expressions_stand_between_commas(text: str | None, columns: list[tuple[str, str]]) -> None:
    assert parse_record_columns(text) == tuple(RecordColumn(name, expression) for name, expression in columns)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("id", "column = SQL expression"),
        ("id =", "column = SQL expression"),
        ("id == 3", "column = SQL expression"),
        ("id = 1,", "column = SQL expression"),
        ("id = (1", "is closed"),
        ("id = 1)", "is closed"),
        ("id = 'x", "is closed"),
        ("id = 1, ID = 2", "occurs once"),
    ],
)
def test_what_is_no_list_of_expressions_is_refused(text: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        parse_record_columns(text)
