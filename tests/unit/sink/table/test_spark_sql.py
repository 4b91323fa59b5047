"""Names and texts as parts of Spark SQL."""

from __future__ import annotations

from spark_2pc_sink.sink.spark_sql import literal, quoted


def test_nothing_in_a_name_or_a_text_ends_it() -> None:
    """What a user names a column or a topic never becomes SQL."""
    assert quoted("order id") == "`order id`"
    assert quoted("a`b") == "`a``b`"
    assert literal("it's") == r"'it\'s'"
    assert literal("a\\b") == r"'a\\b'"
