"""Texts for people: what an error says, of one of Java's without its stack; and counts."""

from __future__ import annotations

import pytest

from spark_2pc_sink.causes import in_words
from spark_2pc_sink.plural import counted

JAVA = """An error occurred while calling o514.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:\x20
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
\t... 36 more
"""


def test_a_stack_of_java_is_left_out() -> None:
    assert in_words(RuntimeError(JAVA)) == (
        "RuntimeError: An error occurred while calling o514.getResult.; : org.apache.spark.SparkException: Exception "
        "thrown in awaitResult:; Caused by: java.io.IOException: No space left on device"
    )


def test_any_other_text_stays_as_it_is() -> None:
    assert in_words(ValueError("one line\n  and another at noon")) == "ValueError: one line\n  and another at noon"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "row", "0 rows"), (1, "row", "1 row"), (2, "more partition", "2 more partitions"), (3, "batch", "3 batches")],
)
def test_a_noun_is_in_the_plural_unless_it_is_one(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text
