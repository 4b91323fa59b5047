"""tools/matrix.py: its cells run tests that exist. The cells themselves: make matrix."""

from __future__ import annotations

from tools import matrix
from tools.matrix import cells


def test_every_cell_has_tests_that_there_are() -> None:
    assert {cell.kind for cell in cells()} == {"spark", "postgres", "kafka"}
    assert all((matrix.ROOT / name).exists() for cell in cells() for name in cell.tests)
    left_out = {test.partition("::") for cell in cells() for test in cell.left_out}
    assert all(f"def {test}(" in (matrix.ROOT / file).read_text() for file, _, test in left_out)
