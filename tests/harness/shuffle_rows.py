"""The rows that an encode task hands to Spark's shuffle, each by itself: Spark shares them out one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_2pc_sink.sink.job.encode_task import run_encode_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from spark_2pc_sink.sink.job.task_plan import TaskIdentity, TaskPlan


def encoded_rows(batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity) -> Iterator[pa.RecordBatch]:
    """What `run_encode_task` yields, one row in each batch."""
    for batch in run_encode_task(batches, plan, identity):
        yield from (batch.slice(row, 1) for row in range(batch.num_rows))
