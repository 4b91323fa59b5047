"""The garbage collection of a worker process."""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from spark_2pc_sink.sink.tasks.task_functions import GarbageCollection

if TYPE_CHECKING:
    import pytest


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
