"""An error, and those that it was made of."""

from __future__ import annotations

from collections.abc import Iterator


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error itself, and what it was raised from, each once.

    Libraries wrap errors also by handing one to another as its first argument (kafka-python, requests).
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        wrapped = found.args[0] if found.args and isinstance(found.args[0], BaseException) else None
        found = wrapped or found.__cause__ or found.__context__
