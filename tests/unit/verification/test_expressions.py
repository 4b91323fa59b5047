"""Which part of a record has the value of a column, and which key a record of a row has, by the sink's expressions."""

from __future__ import annotations

import pytest

from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.verification.expressions import RecordKey, record_key, value_fields


@pytest.mark.parametrize(
    ("value", "expression", "path"),
    [
        (None, "id", ("id",)),
        (None, "line.sku", ("line", "sku")),
        (None, "upper(name)", ()),
        ("to_json(struct(*))", "id", ("id",)),
        ("to_json(struct(id, line.*))", "line.n", ("n",)),
        ("to_json(struct(id, line))", "line.n", ("line", "n")),
        ("to_json(struct(upper(name) AS name, id AS `no`))", "id", ("no",)),
        ("to_json(struct(upper(name) AS name))", "name", ()),
        ("to_json(named_struct('no', id, 'x, y', concat(a, ',)')))", "concat(a, ',)')", ("x, y",)),
        ("struct(id, line.sku)", "line . `sku`", ("sku",)),
    ],
)
def test_a_field_has_the_value_of_the_same_expression(
    value: str | None, expression: str, path: tuple[str, ...]
) -> None:
    fields = value_fields(value)
    assert fields is not None
    assert fields.path_of(expression) == path


@pytest.mark.parametrize(
    "value",
    [
        *("name", "to_json(m)", "f(struct(a))", "struct(a) || struct(b)", "to_json(struct(a)) || (b)", "struct()"),
        "named_struct(n, id)",
    ],
)
def test_other_values_do_not_show_what_they_are_made_of(value: str) -> None:
    assert value_fields(value) is None


# --- the key of a record that is made of a row ---------------------------------------------------------------------

COLUMNS = ("order_id", "a b", "amount")


def key_of(expression: str | None, columns: tuple[str, ...] = COLUMNS) -> RecordKey:
    return record_key(SinkLayout(table="t", key=expression), columns=columns, row_key=("order_id",))


@pytest.mark.parametrize(
    ("expression", "column"),
    [
        *((each, "order_id") for each in ("order_id", "CAST(order_id AS STRING)", "cast( `order_id` as string )")),
        ("`a b`", "a b"),
        (None, None),
    ],
)
def test_a_key_is_the_text_of_a_column_or_none(expression: str | None, column: str | None) -> None:
    assert (key_of(expression).column, key_of(expression).unknown) == (column, "")


@pytest.mark.parametrize("expression", ["customer", "CAST(order_id AS BINARY)", "upper(order_id)"])
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
