"""What a block may do: who sends, when, and that nobody has two."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.service.transaction import OpenBlocks, ServiceTransaction


def test_records_are_sent_while_the_block_is_open() -> None:
    transaction = ServiceTransaction()
    transaction.send("orders", "k", "v")
    for phase in ("committing", "ended"):
        transaction.phase = phase
        with pytest.raises(LocalProtocolError, match=f"in state {phase}"):
            transaction.send("orders", "k", "v")
    assert len(transaction.records) == 1


def test_another_thread_or_task_is_refused() -> None:
    transaction = ServiceTransaction()
    with ThreadPoolExecutor(1) as threads, pytest.raises(LocalProtocolError, match="another thread or task"):
        threads.submit(transaction.send, "orders", "k", "v").result()

    async def in_a_task() -> None:
        transaction.send("orders", "k", "v")

    with pytest.raises(LocalProtocolError, match="another thread or task"):
        asyncio.run(in_a_task())
    assert transaction.records == ()


def test_nobody_has_two_blocks_open() -> None:
    blocks = OpenBlocks()
    block = blocks.enter()
    with pytest.raises(LocalProtocolError, match="cannot be nested"):
        blocks.enter()
    with ThreadPoolExecutor(1) as threads:
        blocks.leave(threads.submit(blocks.enter).result())
    blocks.leave(block)
    again = blocks.enter()
    blocks.leave(block)
    with pytest.raises(LocalProtocolError, match="cannot be nested"):
        blocks.enter()
    del again


def test_a_block_that_could_not_leave_is_open_no_more() -> None:
    """A handler of a signal, as that of a soft time limit, may raise where nothing has been tried yet."""
    blocks = OpenBlocks()

    def interrupted() -> None:
        block = blocks.enter()
        raise RuntimeError(block.runner)

    with pytest.raises(RuntimeError):
        interrupted()
    blocks.enter()
