"""The way of rows from tasks to the driver, over PySpark's own accumulators."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.accumulators import Accumulator, _accumulatorRegistry

from spark_2pc_sink.sink.contract.row_transfer import Transfer
from spark_2pc_sink.sink.transfer.copy_channel import CopyChannel, TransferEnd

ATTEMPT = ("orders", 1, 1)
#: No accumulator of a running Spark has it.
ACCUMULATOR_ID = -939


class Context:
    """As much of a SparkContext as makes an accumulator."""

    def accumulator(self, value: Any, param: Any) -> Accumulator[Any]:
        return Accumulator(ACCUMULATOR_ID, value, param)


@pytest.fixture
def channel() -> Iterator[CopyChannel]:
    yield CopyChannel()
    _accumulatorRegistry.pop(ACCUMULATOR_ID, None)


def sent(encode_task: int, *, attempt: tuple[str, int, int] = ATTEMPT) -> Transfer:
    return Transfer(attempt, encode_task, task_attempt=7, stream=(b"rows",))


def from_a_task(channel: CopyChannel, *rows: Transfer) -> None:
    """What PySpark does: pickle the channel, add in another process, send its value, add it in the driver's."""
    pickled = pickle.dumps(channel.sender(Context()))  # type: ignore[arg-type]
    drivers = _accumulatorRegistry.pop(ACCUMULATOR_ID)
    in_task = pickle.loads(pickled)  # noqa: S301 - our own bytes
    for one in rows:
        in_task.add([one])
    update = pickle.dumps((in_task.aid, in_task._value))
    _accumulatorRegistry[ACCUMULATOR_ID] = drivers
    identifier, value = pickle.loads(update)  # noqa: S301 - our own bytes
    _accumulatorRegistry[identifier] += value


def test_rows_of_a_task_arrive_in_the_driver(channel: CopyChannel) -> None:
    from_a_task(channel, sent(0))
    from_a_task(channel, sent(1))
    channel.end(ATTEMPT)
    assert [channel.take(ATTEMPT, timeout_s=0) for _ in range(4)] == [sent(0), sent(1), TransferEnd(ATTEMPT), None]


def test_a_task_without_rows_sends_nothing(channel: CopyChannel) -> None:
    from_a_task(channel)
    assert channel.take(ATTEMPT, timeout_s=0) is None


def test_what_is_left_of_other_attempts_is_dropped(channel: CopyChannel) -> None:
    """A4: a task that outlives its attempt sends its rows too."""
    from_a_task(channel, sent(0, attempt=("orders", 1, 2)), sent(1, attempt=("others", 1, 1)))
    channel.end(("orders", 1, 2))
    from_a_task(channel, sent(0))
    assert channel.take(ATTEMPT, timeout_s=0) == sent(0)


def test_a_closed_channel_keeps_nothing(channel: CopyChannel) -> None:
    """Else the rows of the last attempt would stay in the memory of an application that starts its query again."""
    from_a_task(channel, sent(0))
    channel.close()
    from_a_task(channel, sent(1))
    assert channel.take(ATTEMPT, timeout_s=0) is None


def test_there_is_one_accumulator_for_all_batches(channel: CopyChannel) -> None:
    """PySpark keeps every accumulator for as long as the process lives."""
    assert channel.sender(Context()) is channel.sender(Context())  # type: ignore[arg-type]
