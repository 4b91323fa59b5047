"""Which part of a record has the value of a column, by the sink's expressions."""

from __future__ import annotations

import pytest

from spark_2pc_sink.verification.expressions import value_fields


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
