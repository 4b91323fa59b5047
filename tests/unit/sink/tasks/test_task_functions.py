"""What a task of Spark does for its worker process: it reads its input to the end, and spares the collector."""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_2pc_sink.sink.job import encode_task
from spark_2pc_sink.sink.job.encode_task import GarbageCollection, task_function
from spark_2pc_sink.sink.job.task_plan import TaskIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest

PRODUCER: Any = None


class Plan:
    """What a task is told."""

    transactional_id = "orders"


def test_a_task_that_gives_up_reads_its_input_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind its answer: Spark would end the worker process, and the next task would wait for a new one."""
    monkeypatch.setattr(encode_task, "_task_identity", lambda: TaskIdentity(0, 0))
    batch = pa.record_batch({"id": [1]})
    events: list[str] = []

    def given() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            events.append(f"read {number}")
            yield batch

    def give_up(batches: Iterable[pa.RecordBatch], plan: Plan, identity: TaskIdentity) -> Iterator[pa.RecordBatch]:
        del plan, identity
        yield next(iter(batches))

    events.extend("answer" for _ in task_function(give_up, Plan())(given()))
    assert events == ["read 0", "answer", "read 1", "read 2"]


def test_the_collector_is_spared_again_only_after_further_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(sys.modules)))
    collection = GarbageCollection()
    collection.spare()
    collection.spare()
    assert len(frozen) == 1
    monkeypatch.setitem(sys.modules, "imported_by_the_first_task", ModuleType("imported_by_the_first_task"))
    collection.spare()
    collection.spare()
    assert frozen == [frozen[0], frozen[0] + 1]
