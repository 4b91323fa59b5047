"""What all rooms use: errors, what they say and that they survive the way to the driver; ids; deadlines."""

from __future__ import annotations

import pickle
import re
from dataclasses import fields
from pathlib import Path

import pytest

from spark_2pc_sink import PreparedTxnState, errors
from spark_2pc_sink.causes import in_words
from spark_2pc_sink.choices import Facts
from spark_2pc_sink.clock import QUIET_S, Deadline
from spark_2pc_sink.errors import ConfigurationError, DualWriteError, HaltCause
from spark_2pc_sink.ids import (
    EPOCH_MAX,
    NO_BATCHES,
    BatchRange,
    ProducerIdAndEpoch,
    TopicPartition,
    check_transactional_id,
)
from spark_2pc_sink.plural import counted
from tests.unit.fakes.clock import FakeClock


def all_errors() -> list[type[DualWriteError]]:
    found, waiting = [], [DualWriteError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return [kind for kind in found if kind.__name__ in errors.__all__]


def made(kind: type[DualWriteError]) -> DualWriteError:
    samples = {
        "int": 3,
        "bool": True,
        "str": "text",
        "str | None": None,
        "object": "value",
        "HaltCause": HaltCause.GAP,
        "Facts": Facts(batch=3),
        "Any": None,
        "tuple[str, ...]": ("one", "two"),
        "frozenset[bytes]": frozenset({b"one"}),
    }
    return kind(**{field.name: samples[str(field.type)] for field in fields(kind)})


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_can_be_pickled_and_says_a_sentence(kind: type[DualWriteError]) -> None:
    """Errors carry fields and build their sentence from them."""
    error = made(kind)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is kind
    assert str(again) == str(error)
    assert all(getattr(again, field.name) == getattr(error, field.name) for field in fields(kind))


def test_the_manual_lists_every_cause_of_a_halt() -> None:
    page = (Path(__file__).parents[2] / "docs" / "after-a-crash.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines()]
    listed = [cause for row in rows if len(row) == 4 for cause in re.findall("`(.*?)`", row[1])]
    assert set(listed) == {"cause", *HaltCause}


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if "Error" in line and ("├" in line or "└" in line)]
    drawn: dict[str, str] = {}
    path = ["DualWriteError"]
    for line in lines:
        name = next(word for word in line.split() if word.endswith("Error"))
        depth = (line.index(name) - 4) // 4
        path = [*path[:depth], name]
        drawn[name] = path[-2]
    bases = {kind.__name__: kind.__base__ for kind in all_errors() if kind is not DualWriteError}
    real = {name: base.__name__ for name, base in bases.items() if base is not None}
    assert drawn == real


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


def test_the_text_of_a_prepared_state_is_that_of_java() -> None:
    """KIP-939: producerId:epoch, and '' for none."""
    assert str(PreparedTxnState("42:7")) == "42:7"
    assert str(PreparedTxnState()) == ""
    assert PreparedTxnState("42:7").producer == ProducerIdAndEpoch(42, 7)
    assert PreparedTxnState.of(ProducerIdAndEpoch(42, 7)) == PreparedTxnState("42:7")
    assert PreparedTxnState("42:7").has_transaction
    assert not PreparedTxnState().has_transaction
    assert PreparedTxnState(None) == PreparedTxnState("") == PreparedTxnState()
    assert PreparedTxnState("01:2") == PreparedTxnState("1:002")
    assert str(PreparedTxnState("01:2")) == "1:2"
    assert PreparedTxnState("9223372036854775807:32767").producer == ProducerIdAndEpoch(2**63 - 1, 32767)
    assert pickle.loads(pickle.dumps(PreparedTxnState("42:7"))) == PreparedTxnState("42:7")  # noqa: S301


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "42:",
        ":7",
        "a:b",
        "-1:7",
        "42:7:1",
        "42:40000",
        " 42:7",
        "٤٢:7",
        "9223372036854775808:1",
        "1" * 5000 + ":1",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """A foreign value must never be taken for a pair."""
    with pytest.raises(ConfigurationError):
        PreparedTxnState(text)


def test_a_pair_knows_when_no_transaction_may_begin_with_it() -> None:
    """B10: at 32766 EndTxn would rotate the producer id."""
    assert not ProducerIdAndEpoch(1, EPOCH_MAX - 1).exhausted
    assert ProducerIdAndEpoch(1, EPOCH_MAX).exhausted
    assert ProducerIdAndEpoch(1, EPOCH_MAX).bumped() == ProducerIdAndEpoch(1, 32_767)
    for pair in ((-1, 0), (0, -1), (0, 32_768)):
        with pytest.raises(ConfigurationError):
            ProducerIdAndEpoch(*pair)


@pytest.mark.parametrize("text", ["", "x" * 256, "a\nb", "a\x00"])
def test_transactional_ids_that_no_tool_could_show_are_refused(text: str) -> None:
    """B21: one short stable name per sink."""
    with pytest.raises(ConfigurationError, match="transactional_id"):
        check_transactional_id(text)


def test_good_names_pass() -> None:
    assert check_transactional_id("orders: Łódź") == "orders: Łódź"
    assert str(TopicPartition("a-b", 3)) == "a-b-3"
    assert TopicPartition.parse("a-b-3") == TopicPartition("a-b", 3)


@pytest.mark.parametrize(
    ("text", "first", "last", "count"), [("41..43", 41, 43, 3), ("41", 41, 41, 1), (" 0..0 ", 0, 0, 1)]
)
def test_batches_are_named_by_their_ids(text: str, first: int, last: int, count: int) -> None:
    """C5: what a person names as lost."""
    named = BatchRange.parse(text)
    assert (named.first, named.last, len(named)) == (first, last, count)
    assert BatchRange.parse(str(named)) == named
    assert BatchRange.parse(named) is named


def test_no_batch_has_a_name_too() -> None:
    assert BatchRange.parse("none") == NO_BATCHES
    assert (len(NO_BATCHES), str(NO_BATCHES)) == (0, "none")


@pytest.mark.parametrize(
    "given", ["", "43..41", f"0..{2**63 - 1}", "41..", "..41", "-1", "a..b", "41...43", 41, None, True]
)
def test_what_names_no_batches_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError):
        BatchRange.parse(given)


def test_pauses_double_and_never_go_beyond_the_deadline() -> None:
    clock = FakeClock()
    deadline = Deadline(clock, 1_000, backoff_ms=100, backoff_ms_max=300)
    times = []
    while not deadline.passed:
        deadline.pause()
        times.append(round(clock.now, 3))
    assert times == [0.1, 0.3, 0.6, 0.9, 1.0]
    assert deadline.remaining_s == 0


def test_a_long_wait_is_said_again_and_again() -> None:
    """An operation that waits has a line in the log before its time-out, and one every ten seconds."""
    clock = FakeClock()
    deadline = Deadline(clock, 60_000)
    assert not deadline.is_due_for_log()
    clock.now += QUIET_S
    assert [deadline.is_due_for_log() for _ in range(3)] == [True, False, False]
    clock.now += 10
    assert [deadline.is_due_for_log() for _ in range(2)] == [True, False]
