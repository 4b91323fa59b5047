"""Whoever waits for an act of another thread goes on when the act has returned, not in its middle."""

from __future__ import annotations

import threading

import pytest

from tests.harness.later import later


@pytest.mark.parametrize("error", [None, RuntimeError("what the block waited for failed")])
def test_the_act_has_returned_when_the_block_is_left(error: Exception | None) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def act(name: str) -> None:
        begun.set()
        go_on.wait(10)
        done.append(name)

    def block() -> None:
        with later(0.01, act, "an act"):
            assert begun.wait(10)
            threading.Timer(0.2, go_on.set).start()
            if error is not None:
                raise error

    if error is None:
        block()
    else:
        with pytest.raises(RuntimeError, match="waited for"):
            block()
    assert done == ["an act"]
