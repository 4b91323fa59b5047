"""FAULTS.md and the tests hold together: every id has its row, every test that a row names exists and names the id."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
#: The failures of each place: A1 to A29, and so on.
COUNTS = {"A": 29, "B": 36, "C": 20, "D": 16}
IDS = [f"{place}{number}" for place, count in COUNTS.items() for number in range(1, count + 1)]
KINDS = {"survived", "refused", "cannot occur"}
#: What a row says when no test is needed: a whole sentence.
SENTENCE = re.compile(r"\b[A-Z][^.`]{20,}")
_ID = re.compile(r"\b[ABCD]\d{1,2}\b")
_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


class Row(NamedTuple):
    """A line of the table."""

    id: str
    kind: str
    how: str

    @property
    def tests(self) -> list[tuple[str, str]]:
        """Module and function of the tests that it names."""
        return _TEST.findall(self.how)


@cache
def rows() -> list[Row]:
    lines = (TESTS / "FAULTS.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if _ID.match(line.lstrip("| "))]
    return [Row(found[0], found[2], found[3]) for found in cells if len(found) == 4]


@cache
def docstrings_of(path: Path) -> dict[str, str]:
    """The test functions of a module, with their docstrings; the module's own has no name."""
    found = ast.parse(path.read_text(), filename=str(path))
    scopes: list[ast.Module | ast.ClassDef] = [found, *(node for node in found.body if isinstance(node, ast.ClassDef))]
    functions = {
        node.name: ast.get_docstring(node) or ""
        for scope in scopes
        for node in scope.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    return {"": ast.get_docstring(found) or "", **functions}


def mentions() -> Iterator[tuple[str, str]]:
    """The ids in docstrings of tests, and of modules of tests: where, and which."""
    for path in sorted(TESTS.rglob("test_*.py")):
        if path == Path(__file__) or not _ID.search(path.read_text()):
            continue
        where = str(path.relative_to(TESTS))
        for name, text in docstrings_of(path).items():
            for found in _ID.findall(text):
                yield f"{where}::{name}", found


def test_every_id_has_one_row() -> None:
    assert [row.id for row in rows()] == IDS
    assert [name for name, count in Counter(row.id for row in rows()).items() if count > 1] == []


def test_a_row_is_survived_refused_or_cannot_occur() -> None:
    """The first two need a test that shows it, the third a sentence that says why."""
    for row in rows():
        assert row.kind in KINDS, row.id
        assert SENTENCE.search(row.how) if row.kind == "cannot occur" else row.tests, row.id


def test_tests_of_a_row_exist_and_name_its_id() -> None:
    for row in rows():
        # Also a name that is spelt in another form than the table's is a name that would not be checked.
        assert row.how.count("::") == len(row.tests), row.id
        for module, function in row.tests:
            path = TESTS / module
            assert path.is_file(), f"{row.id}: {module} is not there"
            assert function in docstrings_of(path), f"{row.id}: {module} has no {function}"
            named = _ID.findall(docstrings_of(path)[function])
            assert row.id in named, f"{function} does not name {row.id} in its docstring"


def test_ids_that_tests_name_are_in_the_table() -> None:
    assert [(where, name) for where, name in mentions() if name not in IDS] == []
    assert {name for _, name in mentions()} == set(IDS)
