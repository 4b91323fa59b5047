"""The job is killed at each step of a batch, and started again: each order is on both sides once."""

import json
from pathlib import Path

import pytest

from spark_2pc_sink.testing import CrashAt, DualWriteStack, Step

ORDERS = "\n".join(json.dumps({"order_id": n, "item": "tea"}) for n in range(100))


@pytest.mark.parametrize("step", Step.__members__)
def test_no_order_is_lost_or_twice(
    dual_write_stack: DualWriteStack, crash_at: CrashAt, tmp_path: Path, step: str
) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders/1.json").write_text(ORDERS)
    dual_write_stack.execute("CREATE TABLE orders (order_id bigint, item text)")
    crash_at(step, "job.py", tmp_path)
    dual_write_stack.run_job("job.py", tmp_path)
    assert dual_write_stack.rows("SELECT count(*), count(DISTINCT order_id) FROM orders") == [(100, 100)]
    dual_write_stack.assert_same()
