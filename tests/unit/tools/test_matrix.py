"""tools/matrix.py: rows of its table, and what a cell says that cannot be made. The cells themselves: make matrix."""

from __future__ import annotations

from datetime import datetime, timezone

from tools import matrix
from tools.matrix import CannotBeMadeError, Cell, Place, cells, tried, with_rows

NOW = datetime(2026, 11, 25, tzinfo=timezone.utc)
OLD = f"{matrix._HEAD}| Kafka | 4.0.0 | `t` | 1 passed | 2026-01-01 |\n"
PAGE = f"before\n<!-- matrix -->\n{OLD}<!-- end of matrix -->\nafter\n"


def row(system: str, version: str, result: str = "2 passed") -> str:
    return f"| {system} | {version} | `t` | {result} | 2026-11-25 |"


def test_a_row_takes_the_place_of_the_one_of_its_version() -> None:
    """By minor version; PostgreSQL's by the major one. The order is that of the cells."""
    page = with_rows(PAGE, [row("Kafka", "4.0.1"), row("Kafka", "3.9.1"), row("PostgreSQL", "16.8")])
    page = with_rows(page, [row("PostgreSQL", "16.9"), row("Python, PySpark", "3.10.13, 4.0.2")])
    shown = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith(("| K", "| Py", "| Po"))]
    assert shown == [
        ["| Python, PySpark", "3.10.13, 4.0.2"],
        ["| PostgreSQL", "16.9"],
        ["| Kafka", "3.9.1"],
        ["| Kafka", "4.0.1"],
    ]
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")


def test_a_cell_that_cannot_be_made_says_why() -> None:
    def cannot() -> Place:
        raise CannotBeMadeError("this machine has no Python 3.9")

    made = tried(Cell("spark", "Python, PySpark", "3.9, 4.0", ("tests/integration/state",), cannot), NOW)
    assert made == "| Python, PySpark | 3.9, 4.0 | `state` | not run: this machine has no Python 3.9 | 2026-11-25 |"


def test_every_cell_has_tests_that_there_are() -> None:
    assert {cell.kind for cell in cells()} == {"spark", "postgres", "kafka"}
    assert all((matrix.ROOT / name).exists() for cell in cells() for name in cell.tests)
    left_out = {test.partition("::") for cell in cells() for test in cell.left_out}
    assert all(f"def {test}(" in (matrix.ROOT / file).read_text() for file, _, test in left_out)
