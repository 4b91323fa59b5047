"""The public names of the package, with parameters and members: ``python -m tests.harness.public_names --write``.

tests/unit/public_names.txt has them as they are meant to be. A name that comes, changes or goes is a change for users,
so the same commit changes the file, and CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).parents[1] / "unit" / "public_names.txt"
#: As the docstring of spark_2pc_sink says. What each has in ``__all__`` is public.
MODULES: Final = (
    "spark_2pc_sink",
    "spark_2pc_sink.errors",
    "spark_2pc_sink.producer",
    "spark_2pc_sink.testing",
    "spark_2pc_sink.transactions",
)


def public_names() -> str:
    """A line each: functions and classes with their parameters, members of classes indented below."""
    return "".join(f"{line}\n" for module in MODULES for line in _lines(module))


def _lines(module: str) -> Iterator[str]:
    loaded = import_module(module)
    for name in sorted(loaded.__all__):
        value = getattr(loaded, name)
        yield f"{module}.{name}{_parameters(value)}"
        if inspect.isclass(value):
            for member in sorted({member for base in _own(value) for member in vars(base) if member[0] != "_"}):
                yield f"    {member}{_parameters(inspect.getattr_static(value, member))}"


def _own(cls: type) -> list[type]:
    """A class and its bases, as far as they are of this project."""
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] in {"spark_2pc_sink", "jdbc_state"}]


def _parameters(value: object) -> str:
    """Names, with ``*`` before those that are keywords; nothing for what no user calls."""
    value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    made_here = inspect.isclass(value) and any("__init__" in vars(base) for base in _own(value))
    if not inspect.isfunction(value) and not made_here:
        return ""
    signature = inspect.signature(value)  # type: ignore[arg-type]  # a function, or a class
    bare = [item.replace(annotation=item.empty, default=item.empty) for item in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    LIST.write_text(public_names())
