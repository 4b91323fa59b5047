"""docs/testing.md shows the test of examples/testing_project as it is there, and names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from spark_2pc_sink.recipe.steps import Step

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "testing.md").read_text()


def test_the_test_of_the_page_is_that_of_the_project() -> None:
    (shown,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    path = ROOT / "examples" / "testing_project" / "test_job.py"
    assert path.read_text().partition("\n\n")[2] == shown


def test_the_steps_are_all_there() -> None:
    assert all(f"`{step.name}`" in PAGE for step in Step)
