"""Tombstones: whose row a record without a value means, as far as its key tells."""

from __future__ import annotations

import json

import pytest

from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.verification.staging import NotRowsError, RecordTexts
from spark_2pc_sink.verification.tombstones import MARK, Tombstones, UnknownKeyError


def layout(key: str | None, columns: dict[str, str] | None = None) -> SinkLayout:
    return SinkLayout(table="orders", key=key, columns=columns, mode="upsert", upsert_keys=("id",))


@pytest.mark.parametrize(
    ("noted", "known"),
    [
        (None, True),
        (layout(None), True),
        (layout("id"), True),
        (layout("CAST(id AS STRING)"), True),
        (layout("`id`"), True),
        (layout("coalesce(a.id, b.id)", {"id": "coalesce(a.id, b.id)"}), True),
        (layout("concat('o-', id)"), False),
        (layout("name"), False),
    ],
)
def test_a_key_that_is_the_text_of_the_column(noted: SinkLayout | None, known: bool) -> None:
    tombstones = Tombstones.of(noted, ["id"])
    assert tombstones.column == ("id" if known else None)
    if known:
        assert json.loads(tombstones.text(b"7")) == {"id": "7", MARK: True}
        return
    with pytest.raises(UnknownKeyError, match=r"b'7' of a tombstone does not tell id; pass record_columns"):
        tombstones.text(b"7")


def test_a_key_that_is_an_object_of_all_columns() -> None:
    tombstones = Tombstones.of(None, ["a", "b"])
    assert json.loads(tombstones.text(b'{"b": "x", "a": 1.50, "c": 0}')) == {"a": "1.50", "b": "x", MARK: True}
    for key in (b'{"a": 1}', b"1", None):
        with pytest.raises(UnknownKeyError):
            tombstones.text(key)


def test_texts_of_records() -> None:
    """Without upserts a record without a value is a record as any, and no row."""
    assert RecordTexts(()).without_value(b"7") == b"null"
    keyed = RecordTexts((), tombstones=Tombstones(("id",), "id"))
    assert json.loads(keyed.without_value(b"7")) == {"id": "7", MARK: True}
    with pytest.raises(NotRowsError, match="does not tell id"):
        RecordTexts((), tombstones=Tombstones(("id",))).without_value(b"7")
