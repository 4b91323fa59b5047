"""An error, the errors that caused it, and its message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

#: A line of a Java stack trace; "... 12 more" are the lines that it shares with the previous error.
_JAVA_FRAME: Final = re.compile(r"\n\s+(at \S+\(.*\)|\.\.\. \d+ more)")
_LINES: Final = re.compile(r"\s*\n\s*")


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error itself and its causes, each once, also those that kafka-python and requests pass as first argument."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        wrapped = found.args[0] if found.args and isinstance(found.args[0], BaseException) else None
        found = wrapped or found.__cause__ or found.__context__


def in_words(error: BaseException) -> str:
    """Type and text of an error, on one line if it is a Java error: the stack belongs in the traceback only."""
    text = str(error)
    told = _JAVA_FRAME.sub("", text)
    return f"{type(error).__name__}: {text if told == text else _LINES.sub('; ', told.strip())}"
