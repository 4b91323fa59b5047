"""The walks of ARCHITECTURE.md name rooms and modules that there are."""

from __future__ import annotations

import re

import pytest

from tests.harness import ROOT

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
#: By its name, the lanes of each walk.
WALKS = dict(re.findall(r"<!-- walk: ([\w-]+) -->\n(.*?)\n<!-- end of walk", PAGE, re.DOTALL))


def is_there(module: str) -> bool:
    """Whether this is a module of the package, or of the room of the state row."""
    return any((ROOT / folder / f"{module}.py").exists() for folder in ("spark_2pc_sink", "."))


@pytest.mark.parametrize("name", WALKS)
def test_each_module_of_a_walk_is_there(name: str) -> None:
    text = " ".join(WALKS[name].split())
    named = [
        f"{room}/{module}"
        for room, modules in re.findall(r"`([^`]+)` \(([^)]+)\)", text)
        for module in modules.split(", ")
    ]
    named += [module for pair in re.findall("`([^`]+)` calls `([^`]+)`", text) for module in pair]
    assert len(named) > len(("room", "module"))
    assert [module for module in named if not is_there(module)] == []


def test_there_are_four() -> None:
    assert WALKS.keys() == {"micro-batch", "recovery", "status", "produce"}
