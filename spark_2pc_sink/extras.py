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
        text = f"{error.name} is not installed: run {install_command(name)} in the directory of spark_2pc_sink"
        raise MissingExtraError(text, name=error.name) from error


def install_command(name: str) -> str:
    """The command that installs an extra, in the directory of the project: it is on no index."""
    return f'pip install ".[{name}]"'
