"""Optional packages: where one is missing, the error names the extra that brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(ImportError):
    """A package is not installed that this use of spark_2pc_sink needs, and that the sink does without."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import optional packages in the block.

    Args:
        name: the extra of pyproject.toml that has them.

    Raises:
        MissingExtraError: one of them is not installed; the text has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed: run pip install 'spark-2pc-sink[{name}]'", name=error.name
        ) from error
