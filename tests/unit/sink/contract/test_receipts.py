"""What the driver believes of what tasks returned."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_2pc_sink.errors import BatchRetryError, UnstorableValueError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.partition_queue import PartitionReceipt
from spark_2pc_sink.sink.contract.receipts import (
    RESULT_SCHEMA,
    EncodeReceipt,
    TaskReceipt,
    TaskResults,
    read_results,
)

DATA_ERROR = UnstorableValueError(column="c", row_key="key=1", value="x", rule="r")


def receipt(task: int, *, partitions: tuple[int, ...] = (), rows: int = 2, digest: int = 1) -> TaskReceipt:
    written = {TopicPartition("t", partition): PartitionReceipt(2, 10, 11) for partition in partitions}
    own = EncodeReceipt(encode_task=task, rows=rows, digest=digest)
    return TaskReceipt(task=task, encoded=(own,), digest=digest, written=written, record_bytes=100 * len(partitions))


def sent(task: int, *encoded: EncodeReceipt, taken: dict[tuple[int, int], int], digest: int = 0) -> pa.RecordBatch:
    """The receipt of a task that sends what encode tasks made."""
    return TaskReceipt(task=task, encoded=encoded, taken=taken, digest=digest).to_result()


def read(*results: pa.RecordBatch, tasks_expected: int | None = None) -> TaskResults:
    return read_results(pa.Table.from_batches(results, RESULT_SCHEMA), tasks_expected=tasks_expected)


def test_receipts_are_added_up_in_the_order_of_tasks() -> None:
    """B22: records are those that were acknowledged to the tasks."""
    results = read(
        receipt(1, partitions=(2, 3), digest=2**128 - 1).to_result(),
        receipt(0, partitions=(0, 1), digest=3).to_result(),
        tasks_expected=2,
    )
    assert [one.task for one in results.receipts] == [0, 1]
    assert (results.rows, results.records, results.record_bytes, results.digest) == (4, 8, 400, 2)
    assert results.offsets == {TopicPartition("t", partition): (10, 11) for partition in range(4)}


@pytest.mark.parametrize("came", [(0,), (1,), (0, 2), (1, 2)])
def test_a_missing_receipt_is_refused(came: tuple[int, ...]) -> None:
    """A3: success that did not reach the driver is no success."""
    with pytest.raises(BatchRetryError, match="3 tasks were expected"):
        read(*(receipt(task).to_result() for task in came), tasks_expected=3)


def test_fewer_tasks_than_offered_are_fine_when_their_ids_have_no_gap() -> None:
    """Without a shuffle Spark may use fewer tasks than it was offered."""
    assert len(read(receipt(0).to_result(), receipt(1).to_result()).receipts) == 2
    with pytest.raises(BatchRetryError):
        read(receipt(0).to_result(), receipt(2).to_result())


def test_no_receipt_at_all_is_an_empty_batch() -> None:
    """A16: Spark had no partition to run a task on."""
    results = read(tasks_expected=4)
    assert (results.rows, results.records, results.offsets) == (0, 0, {})


def test_two_receipts_of_one_task_are_refused() -> None:
    """A4: two attempts of one task both came through."""
    with pytest.raises(BatchRetryError, match="two receipts"):
        read(receipt(0).to_result(), receipt(0).to_result())


def test_a_partition_of_two_tasks_is_refused() -> None:
    """B30: their sequence numbers were mixed."""
    with pytest.raises(BatchRetryError, match="t-1: sequences were mixed"):
        read(receipt(0, partitions=(0, 1)).to_result(), receipt(1, partitions=(1,)).to_result())


def test_the_error_of_a_row_comes_before_the_error_of_an_attempt() -> None:
    """A row that no retry can mend says more than a task that met its consequences."""
    refused = TaskReceipt(task=0, error=BatchRetryError(reason="ran again")).to_result()
    spoilt = TaskReceipt(task=1, error=DATA_ERROR).to_result()
    with pytest.raises(UnstorableValueError) as raised:
        read(refused, spoilt, tasks_expected=2)
    assert str(raised.value) == str(DATA_ERROR)


def test_shuffle_batches_of_one_attempt_of_each_encode_task_add_up() -> None:
    """A send task takes shuffle batches of many encode tasks, and gets the receipts of some."""
    results = read(
        sent(
            0,
            EncodeReceipt(0, task_attempt=7, rows=5, digest=3, shuffle_batches=4),
            taken={(0, 7): 3, (1, 8): 1},
            digest=1,
        ),
        sent(
            1,
            EncodeReceipt(1, task_attempt=8, rows=6, digest=4, shuffle_batches=2),
            taken={(0, 7): 1, (1, 8): 1},
            digest=6,
        ),
        tasks_expected=2,
    )
    assert (results.rows, results.digest) == (11, 7)
    assert [receipt.encode_task for receipt in results.encoded] == [0, 1]


@pytest.mark.parametrize(
    "taken",
    [
        {(0, 7): 3},
        {(0, 7): 5},
        {(0, 7): 2, (0, 9): 2},
        {(0, 9): 4},
        {(0, 7): 4, (1, 8): 1},
        {},
    ],
    ids=[
        "one missing",
        "one twice",
        "of two attempts",
        "of another attempt",
        "of an encode task without a receipt",
        "none",
    ],
)
def test_shuffle_batches_that_are_not_of_one_attempt_of_each_encode_task_are_refused(
    taken: dict[tuple[int, int], int],
) -> None:
    """A4, B22: Spark ran an encode task again, and some sent what was made first, some what was made then."""
    with pytest.raises(BatchRetryError, match="an encode task ran again"):
        read(sent(0, EncodeReceipt(0, task_attempt=7, shuffle_batches=4), taken=taken), tasks_expected=1)


@pytest.mark.parametrize("encoded", [(0, 0), (0, 2), (1,)])
def test_an_encode_task_has_one_receipt(encoded: tuple[int, ...]) -> None:
    """A3: rows that nobody receipts for, or two do, are no batch."""
    receipts = [
        EncodeReceipt(encode_task, task_attempt=task_attempt) for task_attempt, encode_task in enumerate(encoded)
    ]
    with pytest.raises(BatchRetryError, match="each has one receipt"):
        read(sent(0, *receipts, taken={}), tasks_expected=1)


def test_records_that_were_left_out_are_part_of_the_rows_and_not_of_the_batch() -> None:
    """C9: rows read are records sent and records left out, by their digests."""
    encode_task = EncodeReceipt(0, task_attempt=7, rows=5, digest=2**128 - 1, shuffle_batches=1)
    account = TaskReceipt(0, (encode_task,), taken={(0, 7): 1}, digest=2**128 - 4, left_out={0: 2}, left_out_digest=3)
    results = read(account.to_result(), tasks_expected=1)
    assert (results.rows, results.left_out[0], results.digest) == (5, 2, 2**128 - 4)
    with pytest.raises(BatchRetryError, match="digest"):
        read(replace(account, left_out_digest=2).to_result(), tasks_expected=1)


def test_a_digest_that_is_not_that_of_the_rows_is_refused() -> None:
    """B22: what was sent is what was read."""
    with pytest.raises(BatchRetryError, match="digest"):
        read(
            sent(0, EncodeReceipt(0, task_attempt=7, digest=3, shuffle_batches=1), taken={(0, 7): 1}, digest=4),
            tasks_expected=1,
        )


def test_encode_tasks_that_saw_different_numbers_of_partitions_are_refused() -> None:
    """Rows with one key would go to two partitions, in no order."""
    one, other = ({"t": 4}, {"t": 5})
    with pytest.raises(BatchRetryError, match="'t' got more partitions"):
        read(
            sent(0, EncodeReceipt(0, partition_counts=one), EncodeReceipt(1, partition_counts=other), taken={}),
            tasks_expected=1,
        )


def test_the_ids_of_topics_are_those_that_have_records_of_the_batch() -> None:
    """B18: what the state row remembers; a topic without an id, and one without records, is left out."""
    ids = {"t": "id-of-t", "other": "unused", "old": ""}
    written = {TopicPartition(topic, 0): PartitionReceipt(1, 5, 5) for topic in ("t", "old")}
    one = TaskReceipt(task=0, encoded=(EncodeReceipt(0, topic_ids=ids),), written=written)
    assert read(one.to_result(), tasks_expected=1).topic_ids == {"t": "id-of-t"}


def test_a_topic_that_was_made_anew_during_the_batch_is_refused() -> None:
    """B18: its records would be in two topics."""
    one, other = ({"t": "old"}, {"t": "new"})
    with pytest.raises(BatchRetryError, match="'t' was deleted and made anew"):
        read(
            sent(0, EncodeReceipt(0, topic_ids=one), EncodeReceipt(1, topic_ids=other), taken={}),
            tasks_expected=1,
        )
