"""Names of transactions."""

from __future__ import annotations

import pickle

import pytest

from spark_2pc_sink import PreparedTxnState
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import (
    EPOCH_MAX,
    NO_BATCHES,
    BatchRange,
    ProducerIdAndEpoch,
    TopicPartition,
    check_transactional_id,
)


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
        *("42", "42:", ":7", "a:b", "-1:7", "42:7:1", "42:40000", " 42:7", "٤٢:7"),
        *("9223372036854775808:1", "1" * 5000 + ":1"),
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
