"""Each batch with rows gets one line, also when Spark reports it again or reports that it waits."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import create_engine

from orders_progress import _each_batch, _line, _settled
from spark_2pc_sink.testing import free_port


class Query:
    """A query that shows a list of reports at each look, and has ended after the last."""

    def __init__(self, *looks: list[tuple[int, int]]) -> None:
        self._looks: Iterator[list[tuple[int, int]]] = iter(looks)
        self._left = len(looks)

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's name
        assert timeout > 0
        self._left -= 1
        return self._left == 0

    @property
    def recentProgress(self) -> list[SimpleNamespace]:  # noqa: N802 - Spark's name
        return [SimpleNamespace(batchId=batch, numInputRows=rows) for batch, rows in next(self._looks)]


def batches(*looks: list[tuple[int, int]]) -> list[int]:
    return [progress.batchId for progress in _each_batch(cast("Any", Query(*looks)))]


def test_each_batch_once_and_the_last_ones_too() -> None:
    assert batches([], [(0, 5)], [(0, 5), (1, 5)], [(0, 5), (1, 5), (2, 5), (3, 5)]) == [0, 1, 2, 3]


def test_waiting_is_no_batch() -> None:
    assert batches([(4, 0)], [(4, 0), (4, 0), (4, 9)], [(4, 9), (5, 0)]) == [4]


def test_a_line_says_rows_time_rate_and_pair() -> None:
    progress = cast("Any", SimpleNamespace(batchId=3, durationMs={"triggerExecution": 2_000}))
    line = _line(progress, 20_000, "17:4", decided_before=False)
    assert line == "batch   3:   20,000 rows in  2.00 s,   10,000 rows/s, pair 17:4"
    assert "not written again" in _line(progress, 20_000, "17:4", decided_before=True)


def test_a_database_that_is_not_there_costs_a_line_and_not_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    """A session ended by an administrator, or a server that restarts: the sink survives it, and so does the job."""
    engine = create_engine(f"postgresql+psycopg2://nobody@127.0.0.1:{free_port()}/shop")
    try:
        assert list(_settled(engine, {"transactional_id": "orders", "batch_id": 7})) == []
    finally:
        engine.dispose()
    assert capsys.readouterr().out.startswith("batch   7: its history cannot be read now: ")
