"""Both sides for a test of a user's job: a topic and a database that are its own, in two ways of naming them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.testing import PostgresServer, ReferenceCoordinator
from spark_2pc_sink.testing.stack import DualWriteStack


@pytest.mark.kafka
@pytest.mark.postgres
def test_a_stack_is_the_test_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keywords and variables make the same sink, with which nothing is wrong. Nothing is left behind."""
    with ReferenceCoordinator() as kafka, PostgresServer() as postgres:
        stacks = [DualWriteStack(kafka, postgres, tmp_path) for _ in range(2)]
        assert stacks[0].topic != stacks[1].topic
        stack = stacks[0]
        stack.execute("CREATE TABLE orders (order_id bigint)", "INSERT INTO orders VALUES (1), (2)")
        assert stack.rows("SELECT count(*) FROM orders") == [(2,)]
        assert stack.records() == []
        for name, text in stack.environment.items():
            monkeypatch.setenv(name, text)
        sink = DualWriteSink.from_env(table="orders")
        assert sink._options == DualWriteSink(**stack.options, table="orders")._options
        assert sink.check().problems == ()
        with pytest.raises(AssertionError, match=stack.transactional_id):
            stack.assert_same()
        for each in stacks:
            each.close()
        assert postgres.query("SELECT count(*) FROM pg_database WHERE datname LIKE 'test-%'") == [(0,)]
