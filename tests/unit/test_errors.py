"""The tree of errors: what it says of itself, and that every error survives the way from a worker to the driver."""

from __future__ import annotations

import pickle
import re
from dataclasses import fields
from pathlib import Path

import pytest

from spark_2pc_sink import errors
from spark_2pc_sink.choices import Facts
from spark_2pc_sink.errors import DualWriteError, HaltCause


def all_errors() -> list[type[DualWriteError]]:
    found, waiting = [], [DualWriteError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return [kind for kind in found if kind.__name__ in errors.__all__]


def made(kind: type[DualWriteError]) -> DualWriteError:
    samples = {
        "int": 3,
        "bool": True,
        "str": "text",
        "str | None": None,
        "object": "value",
        "HaltCause": HaltCause.GAP,
        "Facts": Facts(batch=3),
        "Any": None,
        "tuple[str, ...]": ("one", "two"),
        "frozenset[bytes]": frozenset({b"one"}),
    }
    return kind(**{field.name: samples[str(field.type)] for field in fields(kind)})


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_can_be_pickled_and_says_a_sentence(kind: type[DualWriteError]) -> None:
    """Errors carry fields and build their sentence from them."""
    error = made(kind)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is kind
    assert str(again) == str(error)
    assert all(getattr(again, field.name) == getattr(error, field.name) for field in fields(kind))


def test_the_manual_lists_every_cause_of_a_halt() -> None:
    page = (Path(__file__).parents[2] / "docs" / "after-a-crash.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines()]
    listed = [cause for row in rows if len(row) == 4 for cause in re.findall("`(.*?)`", row[1])]
    assert set(listed) == {"cause", *HaltCause}


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if "Error" in line and ("├" in line or "└" in line)]
    drawn: dict[str, str] = {}
    path = ["DualWriteError"]
    for line in lines:
        name = next(word for word in line.split() if word.endswith("Error"))
        depth = (line.index(name) - 4) // 4
        path = [*path[:depth], name]
        drawn[name] = path[-2]
    bases = {kind.__name__: kind.__base__ for kind in all_errors() if kind is not DualWriteError}
    real = {name: base.__name__ for name, base in bases.items() if base is not None}
    assert drawn == real
