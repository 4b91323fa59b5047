"""Waiting for what the code under test brings about, with one deadline; and values that must be there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

#: A test that waits longer than this for anything has failed.
DEADLINE_S = 20.0
#: Short against anything that is waited for, and long enough for everything else to have its turn.
_PAUSE_S = 0.001


async def within(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, DEADLINE_S)


async def until(condition: Callable[[], object]) -> None:
    """Let everything else run until the condition holds."""
    now_s = asyncio.get_running_loop().time
    end_s = now_s() + DEADLINE_S
    while not condition():
        assert now_s() < end_s, "waited in vain"
        await asyncio.sleep(_PAUSE_S)


def present(value: T | None) -> T:
    """The value, which must be there."""
    assert value is not None
    return value
