"""kafka-python's event loop: what interrupts the program comes out of it, and nothing else does."""

from __future__ import annotations

import pytest

from spark_2pc_sink.producer.network_loop import NetworkLoop


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_of_a_task_ends_the_wait(interruption: type[BaseException]) -> None:
    loop = NetworkLoop()

    async def interrupted() -> None:
        raise interruption

    loop.call_soon(interrupted)
    with pytest.raises(interruption):
        loop.poll(timeout_ms=1_000)
    loop.close()


def test_an_error_of_a_task_is_its_own() -> None:
    loop, done = NetworkLoop(), []

    async def failing() -> None:
        raise OSError("refused")

    async def working() -> None:
        done.append("worked")

    loop.call_soon(failing)
    loop.call_soon(working)
    loop.poll(timeout_ms=1_000)
    loop.close()
    assert done == ["worked"]
