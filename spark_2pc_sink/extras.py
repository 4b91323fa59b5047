"""Optional packages: if one is missing, the error names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(ImportError):
    """This use of spark_2pc_sink needs a package that is not installed, and that the sink itself does not need."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import optional packages of an extra in the block; MissingExtraError names the command that installs them."""
    try:
        yield
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed: run {install_command(name)} in the directory of spark_2pc_sink"
        raise MissingExtraError(text, name=error.name) from error


def install_command(name: str) -> str:
    """The command that installs an extra, in the project directory: the project is on no index."""
    return f'pip install ".[{name}]"'
