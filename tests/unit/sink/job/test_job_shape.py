"""What of a batch decides how it is shared out."""

from __future__ import annotations

import pytest

from spark_2pc_sink.sink.job.job_shape import JobShape, shape_of
from spark_2pc_sink.sink.job.waves import WAVES


@pytest.mark.parametrize(
    ("at_once", "partitions", "chosen", "shape"),
    [
        # Keyed rows go to whoever owns their partitions; no more tasks send than there are partitions.
        (4, 12, True, JobShape(exchange=True, readers=4, senders=4)),
        (4, 3, True, JobShape(exchange=True, readers=4, senders=3)),
        (4, None, True, JobShape(exchange=True, readers=4, senders=4)),
        # Other rows stay where they are, in waves, each task with a partition of its own.
        (4, 100, False, JobShape(exchange=False, readers=4 * WAVES, senders=4 * WAVES)),
        (4, 6, False, JobShape(exchange=False, readers=6, senders=6)),
        (4, 4, False, JobShape(exchange=False, readers=4, senders=4)),
        (4, None, False, JobShape(exchange=False, readers=4 * WAVES, senders=4 * WAVES)),
        # With fewer partitions than tasks at a time, more tasks encode than send.
        (4, 3, False, JobShape(exchange=True, readers=4, senders=3)),
        # Where one task runs at a time, it does all.
        (1, 12, True, JobShape(exchange=False, readers=1, senders=1)),
        (1, 12, False, JobShape(exchange=False, readers=1, senders=1)),
    ],
)
def test_the_shape_of_a_job(at_once: int, partitions: int | None, chosen: bool, shape: JobShape) -> None:
    assert shape_of(at_once, partitions=partitions, chosen=chosen) == shape


@pytest.mark.parametrize("at_once", [1, 4])
def test_rows_that_are_compared_are_exchanged(at_once: int) -> None:
    """Also where one task does all: it is told of all rows before the first record."""
    shape = shape_of(at_once, partitions=12, chosen=True, compared=True)
    assert shape == JobShape(exchange=True, readers=at_once, senders=at_once)
