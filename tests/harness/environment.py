"""Variables of this process's environment, for the processes that it starts meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(names: Mapping[str, str]) -> Iterator[None]:
    """Set them while the block lasts; afterwards each is what it was before."""
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
