"""Shuffle batches on their way: small ones share an Arrow batch, and each comes out as it went in."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.record_encoder import EncodedBatch
from spark_2pc_sink.sink.contract.receipts import EncodeReceipt
from spark_2pc_sink.sink.tasks import shuffle_batches
from spark_2pc_sink.sink.tasks.shuffle_batches import RowIndex, ShuffleBatch, ShuffleRows, read_shuffle_batches

SMALL = [
    ShuffleBatch(0, 7, number, EncodedBatch(TopicPartition("t", number), b"x" * number, number + 1, number, None))
    for number in range(3)
]


def arrow_batches(*batches: ShuffleBatch) -> list[pa.RecordBatch]:
    rows = ShuffleRows()
    return [made for each in batches for made in rows.add(each.cells(1))] + [*rows.finish()]


def test_small_ones_share_an_arrow_batch_and_keep_their_order() -> None:
    """An Arrow batch has a price of its own, which a topic of 1 000 partitions would pay for each partition."""
    receipt = ShuffleBatch(0, 7, 3, EncodeReceipt(0, 7, rows=6))
    (made,) = arrow_batches(*SMALL, receipt)
    read = [*read_shuffle_batches(made)]
    assert [bytes(each.content.payload) for each in read[:3] if isinstance(each.content, EncodedBatch)] == [
        b"",
        b"x",
        b"xx",
    ]
    assert [each.number for each in read] == [0, 1, 2, 3]
    assert read[3] == receipt


def test_they_go_when_they_have_become_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle_batches, "ROWS_BYTES", 2)
    assert [made.num_rows for made in arrow_batches(*SMALL, SMALL[0])] == [3, 1]


def test_a_large_one_is_not_copied() -> None:
    payload = pa.py_buffer(bytes(shuffle_batches.ROWS_BYTES))
    (made,) = arrow_batches(ShuffleBatch(0, 7, 0, EncodedBatch(TopicPartition("t", 0), payload, 1, 0, "k")))
    assert made.column("payload").buffers()[2].address == payload.address


def test_an_index_beside_others_is_the_same_index() -> None:
    index = RowIndex(pa.array([b"a", b"b"], pa.binary()), pa.array([1, 2]))
    (made,) = arrow_batches(SMALL[1], ShuffleBatch(0, 7, 4, index))
    assert [each.content for each in read_shuffle_batches(made)][1] == index
