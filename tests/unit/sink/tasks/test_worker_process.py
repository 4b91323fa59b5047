"""What a worker process is spared."""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from spark_2pc_sink.sink.tasks.worker_process import Collector

if TYPE_CHECKING:
    import pytest


def test_the_collector_is_spared_again_only_after_further_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(sys.modules)))
    collector = Collector()
    collector.spare()
    collector.spare()
    assert len(frozen) == 1
    monkeypatch.setitem(sys.modules, "imported_by_the_first_task", ModuleType("imported_by_the_first_task"))
    collector.spare()
    collector.spare()
    assert frozen == [frozen[0], frozen[0] + 1]
